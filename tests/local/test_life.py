"""Several communicators, threads, and resets: what long-lived programs do with their communicators."""

from __future__ import annotations

import threading
import time

import numpy as np
import pytest

from roce_ring.errors import PeerDead, RoceRingError, SessionAborted, SetupError
from tests.local.ranks import Rank, Starter

DEAD = (r"a peer's process is gone",)


def reset_without_the_dead(me: Rank, victim: int) -> str:
    x = np.ones(100, np.float32)
    with me.communicator() as ar:
        ar.all_reduce(x)
        me.say("running")
        with pytest.raises(PeerDead):  # noqa: PT012  # one of many
            while True:
                ar.all_reduce(x)
        began = time.monotonic()
        with pytest.raises(SetupError) as caught:
            ar.reset()
        assert time.monotonic() - began < 10
        with pytest.raises(RoceRingError) as closed:
            ar.all_reduce(x)
        assert closed.value.code == "closed"
        return caught.value.message


@pytest.mark.parametrize("victim", [0, 2])
def test_reset_cannot_bring_back_the_dead(start: Starter, victim: int) -> None:
    """A recovery loop calls reset() after every failure. When a rank is gone for good it says so and names it, at once
    and not after a minute, whether or not that rank hosted the rendezvous."""
    ranks = start(reset_without_the_dead, 3, victim=victim)
    ranks.wait_for("running")
    ranks.kill(victim)
    for message in ranks.values(allow=DEAD):
        assert f"rank {victim}" in message and "went away" in message, message


def two_communicators(me: Rank) -> None:
    address = me.address
    with me.communicator(name="tensor") as tensor:
        me.address = address.replace("meet", "meet-too")
        with me.communicator(name="expert", mode="ring") as expert:
            for n in range(50):
                assert (tensor.all_reduce(np.full(1000, n, np.float32)) == n * me.world).all()
                assert (expert.all_reduce(np.full(2000, -n, np.float32)) == -n * me.world).all()
            expert.session.control.abort("only this one")
            with pytest.raises(SessionAborted):  # noqa: PT012  # one of many
                while True:
                    expert.all_reduce(np.ones(10, np.float32))
            assert (tensor.all_reduce(np.ones(1000, np.float32)) == me.world).all()
            expert.reset()
            assert (expert.all_reduce(np.ones(10, np.float32)) == me.world).all()
        assert (tensor.all_reduce(np.ones(1000, np.float32)) == me.world).all()


def test_two_communicators_in_one_process(start: Starter) -> None:
    """Tensor and expert parallel groups live in one process; what happens to one does not touch the other."""
    start(two_communicators, 3).values(allow=("somebody asked this session to abort",))


def close_while_a_thread_waits(me: Rank) -> str:
    x = np.ones(100, np.float32)
    raised: list[RoceRingError] = []
    ar = me.communicator()
    ar.all_reduce(x)
    if me.rank != 0:
        me.wait()
        with pytest.raises(SessionAborted) as caught:
            ar.all_reduce(x)
        ar.close()
        return str(caught.value.culprit)

    def work() -> None:
        try:
            ar.all_reduce(x)
        except RoceRingError as error:
            raised.append(error)

    worker = threading.Thread(target=work)
    worker.start()
    time.sleep(0.3)
    began = time.monotonic()
    ar.close()
    worker.join(5)
    assert not worker.is_alive()
    assert time.monotonic() - began < 10
    assert raised, "the operation returned as if it had been done"
    me.say("closed")
    return str(raised[0])


def test_close_while_another_thread_waits_in_an_operation(start: Starter) -> None:
    """A server shuts down while its worker hangs in a collective: close() comes back, the worker is told why, and the
    peers that come later do not wait for it."""
    ranks = start(close_while_a_thread_waits, 2)
    ranks.wait_for("closed", [0])
    ranks.go([1])
    mine, theirs = ranks.values(allow=("somebody asked this session to abort", "closed its session while"))
    assert "the session was closed in the middle of an operation" in mine
    assert theirs == "0"


def watched_by_a_thread(me: Rank) -> int:
    stop, looks = threading.Event(), 0
    with me.communicator() as ar:

        def look() -> None:
            nonlocal looks
            while not stop.is_set():
                ar.check()
                state, stats = ar.session.control.state(), ar.session.control.stats()
                assert state.state == "RUNNING" and stats.last_seq_completed <= stats.last_seq_posted
                looks += 1

        watcher = threading.Thread(target=look)
        watcher.start()
        for n in range(300):
            assert (ar.all_reduce(np.full(500, n, np.float32)) == n * me.world).all()
        stop.set()
        watcher.join()
    return looks


def test_a_thread_may_look_while_another_works(start: Starter) -> None:
    """Health and metrics threads of an engine read state, counters and check() during operations."""
    assert all(looks > 10 for looks in start(watched_by_a_thread, 2).values())
