"""A rank that dies ends the job: everybody else learns who it was, within seconds, whatever they were doing."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from roce_ring.errors import RoceRingError
from tests.local.ranks import MEETING_S, Rank, Starter

NAMES_IT_WITHIN_S = 5.0
DEAD = (r"a peer's process is gone",)


def reduce_for_ever(me: Rank, mode: str, elements: int) -> None:
    """Checks every result until something breaks, and that it stays broken."""
    with me.communicator() as ar:
        x, out = np.full(elements, me.rank + 1, np.float32), np.empty(elements, np.float32)
        try:
            for n in range(10**9):
                ar.all_reduce(x, out, mode=mode)
                assert (out == me.world * (me.world + 1) // 2).all()
                if n == 100:
                    me.say("running")
        finally:
            began = time.monotonic()
            for again in (ar.check, lambda: ar.all_reduce(x), lambda: ar.all_gather(x)):
                with pytest.raises(RoceRingError) as caught:
                    again()
                assert type(caught.value).__name__ == "PeerDead"
            assert time.monotonic() - began < 1.0


@pytest.mark.parametrize(
    ("mode", "victim", "elements"),
    [("full", 2, 1000), ("payload_rsag", 0, 100_000), ("ring", 1, 30_000), ("halving", 3, 30_000)],
)
def test_kill_9_in_the_middle_of_a_run(start: Starter, mode: str, victim: int, elements: int) -> None:
    """An engine with one dead rank must not hang in a collective: the other three name it within 5 s, and stay failed.
    Rank 0, which hosted the rendezvous, is no exception; nor are modes in which only neighbours talk to it."""
    ranks = start(reduce_for_ever, 4, mode=mode, elements=elements)
    ranks.wait_for("running")
    killed = ranks.kill(victim)
    outcomes = ranks.finish(allow=DEAD)
    assert len(outcomes) == 3
    for one in outcomes:
        assert one.error and one.error.type == "PeerDead", one.error
        assert one.error.culprit == victim
        assert f"rank {victim}" in one.error.message
        assert one.ended - killed < NAMES_IT_WITHIN_S
        assert one.said(f"rank {victim}: a peer's process is gone")
        recorded = one.said(rf"operations of rank {one.rank} before that: .*\d+ {mode} \d+ B sent in \d+ us; ")
        assert recorded, "the log of a job that died shows its last operations"


def idle(me: Rank) -> dict[str, Any]:
    with me.communicator() as ar:
        ar.all_reduce(np.ones(8, np.float32))
        me.say("idle")
        deadline = time.monotonic() + 10
        while time.monotonic() < deadline:
            try:
                ar.check()
            except RoceRingError:
                break
            time.sleep(0.02)
        known = time.monotonic()
        with pytest.raises(RoceRingError) as caught:
            ar.all_reduce(np.ones(8, np.float32))
        return {"known": known, "type": type(caught.value).__name__, "culprit": getattr(caught.value, "culprit", None)}


def test_kill_9_while_nobody_works(start: Starter) -> None:
    """A server between two requests: check() tells, so that it can go unhealthy before the next request is lost."""
    ranks = start(idle, 4)
    ranks.wait_for("idle")
    killed = ranks.kill(1)
    for value in ranks.values(allow=DEAD):
        assert (value["type"], value["culprit"]) == ("PeerDead", 1)
        assert value["known"] - killed < NAMES_IT_WITHIN_S


class Fragile:
    """A real exchange in a process that comes to grief before call number `at`."""

    def __init__(self, me: Rank, at: int, how: int) -> None:
        from roce_ring.exchange import RendezvousExchange

        self._inner = RendezvousExchange(me.address, me.rank, me.world, timeout_s=MEETING_S)
        self.rank, self.world = me.rank, me.world
        self._at, self._how, self.calls = at, how, 0

    def all_gather(self, payload: bytes, timeout_s: float) -> list[bytes]:
        self.calls += 1
        if self.calls == self._at:
            os.kill(os.getpid(), self._how)
        return self._inner.all_gather(payload, timeout_s)

    def barrier(self, timeout_s: float) -> None:
        self.all_gather(b"", timeout_s)

    def close(self) -> None:
        self._inner.close()


def set_up(me: Rank, victim: int, at: int, how: int = signal.SIGKILL, meeting_s: float = 60.0) -> int:
    """Returns how often the ranks meet until all is up."""
    import roce_ring.session
    from roce_ring.communicator import AllReduce

    roce_ring.session.MEETING_S = meeting_s
    exchange = Fragile(me, at if me.rank == victim else 0, how)
    try:
        AllReduce(exchange, me.settings()).close()
    finally:
        exchange.close()
    return exchange.calls


@pytest.mark.parametrize("victim", [0, 2])
def test_kill_9_during_set_up(start: Starter, victim: int) -> None:
    """A rank that runs out of memory while it starts: whatever step that was, the others name it and end."""
    [steps] = set(start(set_up, 3, victim=victim, at=0).values())
    for at in (1, steps // 2, steps - 3, steps):
        ranks = start(set_up, 3, victim=victim, at=at)
        ranks.dies(victim)
        began = time.monotonic()
        for error in ranks.errors(allow=DEAD):
            assert "RoceRingError" in error.family, error.traceback
            assert f"rank {victim}" in error.message, error.message
        assert time.monotonic() - began < 10


def test_a_rank_that_stops_during_set_up_is_named(start: Starter) -> None:
    """A rank in a debugger, or swapped out, while all start: a bounded wait, and its number."""
    ranks = start(set_up, 3, victim=1, at=5, how=signal.SIGSTOP, meeting_s=1.5)
    ranks.dies(1)
    for rank in (0, 2):
        ranks.wait_for_end(rank)
    ranks.kill(1)
    for error in ranks.errors():
        assert "rank 1" in error.message and "did not arrive within 1.5 s" in error.message


def test_what_a_crash_left_in_shared_memory_goes_with_the_next_start(start: Starter) -> None:
    """kill -9 between a region's creation and its opening by peers leaves a file; crashes must not use up memory."""
    ranks = start(set_up, 2, victim=1, at=6)
    ranks.dies(1)
    ranks.errors(allow=DEAD)
    left = list(Path("/dev/shm").glob(f"roce-ring-{ranks.pid(1)}-*"))
    assert len(left) == 1
    old = time.time() - 120
    os.utime(left[0], (old, old))
    start(set_up, 2, victim=9, at=0).values()
    assert not left[0].exists()
