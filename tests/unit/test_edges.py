"""A failed path or cable has one name on all ranks, whoever saw it and from whichever end."""

from __future__ import annotations

from pathlib import Path

import pytest

from mesh.loading import load_facts
from mesh.planner import make_plan
from roce_ring.edges import Edges
from roce_ring.errors import SetupError
from roce_ring.exchange import agree
from roce_ring.litmus import Proof
from roce_ring.native import native
from roce_ring.verdict import place, verdict

EXAMPLES = Path(__file__).resolve().parents[2] / "mesh" / "examples"


@pytest.fixture(params=["four-spark-ring", "six-ring", "pair-two-cables", "pair-one-cable"])
def edges(request: pytest.FixtureRequest) -> Edges:
    return Edges.of_plan(make_plan(load_facts(EXAMPLES / f"{request.param}.yaml"))[0])


def test_both_ends_of_a_cable_give_it_one_name(edges: Edges) -> None:
    names = list(edges.cables.values())
    assert names and all(names.count(name) == 2 for name in names)
    for (rank, hca), name in edges.cables.items():
        assert edges.port(rank, hca) in name and "(plane " in name


def test_every_path_has_a_name_of_its_own_from_either_end(edges: Edges) -> None:
    names = [name for names in edges.paths.values() for name in names]
    assert len(set(names)) == len(names)
    for (low, high), planned in edges.paths.items():
        assert [edges.path(high, low, i) for i in range(len(planned))] == list(planned)


def word(reason: str, culprit: int, phase: int, path: int) -> int:
    return native().reasons[reason] | culprit << 8 | phase << 16 | path << 24 | 7 << 32


def test_all_words_for_one_failure_say_the_same() -> None:
    edges = Edges.of_plan(make_plan(load_facts(EXAMPLES / "four-spark-ring.yaml"))[0])
    cable = [end for end, name in edges.cables.items() if name == edges.cables[0, 0]]
    assert len(cable) == 2
    down = {place(word("LINK_DOWN", rank, 0, hca), edges, None) for rank, hca in cable}
    assert down == {edges.cables[0, 0]}
    # the first planned path between 0 and 2 is out of use: the session's path 0 is the second
    proof = Proof(False, {(0, 2): (1,), (0, 1): (0, 1)}, {}, "")
    failed = {place(word("QP_ERROR", a, b, 0), edges, proof) for a, b in ((0, 2), (2, 0))}
    assert failed == {edges.paths[0, 2][1]}
    seen = verdict(word("QP_ERROR", 0, 2, 0), 3, "", failed.pop())
    assert seen.culprit is None and edges.paths[0, 2][1] in seen.message and "seen by rank 3" in seen.message


def test_without_a_plan_things_go_by_number() -> None:
    edges = Edges()
    assert edges.path(3, 1, 0) == "path 0 between ranks 1 and 3"
    assert edges.cable(2, 1) == "the cable at HCA 1 of rank 2"


def test_a_word_that_names_no_planned_path_still_makes_a_sentence() -> None:
    """It comes from a peer."""
    proof = Proof(False, {(0, 1): (0,)}, {}, "")
    for a, b in ((0, 0), (1, 3), (255, 2)):
        assert place(word("QP_ERROR", a, b, 9), Edges(), proof).startswith("path 9 between ranks ")


class _OtherPlan:
    """An exchange with one peer, which says the same but for a late digit of the hash."""

    rank, world = 0, 2

    def all_gather(self, payload: bytes, timeout_s: float) -> list[bytes]:
        return [payload, payload.replace(b"a" * 60 + b"bbbb", b"a" * 60 + b"bbbc")]

    def barrier(self, timeout_s: float) -> None: ...

    def close(self) -> None: ...


def test_plans_that_differ_late_in_their_hash_are_told_apart() -> None:
    agree(_OtherPlan(), {"plan hash": "a" * 64})
    with pytest.raises(SetupError, match=r"rank 0 says a{60}bbbb \| rank 1 says a{60}bbbc"):
        agree(_OtherPlan(), {"plan hash": "a" * 60 + "bbbb"})
