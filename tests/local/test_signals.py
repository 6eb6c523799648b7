"""Signals that reach a rank while it waits for a peer in the middle of an operation."""

from __future__ import annotations

import os
import signal
import time

import numpy as np
import pytest

from roce_ring.errors import SessionAborted
from tests.local.ranks import Rank, Starter

WAITS = 0


def wait_for_the_other(me: Rank) -> tuple[str, float]:
    """Rank WAITS blocks in an operation that the other ranks do not call before they are told to."""
    handled = []
    signal.signal(signal.SIGUSR1, lambda *_: handled.append(time.monotonic()))
    x = np.ones(100, np.float32)
    with me.communicator() as ar:
        ar.all_reduce(x)
        me.say("ready")
        if me.rank != WAITS:
            me.wait()
        try:
            assert (ar.all_reduce(x) == me.world).all()
        except KeyboardInterrupt:
            return "KeyboardInterrupt", time.monotonic()
        except SessionAborted as error:
            return f"{error.code} by rank {error.culprit}", time.monotonic()
        return f"finished, {'some' if handled else 'no'} signals handled", time.monotonic()


def test_ctrl_c_in_an_operation_that_waits(start: Starter) -> None:
    """A job that hangs because a peer does not come: Ctrl-C must not take peer_timeout_s to be heard, and the others
    must not wait for a rank that has left."""
    ranks = start(wait_for_the_other, 3)
    ranks.wait_for("ready")
    time.sleep(1.0)
    os.kill(ranks.pid(WAITS), signal.SIGINT)
    pressed = time.monotonic()
    ranks.wait_for_end(WAITS)
    ranks.go([1, 2])
    (what, when), *others = ranks.values(allow=("was interrupted",))
    assert what == "KeyboardInterrupt"
    assert when - pressed < 3
    assert {code for code, _ in others} == {"interrupted by rank 0"}


def leave_in_the_middle(me: Rank, how: str) -> str:
    with me.communicator() as ar:
        x = np.ones(10, np.float32)
        ar.all_reduce(x)
        if me.rank == WAITS:
            if how == "ctrl-c":
                raise KeyboardInterrupt
            raise SystemExit(0 if how == "done" else 143)
        try:
            ar.all_reduce(x)
        except SessionAborted as error:
            return error.code
    return "finished"


@pytest.mark.parametrize(
    ("how", "code"), [("ctrl-c", "interrupted"), ("sigterm", "interrupted"), ("done", "peer_closed")]
)
def test_who_is_stopped_between_operations_says_so(start: Starter, how: str, code: str) -> None:
    """Its peers would be told to count their collectives, when somebody pressed Ctrl-C."""
    ranks = start(leave_in_the_middle, 2, how=how)
    first, second = ranks.finish(allow=("was interrupted", "closed its session", "is late"))
    assert first.error is not None
    assert second.value == code


def test_other_signals_do_no_harm(start: Starter) -> None:
    """A program with signal handlers of its own (a profiler, a preemption notice) goes on where it was."""
    ranks = start(wait_for_the_other, 2)
    ranks.wait_for("ready")
    time.sleep(0.3)
    for _ in range(5):
        os.kill(ranks.pid(WAITS), signal.SIGUSR1)
        time.sleep(0.05)
    ranks.go([1])
    (what, _), (other, _) = ranks.values()
    assert (what, other) == ("finished, some signals handled", "finished, no signals handled")


def end_by_signal(me: Rank) -> tuple[str, int | None]:
    x = np.ones(100, np.float32)
    with me.communicator() as ar:
        ar.all_reduce(x)
        me.say("ready")
        with pytest.raises(SessionAborted) as caught:  # noqa: PT012  # one of many
            while True:
                ar.all_reduce(x)
        return type(caught.value).__name__, caught.value.culprit


def test_sigterm_ends_a_rank_and_the_others_name_it(start: Starter) -> None:
    """What launchers and container runtimes send first. Python has no handler for it: the process is gone at once."""
    ranks = start(end_by_signal, 3)
    ranks.wait_for("ready")
    ranks.dies(1)
    os.kill(ranks.pid(1), signal.SIGTERM)
    assert ranks.values(allow=("a peer's process is gone",)) == [("PeerDead", 1)] * 2
