"""SGLang's released code over our communicator: its plug-in loader, its process group, its operators."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from tests.engines.environment import Rank, environment_line, launch, site

pytest.importorskip("torch", reason="the engines need torch")

PROGRAM = Path(__file__).with_name("sglang_rank.py")
OURS = "roce_ring.engines.communicator.Communicator"
LINE = environment_line("pair-two-cables.yaml", "sglang")
PRELOAD = "torch,sglang.srt.distributed.parallel_state,sglang.srt.layers.dp_attention"
VERSIONS = ("0.5.11", "0.5.13")


def run(scenario: str, environ: dict[str, str] | list[dict[str, str]], world: int) -> list[Rank]:
    return launch(PROGRAM, [site("sglang")], scenario, environ, world, preload=PRELOAD)


@pytest.fixture
def names(tmp_path: Path) -> dict[str, str]:
    """What every rank of a test has beside the line under test: a run directory, so that tests can run side by side."""
    return {"ROCE_RING_RUN_DIR": str(tmp_path / "run")}


def test_a_plans_line_is_all_that_four_ranks_need(names: dict[str, str]) -> None:
    line = environment_line("four-spark-ring.yaml", "sglang")
    ranks = run("routed 262144", {**line, **names}, 4)
    for rank in ranks:
        assert rank.code == 0, rank.log
        assert rank.said["communicator"] == OURS
        assert rank.said["wrong"] == []
        assert rank.said["compiled"]
    assert sorted(rank.said["added_us"] for rank in ranks)[1] < 15
    log = ranks[0].log
    assert "RoCEnante ready: world=4 hcas=none gid_index=none max_size=262144" in log
    assert "DSV41_ROCE_GATHER ready: max 262144 bytes per rank" in log
    assert "roce-ring: all-reduce 57344 B bfloat16: payload_rsag, 1 block; above 262144 B: gloo" in log
    assert log.count("all-reduce 14336 B") == 1
    assert not any("RoCEnante" in rank.log for rank in ranks[1:])


def test_our_own_line_does_the_same(names: dict[str, str]) -> None:
    line = environment_line("pair-two-cables.yaml", "roce-ring")
    for rank in run("routed 524288", {**line, **names, "ROCE_RING_MODE": "ring"}, 2):
        assert (rank.code, rank.said["communicator"], rank.said["wrong"]) == (0, OURS, []), rank.log


def test_one_rank_that_cannot_keeps_all_from_it(names: dict[str, str]) -> None:
    """Alone it would fall back while the others wait for it in their first all-reduce."""
    broken = {**LINE, **names, "SGLANG_ROCE_MAX_SIZE": "lots"}
    for rank in run("declined", [{**LINE, **names}, broken], 2):
        assert (rank.code, rank.said["wrong"]) == (0, []), rank.log
        assert rank.said["communicator"] != OURS
        told = [line for line in rank.log.splitlines() if "roce-ring is not used" in line]
        assert len(told) == 1
        assert "rank 1: environment: SGLANG_ROCE_MAX_SIZE: expected a whole number of bytes" in told[0]
        assert "rank 0:" not in told[0]


def test_a_session_that_one_rank_cannot_open_is_nobodys(names: dict[str, str]) -> None:
    """Past the vote: the constructor itself fails, on one rank only."""
    nowhere = {**LINE, "ROCE_RING_RUN_DIR": "/proc/none"}
    for rank in run("declined", [{**LINE, **names}, nowhere], 2):
        assert (rank.code, rank.said["wrong"]) == (0, []), rank.log
        assert rank.said["communicator"] != OURS
        assert "rank 1: cannot create the run directory /proc/none" in rank.log


def test_required_by_one_rank_ends_all(names: dict[str, str]) -> None:
    broken = {**LINE, **names, "DSV41_ROCE_RING": "0"}
    for rank in run("declined", [{**LINE, **names, "ROCE_RING_REQUIRED": "1"}, broken], 2):
        assert rank.code == 1
        assert "DSV41_ROCE_RING=0 asks for a switched fabric" in rank.log
        assert "ROCE_RING_REQUIRED=1, so this engine ends" in rank.log.splitlines()[-1]


def test_a_group_of_another_size_than_the_plans_stays_the_engines(names: dict[str, str]) -> None:
    """Attention groups are smaller than the ring. That is no fault and no warning."""
    line = environment_line("triangle.yaml", "sglang")
    for rank in run("declined", {**line, **names}, 2):
        assert (rank.code, rank.said["wrong"]) == (0, []), rank.log
        assert rank.said["communicator"] != OURS
        assert "WARNING roce_ring" not in rank.log
        assert "no plan speaks of a group of 2 ranks" in rank.log


def test_a_lost_rank_ends_the_others_by_name(names: dict[str, str]) -> None:
    """Also at the end of a step, for graph replays return whatever they find."""
    *others, lost = run("lost", {**LINE, **names}, 2)
    assert lost.code < 0
    for rank in others:
        assert rank.said["collective"].startswith("PeerDead: rank 1"), rank.log
        assert rank.said["step"].startswith("PeerDead: rank 1")
        assert rank.said["s"] < 6


@pytest.mark.parametrize("required", ["0", "1"])
def test_a_missing_target_is_loud(required: str) -> None:
    """SGLang logs a hook without a target and goes on serving, slower than anybody knows."""
    (rank,) = run("no target", {**LINE, "ROCE_RING_REQUIRED": required}, 1)
    assert "ERROR roce_ring.engines.sglang: roce-ring is not used: this SGLang (0.5.23) has no" in rank.log
    assert (rank.code, rank.said) == ((0, {"went on": True}) if required == "0" else (1, {}))


def test_unset_leaves_the_engine_as_it_is() -> None:
    """The same dispatch table as with the plug-in kept out, and nothing of ours loaded but the plug-in itself."""
    without, unset, on = (
        run("targets", environ, 1)[0].said
        for environ in ({"SGLANG_PLUGINS": "none"}, {"ROCE_RING_MAX_BYTES": "4096"}, LINE)
    )
    assert without["hooked"] == unset["hooked"] == []
    assert without["ours"] == []
    assert not {"roce_ring.communicator", "roce_ring.settings", "roce_ring.native"} & set(unset["ours"])
    assert on["hooked"] == ["dispatch", "gather"]


@pytest.mark.parametrize("version", VERSIONS)
def test_older_versions_are_hooked(version: str) -> None:
    older = site(f"sglang-{version}", f"sglang=={version}")
    (rank,) = launch(PROGRAM, [older, site("sglang")], "hooked", LINE, 1, preload="torch")
    assert (rank.code, rank.said["hooked"]) == (0, ["dispatch", "gather"]), rank.log


@pytest.mark.parametrize("version", ["", *VERSIONS])
def test_the_step_hook_has_its_target(version: str) -> None:
    """The scheduler's module is loaded by a serving process only; its text says what it has."""
    folder = site(f"sglang-{version}", f"sglang=={version}") if version else site("sglang")
    source = (folder / "sglang" / "srt" / "managers" / "scheduler.py").read_text()
    (scheduler,) = (n for n in ast.parse(source).body if isinstance(n, ast.ClassDef) and n.name == "Scheduler")
    (step,) = (n for n in scheduler.body if isinstance(n, ast.FunctionDef) and n.name == "process_batch_result")
    assert [one.arg for one in step.args.args[:3]] == ["self", "batch", "result"]
