"""The rendezvous' rules, without a network: threads call the meeting directly."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest

from roce_ring.control.meeting import ExchangeError, Identity, Meeting


def who(rank: int, world: int = 3, job: str = "a") -> Identity:
    return Identity(job, rank, world, f"spark-{rank}", 100 + rank)


def everywhere(calls: list[Callable[[], object]]) -> list[object]:
    """Runs the calls at once; an ExchangeError is returned, not raised."""

    def one(call: Callable[[], object]) -> object:
        try:
            return call()
        except ExchangeError as error:
            return error

    with ThreadPoolExecutor(len(calls)) as pool:
        return list(pool.map(one, calls))


def meet(world: int = 3) -> tuple[Meeting, list[bytes]]:
    meeting = Meeting("a", world, "unix:/x")
    return meeting, [meeting.join(who(rank, world)) for rank in range(world)]


def test_everybody_gets_everybodys_bytes_in_rank_order_round_after_round() -> None:
    meeting, tokens = meet()

    def three_rounds(rank: int) -> list[list[bytes]]:
        return [meeting.all_gather(tokens[rank], number, bytes([rank, number]), 5) for number in range(3)]

    expected = [[bytes([rank, number]) for rank in range(3)] for number in range(3)]
    assert everywhere([lambda rank=rank: three_rounds(rank) for rank in (2, 0, 1)]) == [expected] * 3  # type: ignore[misc]
    assert not meeting._rounds, "finished rounds must not pile up"


def test_a_missing_rank_is_named_on_every_rank_and_stays_failed() -> None:
    meeting, tokens = meet()
    errors = everywhere([lambda t=t: meeting.all_gather(t, 0, b"", 0.2) for t in tokens[:2]])  # type: ignore[misc]
    for error in errors:
        assert isinstance(error, ExchangeError)
        assert error.message.startswith("rank 2 did not arrive within 0.2 s; arrived: 0, 1")
        assert "rank 2 joined before and did not come to this step" in error.message
    # rank 2 comes after all and must not go on alone
    with pytest.raises(ExchangeError, match=r"rank 2 did not arrive within 0\.2 s"):
        meeting.all_gather(tokens[2], 0, b"", 5)


def test_a_rank_that_leaves_fails_the_others_at_once() -> None:
    meeting, tokens = meet()
    threading.Timer(0.1, meeting.leave, (tokens[2], "went away")).start()
    began = time.monotonic()
    errors = everywhere([lambda t=t: meeting.all_gather(t, 0, b"", 30) for t in tokens[:2]])  # type: ignore[misc]
    assert time.monotonic() - began < 5
    assert {error.message for error in errors if isinstance(error, ExchangeError)} == {
        "rank 2 (pid 102 on spark-2) went away"
    }


def test_a_rank_that_leaves_after_its_last_round_harms_nobody() -> None:
    """Whoever is done first closes first."""
    meeting, tokens = meet()

    def last(token: bytes) -> list[bytes]:
        out = meeting.all_gather(token, 0, b"x", 5)
        meeting.leave(token, "closed the exchange")
        return out

    assert everywhere([lambda t=t: last(t) for t in tokens]) == [[b"x"] * 3] * 3  # type: ignore[misc]


def test_a_stray_of_another_job_is_refused_and_the_job_goes_on() -> None:
    meeting = Meeting("a", 3, "unix:/x")
    meeting.join(who(0))
    with pytest.raises(
        ExchangeError, match=r"unix:/x belongs to job 'a' \(rank 0: pid 100 on spark-0\), not to job 'b'"
    ):
        meeting.join(who(1, job="b"))
    meeting.join(who(1))


def test_a_rank_that_joins_twice_fails_all() -> None:
    meeting = Meeting("a", 3, "unix:/x")
    token = meeting.join(who(0))
    meeting.join(who(1))
    twice = "rank 1 joined twice: pid 101 on spark-1 and pid 7 on spark-9"
    with pytest.raises(ExchangeError, match=twice):
        meeting.join(Identity("a", 1, 3, "spark-9", 7))
    for late in (lambda: meeting.all_gather(token, 0, b"", 5), lambda: meeting.join(who(2))):
        with pytest.raises(ExchangeError, match=twice):
            late()


def test_a_process_that_joins_twice_is_told_that_it_is_one_process() -> None:
    """Two communicators in one program at one address: "pid 7 and pid 7" would send the user looking for another."""
    meeting = Meeting("a", 2, "unix:/x")
    meeting.join(who(0, 2))
    with pytest.raises(ExchangeError, match="rank 0 joined twice: pid 100 on spark-0, both times") as caught:
        meeting.join(who(0, 2))
    assert "an address and a ROCE_RING_NAME of its own" in caught.value.hint


def test_a_second_copy_of_a_running_job_is_refused_alone() -> None:
    """Somebody starts the job again by mistake: the running one must not notice."""
    meeting, tokens = meet()
    everywhere([lambda t=t: meeting.all_gather(t, 0, b"", 5) for t in tokens])  # type: ignore[misc]
    with pytest.raises(ExchangeError, match=r"joined twice.*the first one's job is complete and goes on"):
        meeting.join(Identity("a", 1, 3, "spark-9", 7))
    assert everywhere([lambda t=t: meeting.all_gather(t, 1, b"y", 5) for t in tokens]) == [[b"y"] * 3] * 3  # type: ignore[misc]


def test_different_world_sizes_fail_all_with_one_sentence() -> None:
    meeting = Meeting("a", 3, "unix:/x")
    token = meeting.join(who(0))
    meeting.join(who(1))
    with pytest.raises(ExchangeError, match="world sizes differ: ranks 0, 1 say 3; rank 2 says 4"):
        meeting.join(who(2, world=4))
    with pytest.raises(ExchangeError, match="world sizes differ"):
        meeting.all_gather(token, 0, b"", 5)


def test_a_process_that_never_joined_gets_nothing() -> None:
    meeting, _ = meet()
    with pytest.raises(ExchangeError, match="has not joined"):
        meeting.all_gather(b"guess", 0, b"", 1)
