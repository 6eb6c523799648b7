"""Sessions and ladders: one that differs is found before anything starts, one that fits decides."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np

from roce_ring.ladder.loading import load
from tests.local.ranks import Rank, Starter

SMALL, LARGE = 64, 4096


def write(path: Path, fabric: str, mode: str, *also_for: str) -> str:
    buckets = [{"upto": SMALL, "profiles": [{"mode": "full"}]}, {"upto": 1 << 30, "profiles": [{"mode": mode}]}]
    source = {"kind": "measured", "source": "this test"}
    file = {"schema": "roce-ring/ladder/v1", "fabric": fabric, "provenance": source, "buckets": buckets}
    file |= {"also_for": also_for} if also_for else {}
    path.write_text(json.dumps(file))
    return str(path)


def climb(me: Rank, files: list[str], provider: str = "shm") -> list[str]:
    with me.communicator(ladder=files[me.rank % len(files)], provider=provider) as ar:
        for count in (1, SMALL // 4, SMALL // 4 + 1, LARGE):
            assert (ar.all_reduce(np.full(count, 1.0, np.float32)) == me.world).all()
        ran = {record.mode for record in ar.session.read_records()}
        assert provider == "pcie" or len(ran) == 2, ran  # what ran, beside what was chosen
        return [ar.choose_mode(size) for size in (1, SMALL, SMALL + 1, 1 << 20)]


def test_one_file_decides_on_both_fabrics(start: Starter, tmp_path: Path) -> None:
    """Ranks that a proxy serves, as on a ring of hosts, and ranks that reach each other's memory."""
    file = write(tmp_path / "ladder.json", "shm", "ring", "roce-ring-mesh", "pcie-hostbridge")
    for provider in ("shm", "pcie"):
        for chosen in start(climb, 3, files=[file], provider=provider).values():
            assert chosen == ["full", "full", "ring", "ring"]


def test_ranks_with_different_ladders_do_not_start(start: Starter, tmp_path: Path) -> None:
    """They would run different collectives and wait for each other."""
    files = [write(tmp_path / f"{mode}.json", "shm", mode) for mode in ("ring", "payload_rsag")]
    for error in start(climb, 2, files=files).errors():
        for file in files:
            assert load(file).digest in error.message


def test_a_wrong_ladder_on_one_rank_is_told_on_all(start: Starter, tmp_path: Path) -> None:
    files = [write(tmp_path / "right.json", "shm", "ring"), write(tmp_path / "wrong.json", "shm", "rnig")]
    for error in start(climb, 2, files=files).errors():
        assert "rank 1" in error.message
        assert "mode 'rnig' is unknown: did you mean 'ring'?" in error.message


def chosen_for_a_mebibyte(me: Rank, file: str) -> str:
    with me.communicator(ladder=file) as ar:
        return ar.choose_mode(1 << 20)


def test_a_ladder_for_another_fabric_leaves_the_shipped_one(start: Starter, tmp_path: Path) -> None:
    file = write(tmp_path / "ladder.json", "roce-switch", "ring")
    for outcome in start(chosen_for_a_mebibyte, 2, file=file).finish(allow=("covers nothing here",)):
        assert outcome.value == "payload_rsag"
        assert outcome.said("covers nothing here: it is for fabric roce-switch, this session's is shm")
