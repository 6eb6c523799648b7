"""A rank that stands still: late is told and forgiven, until the hard deadline; then it has a name on every rank."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.local.ranks import Rank, Ranks, Starter

STOPPED_S = 3.0
VICTIM = 2


def reduce_until_told(me: Rank, mode: str, elements: int) -> dict[str, Any]:
    """Checks every result. The last operation is agreed on through the data: a rank that was told to end adds 1000."""
    with me.communicator() as ar:
        out = np.empty(elements, np.float32)
        told, n = False, 0
        while True:
            told = told or me.told()
            x = np.full(elements, 1000.0 if told else 1.0, np.float32)
            ar.all_reduce(x, out, mode=mode)
            enders = round((float(out[0]) - me.world) / 999)
            assert (out == me.world + 999 * enders).all(), f"operation {n}: {out[:4]}"
            n += 1
            if n == 50:
                me.say("running")
            if enders == me.world:
                time.sleep(0.1)  # the proxy looks every few milliseconds
                stats = ar.session.control.stats()
                return {"operations": n, "late_reports": stats.late_reports, "longest_late_ms": stats.longest_late_ms}


def states(ranks: Ranks, seen_by: list[int]) -> dict[int, Any]:
    from roce_ring.control.client import RankClient

    out = {}
    for rank in seen_by:
        with RankClient(Path(ranks.where) / f"local-r{rank}.sock", 5.0) as client:
            out[rank] = client.state()
    return out


@pytest.mark.parametrize("mode", ["full", "ring"])
def test_a_rank_that_stops_for_3_s_is_reported_and_forgiven(start: Starter, mode: str) -> None:
    """kill -STOP, a debugger, a long garbage collection: nobody dies, the log says whom everybody waits for (in ring
    mode, where neighbours only wait for neighbours, too), and the run completes right."""
    ranks = start(reduce_until_told, 4, settings={"late_s": 1.0}, mode=mode, elements=5000)
    ranks.wait_for("running")
    ranks.stop(VICTIM)
    time.sleep(STOPPED_S - 0.5)
    waiting = states(ranks, [0, 1, 3])
    time.sleep(0.5)
    ranks.resume(VICTIM)
    ranks.go()
    outcomes = ranks.finish(allow=("is late", "came after"))
    for one in outcomes:
        assert one.error is None, one.error.traceback
        assert one.value["operations"] == outcomes[0].value["operations"]
        if one.rank == VICTIM:
            continue
        late = one.said("is late")
        assert late, f"rank {one.rank} did not report"
        names_it = [f"rank {VICTIM} is late" in line or f"ends at rank {VICTIM}" in line for line in late]
        assert all(names_it), late
        assert one.said(r"came after [23]\.\d s")
        assert one.value["late_reports"] >= 1
        assert 2000 <= one.value["longest_late_ms"] <= 6000
    for rank, state in waiting.items():
        assert state.state == "RUNNING"
        assert state.waiting_for_ranks, f"rank {rank} does not say for whom it waits"
        assert all(str(peer) in state.reason for peer in state.waiting_for_ranks)
    if mode == "full":
        assert all(state.waiting_for_ranks == (VICTIM,) for state in waiting.values())
    assert waiting[3].waiting_for_ranks == (VICTIM,)  # its neighbour, in every mode


@pytest.mark.parametrize("mode", ["full", "ring"])
def test_the_hard_deadline_names_the_rank_that_stands_still(start: Starter, mode: str) -> None:
    """peer_timeout_s is what frees an engine whose peer is wedged. Rank 1 of a ring only sees that rank 0 sends
    nothing: blaming rank 0 would send people to the wrong machine."""
    ranks = start(reduce_until_told, 4, settings={"late_s": 0.3, "peer_timeout_s": 1.0}, mode=mode, elements=5000)
    ranks.wait_for("running")
    ranks.stop(VICTIM)
    stopped = time.monotonic()
    for rank in (0, 1, 3):
        ranks.wait_for_end(rank)
    assert time.monotonic() - stopped < 6
    ranks.resume(VICTIM)
    outcomes = ranks.finish(allow=("is late", "came after", "hard deadline"))
    assert len(outcomes) == 4
    for one in outcomes:  # the one that slept too: it must not go on alone
        assert one.error and one.error.type == "PeerTimeout", one.error
        assert one.error.culprit == VICTIM, f"rank {one.rank}: {one.error.message}"
        assert f"rank {VICTIM}: a peer sent nothing before the hard deadline" in one.error.message
        assert "ROCE_RING_PEER_TIMEOUT_S" in one.error.hint


def last_operation(me: Rank) -> None:
    """Rank 1 comes a second after the others; then all close."""
    with me.communicator(peer_timeout_s=1.0, late_s=0.9) as ar:
        x = np.ones(5000, np.float32)
        ar.all_reduce(x)
        me.say("ready")
        me.wait()
        if me.rank == 1:
            me.say("about to call")
            me.wait()
        assert (ar.all_reduce(x) == me.world).all()


@pytest.mark.parametrize("stopped", [[VICTIM], [0, 1, 2]], ids=["one", "all"])
def test_time_in_which_a_rank_did_not_run_is_nobodys_fault(start: Starter, stopped: list[int]) -> None:
    """Ctrl-Z, `docker pause`, a debugger, for longer than peer_timeout_s, while a rank waits: what it waits for is
    there when it wakes up, and its peers, who have closed meanwhile, are not to blame."""
    ranks = start(last_operation, 3)
    ranks.wait_for("ready")
    ranks.go()
    ranks.wait_for("about to call", [1])
    time.sleep(0.3)  # ranks 0 and 2 wait for rank 1 now
    for rank in stopped:
        ranks.stop(rank)
    ranks.go([1])
    time.sleep(2.0)
    for rank in stopped:
        ranks.resume(rank)
    ranks.values(allow=("is late", "came after"))
