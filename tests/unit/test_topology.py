"""A session's paths come from the plan, or from the environment line that the plan printed: both must say the same."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from roce_ring.errors import ConfigError
from roce_ring.mesh.loading import load_plan
from roce_ring.settings import Settings
from roce_ring.topology import Topology

ROOT = Path(__file__).resolve().parents[2]
EXAMPLES = ROOT / "mesh" / "examples"


def plan_of(name: str, tmp_path: Path) -> tuple[str, list[str]]:
    """Path of the plan file, and the roce-ring environment lines (one, or one per rank)."""
    out = tmp_path / name
    command = [sys.executable, str(ROOT / "mesh" / "plan.py"), str(EXAMPLES / f"{name}.yaml"), "--out", str(out)]
    shown = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    return str(out / "plan.json"), [line for line in shown.splitlines() if line.startswith("ROCE_RING_")]


@pytest.mark.parametrize(
    "name", ["four-spark-ring", "four-ring-in-order", "four-ring-flipped-cage", "triangle", "pair-one-cable"]
)
def test_env_line_and_plan_say_the_same(name: str, tmp_path: Path) -> None:
    """An operator may pass the printed line or the plan file; hops and HCAs must not depend on which."""
    plan, lines = plan_of(name, tmp_path)
    world = len(load_plan(Path(plan)).hosts)
    for rank in range(world):
        line = lines[rank if len(lines) > 1 else 0]
        settings = Settings.from_env(dict(word.split("=", 1) for word in line.split()))
        of_line = Topology.from_settings(settings, rank, world)
        of_plan = Topology.from_settings(Settings(plan=plan), rank, world)
        assert (of_line.paths, of_line.hcas) == (of_plan.paths, of_plan.hcas)
        assert len(of_plan.plan_hash) == 64


def test_hops_come_from_geometry_not_from_rank_distance(tmp_path: Path) -> None:
    """With the order 0, 2, 1, 3 around the ring rank 1 is opposite to rank 0: rank arithmetic would call rank 2 far."""
    command = [sys.executable, str(ROOT / "mesh" / "plan.py"), str(EXAMPLES / "four-spark-ring.yaml")]
    command += ["--tp-order", "s1,s3,s2,s4", "--out", str(tmp_path / "p")]
    subprocess.run(command, check=True, capture_output=True)
    topology = Topology.from_settings(Settings(plan=str(tmp_path / "p" / "plan.json")), 0, 4)
    assert [[way.hops for way in ways] for ways in topology.paths] == [[], [2, 2], [1, 1], [1, 1]]


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        (Settings(hca="a,b", peer_hca_maps="1=0/1;0=0/1"), "has 2 sections, this world has 3 ranks"),
        (Settings(hca="a", peer_hca_maps="1=0/1,2=0;0=0,2=0;0=0,1=0"), "uses HCA 1, but hca lists 1"),
        (Settings(hca="a", peer_hca_maps="1=0,2=0;0=0,1=0;0=0,1=0"), "section 1 of peer_hca_maps names ranks [0, 1]"),
        (Settings(plan="/nowhere/plan.json"), "cannot be read"),
    ],
)
def test_refusals_say_what_differs(settings: Settings, sentence: str) -> None:
    """A line from another ring must not be taken for this one."""
    with pytest.raises(ConfigError) as refused:
        Topology.from_settings(settings, 0, 3)
    assert sentence in str(refused.value)


def test_a_large_world_needs_the_plan() -> None:
    """From five ranks on a map alone does not say who is how far, so it must not be guessed."""
    maps = ";".join(",".join(f"{p}=0" for p in range(5) if p != r) for r in range(5))
    with pytest.raises(ConfigError, match="does not say who is how far"):
        Topology.from_settings(Settings(hca="a", peer_hca_maps=maps), 0, 5)
