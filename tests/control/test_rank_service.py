"""The control service end to end: a real server on a unix socket, a real client, a plain session behind it."""

from __future__ import annotations

import socket
import stat
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import grpc
import pytest

from roce_ring.control.client import ControlError, RankClient
from roce_ring.control.model import EventKind, IdlePolicy, RankEvent, RankState, SessionState
from roce_ring.control.proto.roce_ring.v1 import rank_service_pb2 as pb
from roce_ring.control.proto.roce_ring.v1 import rank_service_pb2_grpc as pb_grpc
from roce_ring.control.server import RankServer
from roce_ring.control.servicer import WATCHERS
from roce_ring.errors import RoceRingError, SetupError

Serve = Callable[..., tuple[Any, RankServer]]


def until(condition: Callable[[], bool], seconds: float = 5.0) -> bool:
    deadline = time.monotonic() + seconds
    while not condition() and time.monotonic() < deadline:
        time.sleep(0.02)
    return condition()


def test_every_answer_arrives_as_the_session_gave_it(serve: Serve) -> None:
    """A counter or a name that is lost or changed on the way would mislead an operator."""
    control, server = serve()
    with RankClient(server.path) as client:
        assert client.info() == control.info()
        assert client.state() == control.state()
        assert client.stats() == control.stats()


def test_absent_values_stay_absent(serve: Serve) -> None:
    """Rank 0 as culprit and no culprit are different things."""
    control, server = serve()
    with RankClient(server.path) as client:
        assert client.state().culprit_rank is None
        control.now = RankState(
            SessionState.ABORTED, "rank 0 is gone", culprit_rank=0, sequence=0, waiting_for_ranks=(0,)
        )
        assert client.state() == control.now


def test_idle_policy_changes_live_and_says_what_it_was(serve: Serve) -> None:
    _, server = serve()
    with RankClient(server.path) as client:
        assert client.set_idle(5000, None) == (IdlePolicy(20_000_000, 20), IdlePolicy(5000, 20))
        assert client.set_idle(None, 50) == (IdlePolicy(5000, 20), IdlePolicy(5000, 50))
        assert client.stats().idle_spins == 5000


def test_a_client_of_an_older_session_cannot_change_the_new_one(serve: Serve) -> None:
    """Somebody decides to abort, the ranks restart meanwhile: the abort must not hit the healthy session."""
    control, server = serve()
    old = control.session_id
    control.session_id = "f" * 32
    with RankClient(server.path) as client:
        for call in (
            lambda: client.abort("too slow", old),
            lambda: client.set_idle(1, None, old),
            lambda: client.drain(1, old),
        ):
            with pytest.raises(ControlError, match=f"session {old} is over, this rank now runs session ffff") as caught:
                call()
            assert caught.value.code == "refused"
        assert control.now.state is SessionState.RUNNING
        assert client.abort("too slow", control.session_id).state is SessionState.ABORTED


@pytest.mark.parametrize(
    ("method", "request_", "sentence"),
    [
        ("SetIdlePolicy", pb.SetIdlePolicyRequest(), "neither idle_spins nor nap_us is set"),
        ("SetIdlePolicy", pb.SetIdlePolicyRequest(idle_spins=2**63), "expected 0 to 1000000000000"),
        ("SetIdlePolicy", pb.SetIdlePolicyRequest(nap_us=0), "nap_us is 0, expected 1 to 1000"),
        ("SetIdlePolicy", pb.SetIdlePolicyRequest(idle_spins=1, nap_us=1001), "nap_us is 1001, expected 1 to 1000"),
        ("Abort", pb.AbortRequest(reason=" "), "reason holds 0 characters, expected 1 to 200"),
        ("Abort", pb.AbortRequest(reason="x" * 201), "reason holds 201 characters"),
        ("Abort", pb.AbortRequest(reason="a\x1b[2J"), "printable"),
        ("Drain", pb.DrainRequest(), "timeout_ms is 0, expected 1 to 600000"),
        ("Drain", pb.DrainRequest(timeout_ms=600_001), "timeout_ms is 600001"),
    ],
)
def test_every_request_field_is_bounded_and_nothing_is_half_applied(
    serve: Serve, method: str, request_: object, sentence: str
) -> None:
    control, server = serve()
    before = control.counters
    with grpc.insecure_channel(f"unix:{server.path}") as channel, pytest.raises(grpc.RpcError) as caught:
        getattr(pb_grpc.RankServiceStub(channel), method)(request_, timeout=2)
    assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert sentence in caught.value.details()
    assert (control.counters, control.now.state) == (before, SessionState.RUNNING)


def test_a_request_larger_than_any_real_one_is_refused_unread(serve: Serve) -> None:
    control, server = serve()
    with grpc.insecure_channel(f"unix:{server.path}") as channel, pytest.raises(grpc.RpcError) as caught:
        pb_grpc.RankServiceStub(channel).Abort(pb.AbortRequest(reason="x" * 100_000), timeout=2)
    assert caught.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
    assert control.now.state is SessionState.RUNNING


def test_drain_reports_what_is_still_in_flight(serve: Serve) -> None:
    control, server = serve(drains=False)
    with RankClient(server.path) as client:
        assert client.drain(0.05) is False
        control.drains = True
        assert client.drain(0.05) is True


def test_a_session_that_refuses_is_quoted(serve: Serve) -> None:
    control, server = serve()

    def refuse(*_: object) -> IdlePolicy:
        raise RoceRingError("closed", "the session is closed")

    control.set_idle = refuse
    with RankClient(server.path) as client, pytest.raises(ControlError, match="the session is closed") as caught:
        client.set_idle(1, None)
    assert caught.value.code == "refused"


@pytest.mark.expected_warnings("a control call failed")
def test_a_session_that_breaks_gives_one_sentence_not_a_traceback(serve: Serve) -> None:
    control, server = serve()
    control.stats = lambda: 1 // 0
    with RankClient(server.path) as client, pytest.raises(ControlError, match="ZeroDivisionError"):
        client.stats()


def test_watch_gives_the_state_then_everything_that_happens(serve: Serve) -> None:
    control, server = serve()
    control.happen(EventKind.LATE, "rank 2 is late: operation 12, 1.0 s", 2)
    seen: list[RankState | RankEvent] = []
    with RankClient(server.path) as client:
        for update in client.watch(timeout_s=5):
            seen.append(update)
            if len(seen) == 2:
                control.abort("rank 2 is gone")
            if len(seen) == 4:
                break
    assert seen[0] == RankState(SessionState.RUNNING)
    assert [one.message for one in seen if isinstance(one, RankEvent)] == [
        "rank 2 is late: operation 12, 1.0 s",
        "rank 2 is gone",
    ]
    assert seen[1].peer_rank == 2
    assert control.now in seen


def test_watch_goes_on_after_the_last_event_that_was_seen(serve: Serve) -> None:
    control, server = serve()
    for message in ("one", "two", "three"):
        control.happen(EventKind.STATE, message)
    with RankClient(server.path) as client:
        events = [one.message for one in client.watch(2, timeout_s=0.7) if isinstance(one, RankEvent)]
    assert events == ["three"]


def test_watchers_are_bounded_and_leave_room_for_health(serve: Serve) -> None:
    """A script that forgets to end its watches must not take the health checks away."""
    _, server = serve()
    clients = [RankClient(server.path) for _ in range(WATCHERS + 1)]
    streams = [client.watch(timeout_s=10) for client in clients]
    for stream in streams[:-1]:
        next(stream)
    with pytest.raises(ControlError, match=f"{WATCHERS} clients watch this rank already") as caught:
        next(streams[-1])
    assert caught.value.code == "busy"
    assert until(clients[0].healthy)
    for stream, client in zip(streams, clients, strict=True):
        stream.close()
        client.close()


def test_health_follows_the_state_by_itself(serve: Serve) -> None:
    control, server = serve(now=RankState(SessionState.INIT))
    with RankClient(server.path) as client:
        assert not client.healthy()
        for state in SessionState:
            control.now = RankState(state)
            assert until(lambda: client.healthy() is (state in (SessionState.CONNECTED, SessionState.RUNNING))), state  # noqa: B023


def test_health_turns_when_the_session_is_stuck_and_other_calls_cannot_starve_it(serve: Serve) -> None:
    """A rank wedged in its device answers nothing any more; the load balancer must still hear NOT_SERVING."""
    control, server = serve()
    with RankClient(server.path, timeout_s=0.3) as client:
        assert until(client.healthy)
        release = control.stuck = threading.Event()
        for _ in range(8):  # more than the server has threads for calls
            with pytest.raises(ControlError) as caught:
                client.state()
            assert caught.value.code in ("no-answer", "busy")
        assert until(lambda: not client.healthy())
        control.stuck = None
        release.set()
        assert until(client.healthy)


@pytest.mark.expected_warnings("the session failed to tell its state")
def test_health_turns_when_the_session_breaks(serve: Serve) -> None:
    control, server = serve()
    with RankClient(server.path) as client:
        assert until(client.healthy)
        control.state = lambda: 1 // 0
        assert until(lambda: not client.healthy())


def test_a_watched_rank_whose_user_forgets_to_close_still_ends(run_dir: Path) -> None:
    """The interpreter must not wait for a client that watches."""
    program = (
        "import sys; from pathlib import Path; sys.path.insert(0, sys.argv[2])\n"
        "from conftest import PlainControl; from roce_ring.control.server import RankServer\n"
        "server = RankServer(PlainControl(), Path(sys.argv[1]), 'job', 0)\n"
        "print('up', flush=True); sys.stdin.readline()\n"
    )
    command = [sys.executable, "-c", program, str(run_dir), str(Path(__file__).parent)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as rank:
        assert rank.stdout
        assert rank.stdout.readline() == "up\n"
        with RankClient(run_dir / "job-r0.sock") as client:
            stream = client.watch(timeout_s=30)
            assert next(stream) == RankState(SessionState.RUNNING)
            rank.communicate("\n", timeout=10)
            with pytest.raises(ControlError, match="went away during the call"):
                next(stream)


def test_only_user_and_group_can_reach_the_socket(serve: Serve, run_dir: Path) -> None:
    _, server = serve()
    assert stat.S_IMODE(server.path.stat().st_mode) == 0o660
    assert stat.S_IMODE(run_dir.stat().st_mode) == 0o750


def test_a_second_server_on_the_same_path_is_refused_and_harms_nothing(serve: Serve) -> None:
    """gRPC alone would let the second one take the socket over in silence."""
    _, server = serve()
    with pytest.raises(SetupError, match=r"is already served by this process \(pid \d+, session job, rank 0\)"):
        serve()
    with RankClient(server.path) as client:
        assert client.info().rank == 0


def test_close_removes_the_socket_and_the_lock_and_frees_the_name(serve: Serve, run_dir: Path) -> None:
    _, server = serve()
    server.close()
    server.close()
    assert list(run_dir.iterdir()) == []
    serve()


def test_client_says_what_is_behind_a_path(serve: Serve, run_dir: Path, tmp_path: Path) -> None:
    _, server = serve()
    with pytest.raises(ControlError, match="nothing is running behind") as caught:
        RankClient(run_dir / "job-r9.sock")
    assert caught.value.code == "not-running"
    stale = tmp_path / "job-r1.sock"
    with socket.socket(socket.AF_UNIX) as left_behind:
        left_behind.bind(str(stale))
    with pytest.raises(ControlError, match="is gone; its socket was left behind") as caught:
        RankClient(stale)
    assert caught.value.code == "stale"
    client = RankClient(server.path)
    server.close(grace_s=0)
    with pytest.raises(ControlError, match=r"went away during the call|nothing is running"):
        client.state()
    client.close()


def test_client_names_a_process_that_does_not_answer(tmp_path: Path) -> None:
    """A rank stopped with SIGSTOP still has a socket that accepts connections."""
    path = tmp_path / "job-r0.sock"
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(path))
        listener.listen()
        client = RankClient(path, timeout_s=0.3)
        with pytest.raises(ControlError, match=r"did not answer within 0\.3 s") as caught:
            client.state()
        assert caught.value.code == "no-answer"
        client.close()
