"""The agent as a service: who may ask it what, and how it comes and goes. Its card is a fake where it has a plan."""

from __future__ import annotations

import os
import signal
import socket
import stat
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from mesh.agent import server
from mesh.agent.agent import Agent
from mesh.agent.client import AgentClient, AgentError
from mesh.agent.server import AgentServer
from mesh.finding import Refused
from mesh.loading import plan_text
from roce_ring.cli.main import main
from roce_ring.control.address import Address, Tls, parse_address
from roce_ring.errors import ConfigError, SetupError
from roce_ring.lease import Lease
from tests.control.test_tls import Issue, issue  # noqa: F401
from tests.marker.lab import until
from tests.mesh.agent.conftest import Bench, plan_of

NOBODY = 65534
ROOT = Path(__file__).parents[3]
PROGRAM = Path(sys.executable).with_name("roce-ring")
root_only = pytest.mark.skipif(os.geteuid() != 0, reason="needs root")


@pytest.fixture
def place(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder that others may pass through, and a node of our own to lock."""
    monkeypatch.setattr(server, "_NODE_LOCK", f"\0roce-ring-test-{os.getpid()}")
    with tempfile.TemporaryDirectory(prefix="rr-") as folder:
        Path(folder).chmod(0o755)
        yield Path(folder)


@contextmanager
def serving(
    agent: Agent, place: Path, listen: tuple[Address, Tls] | None = None, group: int | None = None
) -> Iterator[AgentServer]:
    served = AgentServer(lambda: agent, place / "run", listen, group)
    try:
        yield served
    finally:
        served.close(0)


def asking(path: Path) -> AgentClient:
    return AgentClient(Address(f"unix:{path}", path, True), None, "s1")


@pytest.fixture
def idle(place: Path) -> Agent:
    (place / "state").mkdir()
    return Agent(place / "state", "soft", version="9.9")


def refused(work: Callable[[], object], code: str) -> AgentError:
    with pytest.raises(AgentError) as caught:
        work()
    assert caught.value.code == code
    assert "\n" not in caught.value.message
    assert caught.value.hint
    return caught.value


# who may


def test_sockets_are_closed_to_others_from_the_start(idle: Agent, place: Path) -> None:
    with serving(idle, place):
        modes = {path.name: stat.S_IMODE(path.stat().st_mode) for path in (place / "run").glob("*.sock")}
        assert modes == {"agent.sock": 0o600, "lease.sock": 0o600}
        assert stat.S_IMODE((place / "run").stat().st_mode) == 0o750
    assert list((place / "run").iterdir()) == []


@root_only
def test_members_of_the_group_may_look_and_hold_leases_and_nothing_else(bench: Bench, place: Path) -> None:
    """Also without systemd, which would make the directory for the group."""
    agent = bench.up()
    with serving(agent, place, group=NOBODY), as_nobody():
        why = refused(lambda: asking(place / "run" / "agent.sock"), "permission-denied")
        assert "may not be asked by this user" in why.message
        with asking(place / "run" / "lease.sock") as client:
            assert client.status().plan_hash == bench.plan.hash
            for change in (
                lambda: client.validate(bench.document),
                lambda: client.stage(bench.document),
                lambda: client.commit(bench.plan.hash, force=True),
                lambda: client.teardown(force=True),
                lambda: list(client.probes(iter(()), 5)),
            ):
                assert "not change the node" in refused(change, "permission-denied").message
        Lease(place / "run" / "lease.sock", "decode", "rank 0", bench.plan.hash).close()
    assert agent.status().phase == "active"


@root_only
def test_without_a_group_others_reach_nothing(idle: Agent, place: Path) -> None:
    with serving(idle, place), as_nobody():
        for name in ("agent.sock", "lease.sock"):
            refused(lambda name=name: asking(place / "run" / name), "permission-denied")  # type: ignore[misc]


@contextmanager
def as_nobody() -> Iterator[None]:
    os.setegid(NOBODY)
    os.seteuid(NOBODY)
    try:
        yield
    finally:
        os.seteuid(0)
        os.setegid(0)


def free_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return int(free.getsockname()[1])


def test_over_tls_only_listed_names_of_our_authority_come_in(
    idle: Agent,
    place: Path,
    issue: Issue,  # noqa: F811
) -> None:
    """Three strangers: a good certificate that is not on the list, one of another authority, and none at all."""
    tls = issue("s1", ("operator",))
    where = parse_address(f"127.0.0.1:{free_port()}", tls)
    with serving(idle, place, listen=(where, tls)):
        with AgentClient(where, issue("operator", ("",)), "s1") as client:
            assert client.status().version == "9.9"
            assert client.teardown() == ()
        with AgentClient(where, issue("intern", ("",)), "s1") as client:
            why = refused(client.status, "permission-denied")
            assert "a certificate of 127.0.0.1, intern is not on the agent's list of names" in why.message
            refused(client.teardown, "permission-denied")
            refused(lambda: next(client.watch()), "permission-denied")
        for stranger in (issue("operator", ("",), ca="other"), None):
            with AgentClient(where, stranger, "s1") as client:
                assert "cannot be reached" in refused(client.status, "not-running").message


def test_a_port_that_is_taken_is_one_sentence_and_leaves_nothing(idle: Agent, place: Path, issue: Issue) -> None:  # noqa: F811
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        tls = issue("s1", ("operator",))
        where = parse_address(f"127.0.0.1:{taken.getsockname()[1]}", tls)
        with pytest.raises(SetupError, match="cannot listen on 127"), serving(idle, place, (where, tls)):
            pass
    with serving(idle, place):  # neither the node's lock nor a socket's was kept
        pass


def test_a_second_agent_on_the_node_is_refused(idle: Agent, place: Path) -> None:
    """Two would undo each other's work, even with run directories of their own."""
    made: list[Agent] = []
    with (
        serving(idle, place),
        pytest.raises(SetupError, match=rf"another agent \(process {os.getpid()} of user \d+\) runs"),
    ):
        AgentServer(lambda: made.append(idle) or idle, place / "other")  # type: ignore[func-returns-value]
    assert made == []  # it did not even read its state


# calls


def test_a_plan_travels_through_the_socket_and_back(bench: Bench, place: Path) -> None:
    """Findings, commands and states arrive as they were sent; the plan of sixteen nodes fits in."""
    agent = bench.agent()
    other = plan_of("eight-ring")
    with serving(agent, place) as served, asking(place / "run" / "agent.sock") as client:
        client.host = bench.node.host
        found, commands = client.validate(bench.document)
        assert found == ()
        assert commands == tuple(str(step) for step in agent.validate(bench.document, bench.node.host)[2])
        assert client.stage(bench.document) == ()
        assert client.commit("0" * 64)[0].code == "not-staged"
        assert client.commit(bench.plan.hash) == ()
        assert client.status() == agent.status()
        served._publish_health()
        assert healths(place) == ["SERVING", "SERVING"]
        client.host = other.nodes[0].host
        assert "plan-conflict" in {item.code for item in client.stage(plan_text(other))}
        assert "plan-conflict" in {item.code for item in client.validate(plan_text(other))[0]}
        client.host = "nobody"
        assert [item.code for item in client.stage(bench.document)] == ["wrong-node"]
        assert [item.code for item in client.stage("{]")] == ["file-not-yaml"]
        assert client.teardown() == ()
        assert client.status().phase == "idle"
        served._publish_health()
        assert healths(place) == ["SERVING", "NOT_SERVING"]  # the agent lives, there is no plan that stands


def healths(place: Path) -> list[str]:
    """Of the agent, and of its plan."""
    with grpc.insecure_channel(f"unix:{place / 'run' / 'agent.sock'}") as channel:
        stub = health_pb2_grpc.HealthStub(channel)
        answers = [stub.Check(health_pb2.HealthCheckRequest(service=name)) for name in ("", server.HEALTH_SERVICE)]
    return [health_pb2.HealthCheckResponse.ServingStatus.Name(answer.status) for answer in answers]


def test_full_listeners_keep_nobody_from_the_others(idle: Agent, place: Path) -> None:
    """A member of the group that opens streams without end must not lock root out."""
    with serving(idle, place), grpc.insecure_channel(f"unix:{place / 'run' / 'lease.sock'}") as channel:
        over = threading.Event()
        hold = channel.stream_stream("/roce_ring.v1.MeshAgentService/HoldLease", None, None)

        def silent() -> Iterator[bytes]:
            over.wait(20)
            yield from ()

        streams = [hold(silent()) for _ in range(40)]
        with asking(place / "run" / "agent.sock") as client:
            for _ in range(3):
                assert client.status().phase == "idle"
                time.sleep(0.05)
        over.set()
        for stream in streams:
            stream.cancel()


def test_an_agent_that_ends_finishes_the_command_it_runs(bench: Bench, place: Path) -> None:
    """SIGTERM in the middle of a reload would leave the function without MTU and address."""
    agent = bench.agent()
    inside, leave = threading.Event(), threading.Event()

    def slow(command: str) -> None:
        inside.set()
        leave.wait(10)

    bench.card.before = slow
    with serving(agent, place):
        agent.stage(bench.document, bench.node.host)
        work = threading.Thread(target=agent.commit, args=(bench.plan.hash,))
        work.start()
        assert inside.wait(10)
        threading.Timer(0.2, leave.set).start()
    assert agent.status().phase == "active"
    work.join()


# leases


def test_a_lease_needs_the_plan_that_stands(bench: Bench, place: Path) -> None:
    agent = bench.agent()
    with serving(agent, place):
        path = place / "run" / "lease.sock"
        with pytest.raises(SetupError, match="holds no plan"):
            Lease(path, "decode", "rank 0", bench.plan.hash)
        Lease(path, "decode", "rank 0", "").close()  # needs none
        bench.up(agent)
        with pytest.raises(SetupError, match=f"holds plan {bench.plan.hash[:12]}, the session has 000000000000"):
            Lease(path, "decode", "rank 0", "0" * 64)
        assert agent.status().leases == ()


def texts(agent: Agent) -> list[str]:
    return [event.text for event in agent.events(0, 0) if "lease" in event.text]


def test_a_lease_keeps_the_plan_until_it_is_given_back(bench: Bench, place: Path) -> None:
    agent = bench.up()
    with serving(agent, place), asking(place / "run" / "agent.sock") as client:
        lease = Lease(place / "run" / "lease.sock", "decode", "rank 0 of\ndecode", bench.plan.hash)
        assert [one.session for one in client.status().leases] == ["decode"]
        (left,) = client.teardown()
        assert (left.code, "rank 0 of?decode runs" in left.seen) == ("lease-held", True)
        assert agent.status().phase == "active"
        lease.close()
        until(lambda: agent.status().leases == (), "the lease is gone")
        assert client.teardown() == ()
    until(lambda: len(texts(agent)) == 2, "both are told")
    assert texts(agent) == ["lease of rank 0 of?decode (session decode)", "lease of rank 0 of?decode ended"]


HOLD = """
import sys, threading
from pathlib import Path
from mesh.agent.client import AgentClient
from roce_ring.control.address import Address
from roce_ring.control.proto.roce_ring.v1.mesh_agent_service_pb2 import HoldLeaseRequest

def ask():
    yield HoldLeaseRequest(session="decode", holder="rank 3", plan_hash=sys.argv[2])
    threading.Event().wait()

path = Path(sys.argv[1])
for answer in AgentClient(Address(f"unix:{path}", path, True), None, "s1").lease(ask()):
    print("held" if answer == () else answer, flush=True)
"""


@pytest.mark.expected_warnings("lease of rank 3 ended without a word")
def test_a_client_that_dies_frees_its_lease_and_is_told(bench: Bench, place: Path) -> None:
    """kill -9 of a rank: the node is not held by the dead, and whoever watches hears of it."""
    agent = bench.up()
    with serving(agent, place):
        argv = [sys.executable, "-c", HOLD, str(place / "run" / "lease.sock"), bench.plan.hash]
        with subprocess.Popen(argv, cwd=ROOT, stdout=subprocess.PIPE, text=True) as process:
            assert process.stdout is not None
            assert process.stdout.readline() == "held\n"
            with pytest.raises(Refused, match="rank 3 runs"):
                agent.teardown()
            process.kill()
        until(lambda: agent.status().leases == (), "the lease is gone")
        until(lambda: any("without a word" in text for text in texts(agent)), "it is told")
        assert agent.teardown() == []


@pytest.mark.expected_warnings("the node agent went away")
@pytest.mark.expected_warnings("the node agent went away")
def test_leases_outlive_the_agent(bench: Bench, place: Path, caplog: pytest.LogCaptureFixture) -> None:
    """An agent that is started again counts sessions that ran, before they have come back."""
    agent = bench.up()
    with serving(agent, place):
        lease = Lease(place / "run" / "lease.sock", "decode", "rank 0", bench.plan.hash)
    until(lambda: "went away" in caplog.text, "the session hears that its agent is gone")
    again = bench.agent()
    assert [one.session for one in again.status().leases] == ["decode"]
    with pytest.raises(Refused, match="rank 0 runs"):
        again.teardown()
    lease.close()


# the process


class Process:
    """An idle agent in a network name space of its own."""

    def __init__(self, place: Path, *options: str, inside: int = 0) -> None:
        enter = ["nsenter", f"--net=/proc/{inside}/ns/net"] if inside else ["unshare", "--net"]
        argv = [*enter, str(PROGRAM), "agent", "--state-dir", str(place / "state"), "--run-dir", str(place / "run")]
        self.run = place / "run"
        self.process = subprocess.Popen(
            [*argv, "--dataplane", "soft", *options], stderr=subprocess.PIPE, text=True, stdin=subprocess.DEVNULL
        )

    def ready(self) -> Process:
        assert self.process.stderr is not None
        for line in self.process.stderr:
            if "answers on" in line:
                return self
        raise AssertionError(f"the agent ended with {self.process.wait()}")

    def __enter__(self) -> Process:
        return self

    def __exit__(self, *_: object) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.communicate(timeout=10)


needs_net = pytest.mark.skipif(
    os.geteuid() != 0 or subprocess.run(["unshare", "--net", "true"], check=False, capture_output=True).returncode != 0,
    reason="needs root and network name spaces",
)


@needs_net
def test_an_agent_comes_and_goes(place: Path) -> None:
    """One start after the other: refused beside a running one, replaced after kill -9, ended within two seconds with
    streams open, and no process of it stays."""
    with Process(place).ready() as first:
        modes = stat.S_IMODE((place / "state").stat().st_mode), stat.S_IMODE((place / "run").stat().st_mode)
        assert modes == (0o700, 0o750)
        with Process(place / "..", "--run-dir", str(place / "other"), inside=first.process.pid) as second:
            _, said = second.process.communicate(timeout=20)
            assert second.process.returncode == 2
            assert f"another agent (process {first.process.pid} of user 0) runs on this node" in said.splitlines()[0]
            assert "Traceback" not in said
        first.process.kill()
        first.process.wait(10)
    assert (place / "run" / "agent.sock").exists()  # stale
    with pytest.raises(AgentError, match="does not run"):
        asking(place / "run" / "agent.sock")
    with Process(place).ready() as agent, asking(place / "run" / "agent.sock") as client:
        assert client.status().phase == "idle"
        until(lambda: children(agent.process.pid) == ["ip"], "it listens to the kernel")
        events: list[object] = []
        stream = threading.Thread(target=lambda: events.extend(client.watch()))
        stream.start()
        lease = Lease(place / "run" / "lease.sock", "decode", "rank 0", "")
        lease.close()
        until(lambda: len(events) == 2, "both events of the lease")
        began = time.monotonic()
        agent.process.send_signal(signal.SIGTERM)
        assert agent.process.wait(10) == 0
        assert time.monotonic() - began < 4  # two, and two for a busy machine
        stream.join(5)
        assert not stream.is_alive()
        until(lambda: children(agent.process.pid) == [], "nothing of it stays")
        assert list((place / "run").iterdir()) == []


def children(pid: int) -> list[str]:
    shown = subprocess.run(["ps", "--ppid", str(pid), "-o", "comm="], capture_output=True, text=True, check=False)
    return shown.stdout.split()


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("--dataplane", "cx8"), "--dataplane 'cx8': expected one of auto, cx7, soft"),
        (("--listen", "10.0.0.1:7000"), "so it needs mutual TLS"),
        (("--group", "no-such-group"), "there is no group 'no-such-group' on this host"),
        (("--state-dir", "/proc/nowhere"), "the agent cannot start: /proc/nowhere"),
        (("--run-dir", "/no/such/place"), "cannot create the run directory /no/such/place"),
        (("--listen", "0.0.0.0:7000", "--tls", "/etc"), "name the management address"),
        (("--dataplane", "soft"), "state file"),
    ],
)
def test_an_agent_that_cannot_start_says_why(
    place: Path,
    options: tuple[str, ...],
    said: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """With 2, at which systemd does not try again (RestartPreventExitStatus). A broken state file is kept."""
    monkeypatch.setattr("roce_ring.mesh.agent.server._NODE_LOCK", server._NODE_LOCK)
    (place / "state").mkdir()
    if said == "state file":
        (place / "state" / "agent.json").write_text("{oops")
    where = ["--state-dir", str(place / "state"), "--run-dir", str(place / "run")]
    monkeypatch.setattr(sys, "argv", ["roce-ring", "agent", *where, *options])
    with pytest.raises(SystemExit) as caught:
        main()
    assert caught.value.code == 2
    first, *rest = capsys.readouterr().err.splitlines()
    assert first.startswith("roce-ring: ") and said in first
    assert len(rest) <= 1
    assert said != "state file" or (place / "state" / "agent.json").read_text() == "{oops"


def test_tls_files_that_are_missing_are_all_named(idle: Agent, place: Path) -> None:
    tls = Tls(place / "ca.pem", place / "cert.pem", place / "key.pem", ("operator",))
    where = parse_address("127.0.0.1:7000", tls)
    with pytest.raises(ConfigError, match=r"ca\.pem.*cert\.pem.*key\.pem"), serving(idle, place, (where, tls)):
        pass
