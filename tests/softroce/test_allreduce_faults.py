"""What goes wrong between ranks on real verbs: what heals in place, what ends a session, and who is named for it."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from mesh.model import Hca
from tests.softroce import byhand, faults
from tests.softroce.ranks import Ranks
from tests.softroce.ring import Node, Ring

pytestmark = pytest.mark.timeout(150)  # a few seconds each; ranks of a busy machine take ten times as long
DEAD_S = 3.0  # dead_peer_s of these sessions
LATER_S = 1.0  # a busy machine's ranks may say so this much later
QUICK = {"dead_peer_s": DEAD_S, "late_s": 0.3}
FOREVER = 1_000_000
TIME_S = 0.3  # of operations before something goes wrong
EDGE = r"s1 enp1s0f0np0 - s4 enp1s0f1np1 \(plane 0\)"  # the cable at rank 0's first port


@pytest.fixture(scope="module")
def ranks(planned_ring: Ring) -> Ranks:
    return Ranks(planned_ring)


def right(outcomes: list[dict[str, Any]], ops: int) -> None:
    seen = [(one["error"], one["ops"], one["wrong"]) for one in outcomes]
    assert seen == [(None, ops, 0)] * len(outcomes)


def port(ring: Ring, rank: int, index: int = 0) -> tuple[Node, Hca]:
    return ring.nodes[rank], ring.nodes[rank].plan.hcas[index]


def warned(outcomes: list[dict[str, Any]], pattern: str) -> list[str]:
    return [text for one in outcomes for _, level, text in one["log"] if level != "INFO" and re.search(pattern, text)]


@contextmanager
def impaired(ring: Ring, how: list[str]) -> Iterator[None]:
    """Rank r's ports all treat what leaves them as how[r] says."""
    ports = [port(ring, rank, index) for rank in range(len(how)) for index in range(4)]
    for node, hca in ports:
        faults.impair(node, hca, how[node.plan.rank])
    try:
        yield
    finally:
        for node, hca in ports:
            faults.heal(node, hca)


def ended_by(ranks: Ranks, fault: Callable[[], object], without: int | None = None) -> list[dict[str, Any]]:
    """Every rank's abort after `fault` struck a session that would have gone on: in time, and with no wrong value. (To
    close may take longer: Soft-RoCE does not let go of a queue pair whose frames are stuck in a dead port.)"""
    ranks.start(ops=FOREVER, bytes=65536, settings=QUICK)
    ranks.connected()
    time.sleep(TIME_S)
    fault()
    began = time.time()
    outcomes = ranks.finish(without=without)
    assert [one["wrong"] for one in outcomes] == [0] * len(outcomes)
    aborts: list[dict[str, Any]] = [one["aborts"][0] for one in outcomes]
    assert all(one["at"] - began < DEAD_S + LATER_S for one in aborts), (began, aborts)
    return aborts


def test_loss_duplicates_and_delay_cost_time_and_nothing_else(ring: Ring, ranks: Ranks) -> None:
    treatment = ["loss 2%", "duplicate 10%", "delay 2ms", "loss 1% duplicate 2% delay 1ms"]
    with impaired(ring, treatment):
        modes = ["full", "payload_rsag", "ring", "halving"]
        right(ranks.run(ops=80, bytes=40000, modes=modes, settings={"dead_peer_s": 2.0}), 80)


def test_a_second_of_silence_heals_in_place_and_is_reported(ring: Ring, ranks: Ranks) -> None:
    ranks.start(ops=200, bytes=4096, settings=QUICK)
    ranks.connected()
    faults.impair(*port(ring, 0), "loss 100%")
    time.sleep(1)
    faults.heal(*port(ring, 0))
    outcomes = ranks.finish()
    right(outcomes, 200)
    assert warned(outcomes, r"is late")


def test_a_cable_pulled_for_a_second_heals_in_place_and_is_reported(ring: Ring, ranks: Ranks) -> None:
    """Both ports are down, both ends try again, and the operation under way completes when the link is back."""
    ranks.start(ops=200, bytes=65536, settings=QUICK)
    ranks.connected()
    faults.unplug_for(*port(ring, 0), 1.0).wait().check()
    outcomes = ranks.finish()
    right(outcomes, 200)
    for rank in (0, 3):
        assert warned([outcomes[rank]], EDGE)


def test_a_cable_pulled_for_good_ends_all_ranks_naming_edge_and_plane(ring: Ring, ranks: Ranks) -> None:
    aborts = ended_by(ranks, lambda: faults.unplug(*port(ring, 0)))
    faults.plug(*port(ring, 0))
    assert all(re.search(EDGE, one["message"]) for one in aborts), aborts
    right(ranks.run(ops=5, bytes=65536), 5)


def test_silence_for_good_ends_all_ranks_naming_edge_and_plane(ring: Ring, ranks: Ranks) -> None:
    aborts = ended_by(ranks, lambda: faults.impair(*port(ring, 0), "loss 100%"))
    faults.heal(*port(ring, 0))
    assert all(re.search(r"s1 enp1s0f0np0 - .*\(plane 0\)", one["message"]) for one in aborts), aborts


def test_a_port_that_an_administrator_takes_down_ends_all_ranks_at_once(ring: Ring, ranks: Ranks) -> None:
    """Its routes go with it, so Soft-RoCE cannot even try again. A new session is the way on: here the ranks make one
    when the port is back, and repeat the operation."""
    ranks.start(ops=300, bytes=65536, settings=QUICK, resets=2.5)
    ranks.connected()
    faults.link_down(*port(ring, 0))
    time.sleep(0.5)
    faults.link_up(*port(ring, 0))
    byhand.again(ring.nodes[0])
    outcomes = ranks.finish()
    right(outcomes, 300)
    for one in outcomes:
        assert len(one["aborts"]) == 1 and "(plane 0)" in one["aborts"][0]["message"], one["aborts"]


def test_a_session_after_a_flap_that_moved_the_gid_connects(ring: Ring, ranks: Ranks) -> None:
    node, hca = port(ring, 0)
    before = node.gid_index(hca)
    faults.move_gid(node, hca)
    assert node.gid_index(hca) != before
    byhand.again(node)
    outcomes = ranks.run(ops=20, bytes=65536, settings=QUICK)
    right(outcomes, 20)
    assert not warned(outcomes, "paths")


def test_a_killed_rank_is_named_by_all_others(ring: Ring, ranks: Ranks) -> None:
    """Its host lives and its links are up: only its silence tells."""
    aborts = ended_by(ranks, lambda: ranks.kill(2), without=2)
    assert [one["culprit"] for one in aborts] == [2, 2, 2], aborts
