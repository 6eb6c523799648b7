"""Peers' memory, as far as no GPU is needed: who may free when, and what a verdict allows. The rest: tests/gpu."""

from __future__ import annotations

import multiprocessing
import os
import signal
from multiprocessing.connection import Connection
from pathlib import Path

import pytest

from roce_ring.direct import LOADS, STORES
from roce_ring.errors import SetupError
from roce_ring.gpu.holding import Holding
from roce_ring.gpu.p2p import PRIMITIVES
from roce_ring.gpu.peers import access_of


def test_nobody_frees_before_all_have_let_go(tmp_path: Path) -> None:
    """A kernel of a peer that still holds may store into memory that this rank would have given to somebody else."""
    a, b = Holding(tmp_path / "lock"), Holding(tmp_path / "lock")
    a.unname()
    assert not list(tmp_path.iterdir())
    a.let_go()
    assert not a.all_let_go(0.02), "b still holds"
    b.let_go()
    assert a.all_let_go(1.0) and b.all_let_go(1.0)
    assert a.all_let_go(0.0), "closing twice is fine"


def hold_for_ever(path: str, pipe: Connection) -> None:
    held = Holding(Path(path))
    pipe.send("held")
    signal.pause()
    held.let_go()


def test_a_dead_rank_holds_nobody_up(tmp_path: Path) -> None:
    """Its lock goes with its process, however that ends."""
    ours, theirs = multiprocessing.Pipe()
    path = tmp_path / "lock"
    mine = Holding(path)
    process = multiprocessing.get_context("fork").Process(target=hold_for_ever, args=(str(path), theirs))
    process.start()
    assert ours.recv() == "held"
    mine.let_go()
    assert not mine.all_let_go(0.02)
    assert process.pid
    os.kill(process.pid, signal.SIGKILL)
    process.join()
    assert mine.all_let_go(1.0)


def test_a_lock_that_cannot_be_had_is_a_sentence(tmp_path: Path) -> None:
    with pytest.raises(SetupError, match=r"cannot lock .*/absent/lock: No such file or directory"):
        Holding(tmp_path / "absent" / "lock")


def told(**wrong: str) -> list[dict[str, str]]:
    """Of two GPUs: what went wrong from b to a."""
    fine = dict.fromkeys(PRIMITIVES, "")
    return [{"from": "a", "to": "b", **fine}, {"from": "b", "to": "a", **fine, **wrong}]


@pytest.mark.expected_warnings("modes that read peers' memory are out: loads from GPU b to a: 3 of the values")
def test_the_worst_verdict_counts_for_all() -> None:
    """One pair that loses stores hangs everybody: then no rank may start. Loads are only for modes that read."""
    assert access_of(told()) == LOADS
    assert access_of(told(loads="3 of the values were wrong or did not come")) == STORES
    with pytest.raises(SetupError, match="stores from GPU b to a: hung for 60 s"):
        access_of(told(stores="hung for 60 s", loads="hung for 60 s"))
    for one in ("graph", "concurrent"):
        with pytest.raises(SetupError, match=f"{one} from GPU b to a: 3 values"):
            access_of(told(**{one: "3 values were wrong or did not come"}))
    assert access_of(told(copy="3 values were wrong or did not come")) == LOADS, "no kernel uses the copy engine"
