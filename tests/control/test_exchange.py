"""Ranks that meet over gRPC: real servers, sockets and, where it matters, real processes."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from roce_ring.errors import ConfigError, RoceRingError, SetupError
from roce_ring.exchange import Exchange, ExchangeError, RendezvousExchange, agree, gather_errors


@pytest.fixture(autouse=True)
def short_linger(monkeypatch: pytest.MonkeyPatch) -> None:
    """A failed rank 0 stays a while for ranks that come late; here nobody does, except where a test says so."""
    monkeypatch.setattr("roce_ring.control.rendezvous._FAILED_LINGER_S", 0.3)


@pytest.fixture(params=["unix", "tcp"])
def address(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "unix":
        return f"unix:{tmp_path}/meet.sock"
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return f"127.0.0.1:{free.getsockname()[1]}"


def in_threads(calls: list[Callable[[], object]]) -> list[object]:
    def one(call: Callable[[], object]) -> object:
        try:
            return call()
        except RoceRingError as error:
            return error

    with ThreadPoolExecutor(len(calls)) as pool:
        return list(pool.map(one, calls))


def on_ranks(
    address: str, world: int, body: Callable[[Exchange], object], delays: dict[int, float] | None = None
) -> list[object]:
    """body(exchange) on every rank, each in a thread; errors come back as values."""

    def rank(number: int) -> object:
        time.sleep((delays or {}).get(number, 0))
        exchange = RendezvousExchange(address, number, world, timeout_s=10)
        try:
            return body(exchange)
        finally:
            exchange.close()

    return in_threads([lambda number=number: rank(number) for number in range(world)])  # type: ignore[misc]


@pytest.mark.parametrize("late", [0, 2])
def test_ranks_meet_in_any_order_and_exchange(address: str, late: int) -> None:
    def body(exchange: Exchange) -> list[bytes]:
        exchange.barrier(5)
        return exchange.all_gather(f"from {exchange.rank}".encode(), 5)

    assert on_ranks(address, 3, body, {late: 0.4}) == [[b"from 0", b"from 1", b"from 2"]] * 3


def test_a_world_of_one_needs_nobody() -> None:
    exchange = RendezvousExchange("unix:/nonexistent/x", 0, 1)
    assert exchange.all_gather(b"x", 1) == [b"x"]
    agree(exchange, {"version": "1"})
    gather_errors(exchange, None)
    exchange.close()


def test_large_payloads_fit_and_larger_ones_are_refused_before_anything_is_sent(address: str) -> None:
    def body(exchange: Exchange) -> int:
        with pytest.raises(ConfigError, match="payload has 1048577 bytes, the limit is 1048576"):
            exchange.all_gather(b"x" * (1 << 20) + b"x", 5)
        return sum(map(len, exchange.all_gather(b"x" * (1 << 20), 10)))

    assert on_ranks(address, 3, body) == [3 << 20] * 3


def test_a_missing_rank_is_named_on_all_ranks(address: str) -> None:
    errors = in_threads([lambda r=r: RendezvousExchange(address, r, 4, timeout_s=1) for r in (0, 1, 2)])  # type: ignore[misc]
    for error in errors:
        assert isinstance(error, ExchangeError)
        assert "rank 3 did not arrive within 1 s; arrived: 0, 1, 2" in error.message


def test_a_missing_rank_0_is_named_with_the_address(address: str) -> None:
    errors = in_threads([lambda r=r: RendezvousExchange(address, r, 3, timeout_s=0.5) for r in (1, 2)])  # type: ignore[misc]
    for error in errors:
        assert isinstance(error, ExchangeError)
        assert error.message == f"rank 0 did not arrive within 0.5 s: nobody answers at address {address}"
        assert error.hint.startswith("read rank 0's log: it may have stopped before it listened")


def test_a_duplicate_rank_is_one_sentence_on_all_ranks(address: str) -> None:
    errors = in_threads([lambda r=r: RendezvousExchange(address, r, 3, timeout_s=5) for r in (0, 1, 1)])  # type: ignore[misc]
    assert [str(error).startswith("rank 1 joined twice: pid") for error in errors] == [True] * 3


def test_two_processes_that_both_think_they_are_rank_0(address: str) -> None:
    errors = in_threads([lambda r=r: RendezvousExchange(address, r, 3, timeout_s=5) for r in (0, 0, 1)])  # type: ignore[misc]
    assert [str(error).startswith("rank 0 joined twice: pid") for error in errors] == [True] * 3


def test_different_world_sizes_are_one_sentence_on_all_ranks(address: str) -> None:
    calls = [lambda r=r, w=w: RendezvousExchange(address, r, w, timeout_s=5) for r, w in ((0, 3), (1, 3), (2, 4))]  # type: ignore[misc]
    for error in in_threads(calls):
        assert str(error).startswith("world sizes differ: rank")
        assert "rank 2 says 4" in str(error)


def test_a_second_job_on_the_address_is_told_whose_it_is_and_the_first_goes_on(address: str) -> None:
    first = in_threads([lambda r=r: RendezvousExchange(address, r, 2, job="first", timeout_s=5) for r in (0, 1)])  # type: ignore[misc]
    second = in_threads([lambda r=r: RendezvousExchange(address, r, 2, job="second", timeout_s=5) for r in (0, 1)])  # type: ignore[misc]
    for error in second:
        assert f"address {address} belongs to job 'first' (rank 0: pid {os.getpid()} on" in str(error)
        assert "not to job 'second'" in str(error)
    assert in_threads([lambda e=e: e.all_gather(b"x", 5) for e in first]) == [[b"x"] * 2] * 2  # type: ignore[misc, attr-defined]
    for exchange in first:
        exchange.close()  # type: ignore[attr-defined]


def test_an_address_that_something_else_serves_is_refused() -> None:
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        with pytest.raises(ExchangeError, match=r"rank 0 cannot listen on 127\.0\.0\.1:\d+: address already in use"):
            RendezvousExchange(f"127.0.0.1:{other.getsockname()[1]}", 0, 2, timeout_s=0.5)


class Talker:
    """A program that is not ours: it answers whoever connects with `words`, until closed."""

    def __init__(self, address: str, words: bytes) -> None:
        family = socket.AF_UNIX if address.startswith("unix:") else socket.AF_INET
        where = address.removeprefix("unix:") if family == socket.AF_UNIX else ("127.0.0.1", int(address.split(":")[1]))
        self._listener = socket.socket(family)
        self._listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self._listener.bind(where)
        self._listener.listen()
        threading.Thread(target=self._serve, args=(words,), daemon=True).start()

    def _serve(self, words: bytes) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            with client:
                client.sendall(words)
                client.settimeout(0.2)
                with contextlib.suppress(OSError):
                    while client.recv(100):
                        pass

    def close(self) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()


@pytest.mark.parametrize(
    ("words", "shown"),
    [
        (b"HTTP/1.0 505 Invalid HTTP version\r\n\r\n<html>", "HTTP/1.0 505"),
        (b"SSH-2.0-OpenSSH_9.6\r\n", "SSH-2.0-OpenSSH_9.6"),
    ],
)
def test_another_program_at_the_address_is_said_soon(address: str, words: bytes, shown: str) -> None:
    """A typo in the port leads to somebody's web server: "nobody answers", a minute later, would be wrong twice."""
    other = Talker(address, words)
    began = time.monotonic()
    try:
        with pytest.raises(ExchangeError) as caught:
            RendezvousExchange(address, 1, 2, timeout_s=30)
    finally:
        other.close()
    assert time.monotonic() - began < 10
    assert f"another program serves address {address}, not a rank 0 of roce-ring: it says '{shown}" in str(caught.value)
    assert "give this job another address" in caught.value.hint


def test_another_grpc_program_at_the_address_is_said(serve: Any) -> None:
    """For example the control socket of a rank, pasted as the rendezvous."""
    _, server = serve()
    with pytest.raises(
        ExchangeError, match=r"another program serves address .*: it speaks gRPC, but knows no rendezvous"
    ):
        RendezvousExchange(f"unix:{server.path}", 1, 2, timeout_s=10)


def test_a_rank_that_comes_after_the_failure_hears_the_same_sentence(
    address: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("roce_ring.control.rendezvous._FAILED_LINGER_S", 3)

    def late() -> object:
        time.sleep(1)
        return RendezvousExchange(address, 2, 3, timeout_s=5)

    early = [lambda r=r: RendezvousExchange(address, r, 3, timeout_s=0.5) for r in (0, 1)]  # type: ignore[misc]
    errors = in_threads([*early, late])
    assert {str(error).partition(";")[0] for error in errors} == {"rank 2 did not arrive within 0.5 s"}


@pytest.mark.parametrize("victim", [0, 2])
@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGSTOP])
def test_a_rank_that_dies_or_stops_during_set_up_is_named_by_all_others(
    tmp_path: Path, victim: int, how: signal.Signals
) -> None:
    """Real processes: three ranks meet, one is killed or stopped, the others wait for it in the next step."""
    program = (
        "import sys, time\n"
        "from roce_ring.control import rendezvous\n"
        "from roce_ring.exchange import ExchangeError, RendezvousExchange\n"
        "rendezvous._FAILED_LINGER_S = 0.2\n"
        f"e = RendezvousExchange('unix:{tmp_path}/meet.sock', int(sys.argv[1]), 3, timeout_s=20)\n"
        "print('met', flush=True)\n"
        f"time.sleep(60 if sys.argv[1] == '{victim}' else 0.5)\n"
        "try:\n    e.barrier(1)\n"
        "except ExchangeError as error:\n    print(error.message, flush=True)\n"
        "e.close()\n"
    )
    ranks = [
        subprocess.Popen(
            [sys.executable, "-c", program, str(r)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        for r in range(3)
    ]
    try:
        assert [p.stdout.readline() for p in ranks if p.stdout] == ["met\n"] * 3
        ranks[victim].send_signal(how)
        began = time.monotonic()
        for r, process in enumerate(ranks):
            if r != victim:
                out, err = process.communicate(timeout=15)
                assert out.startswith(f"rank {victim} "), (out, err)
                assert err == ""
        assert time.monotonic() - began < 10
    finally:
        for process in ranks:
            process.kill()
            process.communicate()


def test_a_rank_0_that_raises_without_closing_still_ends_and_is_named(tmp_path: Path) -> None:
    """Its threads serve the others, who wait for it: they must neither keep its process alive nor wait in vain."""
    program = (
        "import sys\n"
        "from roce_ring.exchange import ExchangeError, RendezvousExchange\n"
        f"e = RendezvousExchange('unix:{tmp_path}/meet.sock', int(sys.argv[1]), 2, timeout_s=20)\n"
        "if sys.argv[1] == '0':\n    import time; time.sleep(0.5); 1 // 0\n"
        "try:\n    e.barrier(50)\n"
        "except ExchangeError as error:\n    print(error.message)\n"
    )
    ranks = [
        subprocess.Popen(
            [sys.executable, "-c", program, str(r)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        for r in range(2)
    ]
    try:
        assert "ZeroDivisionError" in ranks[0].communicate(timeout=20)[1]
        sentence = f"rank 0 went away: it hosted the rendezvous at unix:{tmp_path}/meet.sock\n"
        assert ranks[1].communicate(timeout=20) == (sentence, "")
    finally:
        for process in ranks:
            process.kill()
            process.communicate()


def test_a_rendezvous_in_a_directory_that_does_not_exist_is_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(SetupError, match=r"cannot open lock file .*/none/meet\.sock\.lock: no such file or directory"):
        RendezvousExchange(f"unix:{tmp_path}/none/meet.sock", 0, 2, timeout_s=5)


@pytest.mark.parametrize(
    ("address", "sentence"),
    [
        ("10.0.0.1:29400", "leaves this host, and without mutual TLS anybody could take part"),
        ("spark-a:29400", "leaves this host"),
        ("0.0.0.0:29400", "is every interface of this host: name the management address"),
        ("[::]:29400", "is every interface"),
        ("unix:relative", "expected unix: and an absolute path"),
        ("127.0.0.1", "expected unix:/path or host:port"),
        ("127.0.0.1:0", "expected unix:/path or host:port"),
        ("127.0.0.1:70000", "expected unix:/path or host:port"),
        ("http://x:1", "expected unix:/path or host:port"),
        ("", "expected unix:/path or host:port"),
    ],
)
def test_addresses_that_cannot_be_or_are_not_protected_are_refused(address: str, sentence: str) -> None:
    with pytest.raises(ConfigError) as caught:
        RendezvousExchange(address, 0, 2)
    assert sentence in caught.value.message


def test_all_wrong_arguments_are_listed_together() -> None:
    with pytest.raises(ConfigError) as caught:
        RendezvousExchange("127.0.0.1:29400", 4, 4, job="", timeout_s=0)
    for part in ("rank is 4, expected 0 to 3", "job is ''", "timeout_s is 0"):
        assert part in caught.value.message


def test_agree_shows_on_every_rank_who_says_what(address: str) -> None:
    def body(exchange: Exchange) -> None:
        facts: dict[str, str | int] = {"version": "0.1.0", "max_bytes": 262144, "plan_hash": "9c1f2a"}
        if exchange.rank == 2:
            facts |= {"max_bytes": 81920, "extra": "x"}
        agree(exchange, facts, 5)

    errors = on_ranks(address, 4, body)
    assert len({str(error) for error in errors}) == 1
    assert isinstance(errors[0], SetupError)
    assert errors[0].message.splitlines() == [
        "ranks differ in 2 of 4 facts, so no rank started:",
        "  max_bytes | ranks 0, 1, 3 say 262144    | rank 2 says 81920",
        "  extra     | ranks 0, 1, 3 say (nothing) | rank 2 says x",
    ]


def test_agree_is_silent_when_all_agree_in_any_order(address: str) -> None:
    def body(exchange: Exchange) -> None:
        agree(exchange, dict(sorted({"a": 1, "b": "2"}.items(), reverse=exchange.rank == 1)), 5)

    assert on_ranks(address, 2, body) == [None, None]


def test_one_ranks_error_is_raised_on_all_ranks(address: str) -> None:
    errors = on_ranks(address, 3, lambda e: gather_errors(e, "no device rocep1s0f0" if e.rank != 1 else None, 5))
    for error in errors:
        assert isinstance(error, SetupError)
        assert error.message.splitlines() == [
            "set-up failed on ranks 0, 2, so no rank started:",
            "  rank 0: no device rocep1s0f0",
            "  rank 2: no device rocep1s0f0",
        ]


def test_set_up_goes_on_when_no_rank_has_an_error(address: str) -> None:
    assert on_ranks(address, 2, lambda e: gather_errors(e, None, 5)) == [None, None]


def test_importing_the_exchange_imports_neither_grpc_nor_torch() -> None:
    """An engine that brings its own process group must not pay for gRPC."""
    program = "import sys, roce_ring.exchange; print([m for m in ('grpc', 'torch', 'numpy') if m in sys.modules])"
    assert subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout == "[]\n"


def test_a_rank_that_waits_says_so(tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: Any) -> None:
    """Rank 0 is started first and a person looks at its silent terminal: it must say what it waits for, and where."""
    monkeypatch.setattr("roce_ring.exchange._SAY_AFTER_S", 0.2)
    with pytest.raises(ExchangeError, match="rank 1 did not arrive"):
        RendezvousExchange(f"unix:{tmp_path}/meet", 0, 2, timeout_s=1.0)
    assert f"rank 0 waits at unix:{tmp_path}/meet for the other 1 of 2 ranks" in caplog.text


@pytest.mark.parametrize(("rank", "world"), [("0", 2), (0, "2"), (True, 2), (0.0, 2)])
def test_numbers_of_another_type_are_named_at_once(tmp_path: Path, rank: Any, world: Any) -> None:
    """`sys.argv[1]` is text: the sentence says so before anybody waits for anybody."""
    with pytest.raises(ConfigError, match="expected a whole number"):
        RendezvousExchange(f"unix:{tmp_path}/meet", rank, world, timeout_s=1.0)
