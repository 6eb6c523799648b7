"""Ranks that do not fit together. Before they start: every rank fails, with the table of what differs. While they run:
the user's mistake gets a name instead of a hang or a wrong sum."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from tests.local.ranks import MEETING_S, Failure, Rank, Starter

ODD_ONE = 2


def come_together(
    me: Rank,
    settings: dict[str, Any] | None = None,
    version: str = "",
    plan_hash: str = "",
    order: tuple[int, ...] = (),
    topology_rank: int = -1,
    first_seq: int = 0,
) -> None:
    """What a rank says of itself, with what the test makes of it."""
    import roce_ring.session
    from roce_ring.communicator import AllReduce
    from roce_ring.exchange import RendezvousExchange
    from roce_ring.topology import Topology

    if version:
        roce_ring.session.__version__ = version
    topology = Topology.local(me.rank if topology_rank < 0 else topology_rank, me.world)
    topology = replace(topology, plan_hash=plan_hash, order=order or topology.order)
    exchange = RendezvousExchange(me.address, me.rank, me.world, timeout_s=MEETING_S)
    try:
        AllReduce(exchange, me.settings(**settings or {}), topology, first_seq=first_seq).close()
    finally:
        exchange.close()


def table_of(error: Failure) -> list[str]:
    first, *rows = error.message.splitlines()
    assert "ranks differ in" in first, error.message
    assert error.type == "SetupError"
    return [" | ".join(cell.strip() for cell in row.split("|")) for row in rows]


@pytest.mark.parametrize(
    ("odd", "rows"),
    [
        (
            {"settings": {"max_bytes": 65536}},
            ["max_bytes | ranks 0, 1, 3 say 1048576 | rank 2 says 65536"],
        ),
        (
            {"settings": {"gather_bytes": 4096}},
            ["gather_bytes | ranks 0, 1, 3 say the same as max_bytes | rank 2 says 4096"],
        ),
        ({"settings": {"mode": "ring"}}, ["mode | ranks 0, 1, 3 say auto | rank 2 says ring"]),
        ({"settings": {"stripe_min_bytes": 0}}, ["stripe_min_bytes | ranks 0, 1, 3 say 32768 | rank 2 says 0"]),
        ({"settings": {"peer_timeout_s": 60.0}}, ["peer_timeout_s | ranks 0, 1, 3 say 300.0 | rank 2 says 60.0"]),
        ({"settings": {"provider": "shm"}}, ["provider | ranks 0, 1, 3 say auto | rank 2 says shm"]),
        ({"version": "0.0.9"}, ["version | ranks 0, 1, 3 say {version} | rank 2 says 0.0.9"]),
        ({"plan_hash": "0123456789abcdef" * 4}, ["plan hash | ranks 0, 1, 3 say none | rank 2 says 0123456789ab"]),
        ({"order": (0, 2, 1, 3)}, ["ring order | ranks 0, 1, 3 say 0,1,2,3 | rank 2 says 0,2,1,3"]),
        ({"first_seq": 7}, ["first sequence | ranks 0, 1, 3 say 0 | rank 2 says 7"]),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else "",
)
def test_what_differs_is_shown_on_every_rank(start: Starter, odd: dict[str, Any], rows: list[str]) -> None:
    """One node has an old wheel, another plan, another environment: all ranks say which and what, and none hangs."""
    from roce_ring import __version__

    errors = start(come_together, 4, per_rank={ODD_ONE: odd}).errors()
    assert len({error.message for error in errors}) == 1, "ranks tell different stories"
    table = table_of(errors[0])
    assert table == [row.format(version=__version__) for row in rows], "what follows from a difference is not another"
    assert "start all ranks again" in errors[0].hint


def test_a_rank_with_another_ranks_plan(start: Starter) -> None:
    """Two nodes with one node's plan file: said by all, though only one knows."""
    for error in start(come_together, 3, per_rank={1: {"topology_rank": 2}}).errors():
        assert error.type == "SetupError"
        assert "rank 1: the plan is for rank 2 of 3, the exchange says rank 1 of 3" in error.message


def meet_as(me: Rank, rank: int = -1, claimed_world: int = 0, name: str = "local") -> None:
    from roce_ring.communicator import AllReduce

    rank, world = me.rank if rank < 0 else rank, claimed_world or me.world
    AllReduce.from_rendezvous(me.address, rank, world, timeout_s=3.0, settings=me.settings(name=name)).close()


def test_two_processes_say_that_they_are_the_same_rank(start: Starter) -> None:
    """A launcher's typo. Both, and everybody else, hear which rank and which processes."""
    ranks = start(meet_as, 3, per_rank={2: {"rank": 1}})
    pids = [ranks.pid(1), ranks.pid(2)]
    for error in ranks.errors():
        assert "SetupError" in error.family
        assert "rank 1 joined twice" in error.message, error.message
        assert all(f"pid {pid}" in error.message for pid in pids), error.message


def test_world_sizes_differ(start: Starter) -> None:
    """One node was started with the old --nnodes."""
    for error in start(meet_as, 3, per_rank={ODD_ONE: {"claimed_world": 4}}).errors():
        assert "SetupError" in error.family
        assert "world sizes differ" in error.message and "rank 2 says 4" in error.message, error.message


def test_a_rank_of_another_job_does_no_harm(start: Starter) -> None:
    """A left-over process of yesterday's job calls at today's address: it is turned away, today's job goes on."""
    stray = {"rank": 1, "name": "yesterday"}
    outcomes = start(meet_as, 3, claimed_world=2, per_rank={2: stray}).finish()
    assert [one.error is None for one in outcomes] == [True, True, False]
    assert outcomes[2].error and "belongs to job 'local'" in outcomes[2].error.message


def test_a_mode_that_this_world_cannot_run(start: Starter) -> None:
    """ROCE_RING_MODE=halving with three ranks: refused at start, by all, and nothing stays behind."""
    for error in start(come_together, 3, settings={"mode": "halving"}).errors():
        assert error.type == "SetupError", error.traceback
        assert "mode halving needs a world that is a power of two; this one is 3" in error.message


@pytest.mark.parametrize("world", [1, 17])
def test_a_world_without_a_ring(start: Starter, world: int) -> None:
    """world 1 needs no communicator and 17 has no layout; both are a sentence, before anybody waits for anybody."""
    [outcome] = start(meet_as, 1, claimed_world=world).finish()
    assert outcome.error and outcome.error.type in ("ConfigError", "SetupError"), outcome
    assert f"world is {world}" in outcome.error.message


# ---- while they run ----

Call = Callable[[Any, int], Any]

# What rank ODD_ONE does while the others reduce 3000 elements in mode full.
ODD_CALLS: dict[str, Call] = {
    "smaller": lambda ar, n: ar.all_reduce(np.ones(n - 1, np.float32)),
    "larger": lambda ar, n: ar.all_reduce(np.ones(2 * n, np.float32)),
    "same bytes, other dtype": lambda ar, n: ar.all_reduce(np.ones(2 * n, np.float16)),
    "other mode": lambda ar, n: ar.all_reduce(np.ones(n, np.float32), mode="ring"),
    "all_gather": lambda ar, n: ar.all_gather(np.ones(n, np.float32)),
    "same elements, other shape": lambda ar, n: ar.all_reduce(np.ones((2, n // 2), np.float32)),
    "reduce_scatter": lambda ar, n: ar.reduce_scatter(np.ones((4, n // 4), np.float32)),
}


def one_call_is_odd(me: Rank, call: str) -> int:
    elements = 3000
    with me.communicator() as ar:
        for _ in range(20):
            assert (ar.all_reduce(np.ones(elements, np.float32)) == me.world).all()
        for n in range(20):
            if me.rank == ODD_ONE and n == 0:
                ODD_CALLS[call](ar, elements)
            else:
                got = ar.all_reduce(np.ones(elements, np.float32))
                assert (got == me.world).all(), "a wrong sum went unnoticed"
    return 0


@pytest.mark.parametrize("call", list(ODD_CALLS))
def test_ranks_that_call_different_collectives(start: Starter, call: str) -> None:
    """`if rank == 0: extra_all_reduce()`, or a batch that is larger on one rank. Silently wrong sums would be the worst
    answer and a hang for peer_timeout_s the second worst: everybody is told what kind of mistake to look for."""
    for error in start(one_call_is_odd, 4, call=call).errors(allow=("ran another collective",)):
        assert "SessionAborted" in error.family, error.traceback
        assert error.code == "op_mismatch", error.message
        assert "the same collectives in the same order" in error.hint
        assert "ran an all_" in error.message or "ran a reduce_scatter" in error.message, (
            "what this rank ran is not said"
        )
        assert error.culprit is None and re.match(rf"ranks (\d and {ODD_ONE}|{ODD_ONE} and \d) disagree", error.message)


def gathers_another_dtype(me: Rank) -> None:
    with me.communicator() as ar:
        dtype = np.int32 if me.rank == ODD_ONE else np.float32
        ar.all_gather(np.ones(10, dtype))
        raise AssertionError("bytes of two dtypes were put side by side")


def test_a_gather_of_two_dtypes_of_one_size(start: Starter) -> None:
    """An all-gather only moves bytes, so nothing but the digest can notice that they mean different things."""
    for error in start(gathers_another_dtype, 3).errors(allow=("ran another collective",)):
        assert error.code == "op_mismatch", error.message
        assert re.search(r"rank \d ran an all_gather of 1 row\(s\) of 40, 40, 40 bytes", error.message)


def one_rank_does_more(me: Rank) -> None:
    with me.communicator(late_s=0.3, peer_timeout_s=1.5) as ar:
        for _ in range(10 + (me.rank == ODD_ONE)):
            ar.all_reduce(np.ones(100, np.float32))
        me.wait()


def test_a_rank_that_calls_once_more_than_the_others(start: Starter) -> None:
    """The others are busy elsewhere and do not close: late, then the deadline, naming a rank that did not call."""
    ranks = start(one_rank_does_more, 4)
    ranks.wait_for_end(ODD_ONE)
    ranks.go([0, 1, 3])
    outcomes = ranks.finish(allow=("is late", "came after", "hard deadline"))
    error = outcomes[ODD_ONE].error
    assert error and error.type == "PeerTimeout" and error.culprit in (0, 1, 3)
    assert outcomes[ODD_ONE].said("is late")
