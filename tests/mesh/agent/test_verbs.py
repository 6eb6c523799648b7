"""up, down, verify, watch and status PLAN as a user types them, against four agents with fake kernels (card.py)."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from mesh.loading import plan_text
from roce_ring.errors import RoceRingError
from roce_ring.lease import Lease
from roce_ring.mesh.agent.client import AgentClient
from roce_ring.mesh.agent.model import NodeStatus
from tests.marker.lab import until
from tests.mesh.agent.conftest import plan_of
from tests.mesh.agent.fleet import Fleet

PROGRAM = Path(sys.executable).with_name("roce-ring")
VERBS = ("up", "down", "verify", "watch", "status")
Run = Callable[..., tuple[int, str, str]]


@pytest.fixture
def plan(tmp_path: Path) -> Path:
    path = tmp_path / "plan.json"
    path.write_text(plan_text(plan_of("four-spark-ring")))
    return path


@pytest.fixture
def fleet(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Fleet]:
    with Fleet(plan_of("four-spark-ring"), tmp_path, monkeypatch) as fleet:
        yield fleet


@pytest.fixture
def run(typed: Run, fleet: Fleet, plan: Path) -> Run:
    """The same with the plan and all its agents: run("up", "--json")."""
    return lambda verb, *options: typed(verb, str(plan), *fleet.addresses(), *options)


@pytest.fixture
def asked(run: Run) -> Callable[..., tuple[int, Any]]:
    """run() with --json: (exit status, document)."""

    def ask(verb: str, *options: str) -> tuple[int, Any]:
        code, out, err = run(verb, "--json", *options)
        assert err == ""
        return code, json.loads(out)

    return ask


def codes(document: Any) -> list[str]:
    return [item["code"] for item in document["findings"]]


# what works


def test_up_and_down_leave_no_trace(fleet: Fleet, run: Run) -> None:
    code, out, err = run("up", "--no-prove")
    assert (code, err) == (0, "")
    assert out.splitlines()[-1].split()[:4] == ["total", "8", "8", "8"]  # routes, rules, marks
    code, out, _ = run("status")
    assert (code, out.count(" ok")) == (0, 4)
    code, out, err = run("down")
    assert (code, err, out.count("taken back")) == (0, "", 4)
    assert fleet.untouched
    code, out, _ = run("down")
    assert (code, out.count("nothing was there")) == (0, 4)


def test_a_dry_run_prints_and_changes_nothing(fleet: Fleet, run: Run, asked: Callable[..., tuple[int, Any]]) -> None:
    code, out, err = run("up", "--dry-run")
    assert (code, err) == (0, "")
    assert [line for line in out.splitlines() if line.startswith("# ")] == ["# s1", "# s2", "# s3", "# s4"]
    assert out.count("tc filter add") == 16
    assert not any(node.card.ran for node in fleet.nodes)
    code, document = asked("up", "--dry-run")
    assert (code, document["schema"], document["dry_run"], document["ok"]) == (0, "roce-ring/up/v1", True, True)
    assert sum(len(commands) for commands in document["commands"].values()) == out.count("\nip ") + out.count("\ntc ")
    run("up", "--no-prove")
    assert run("up", "--dry-run")[1].count("# nothing to do") == 4


@pytest.mark.expected_warnings("object-missing")
def test_up_again_mends(fleet: Fleet, run: Run) -> None:
    run("up", "--no-prove")
    card = fleet.nodes[1].card
    card.routes = [one for one in card.routes if one["protocol"] == "kernel"]
    assert run("up", "--no-prove")[0] == 0
    assert run("status")[0] == 0


# all nodes or none


def test_one_node_that_refuses_leaves_all_untouched(fleet: Fleet, run: Run, asked: Callable[..., Any]) -> None:
    fleet.nodes[2].card.links["enp1s0f0np0"]["mac"] = "02:ff:ff:ff:ff:ff"
    fleet.nodes[3].card.links.pop("enp1s0f1np1")
    before = [node.card.state() for node in fleet.nodes]
    code, out, err = run("up")
    assert (code, out) == (1, "")
    assert err.startswith("nothing was changed on any node:")
    assert "mac-differs" in err and "device-missing" in err  # both nodes in one go
    code, document = asked("up")
    assert (code, document["ok"], sorted(codes(document))) == (1, False, ["device-missing", "mac-differs"])
    code, document = asked("up", "--dry-run")
    assert (code, sorted(codes(document))) == (1, ["device-missing", "mac-differs"])
    assert [node.card.state() for node in fleet.nodes] == before


def test_one_node_that_fails_half_way_takes_all_back(fleet: Fleet, run: Run, asked: Callable[..., Any]) -> None:
    """A plan on three of four nodes carries nothing and looks as if it did."""
    fleet.nodes[1].card.broken = {"tc filter add": "Error: cls_flower: no memory"}
    code, out, err = run("up", "--no-prove")
    assert (code, out) == (1, "")
    assert "taken back from s1, s3, s4: all nodes or none" in err
    assert "cls_flower: no memory" in err
    assert fleet.untouched
    code, _, err = run("up", "--no-prove", "--json")
    assert code == 1
    assert [node.agent.status().phase for node in fleet.nodes] == ["idle"] * 4


def test_agents_that_are_away_are_all_named(fleet: Fleet, run: Run, asked: Callable[..., Any]) -> None:
    """And nothing changes on those that are there."""
    for host in ("s2", "s4"):
        fleet.servers[host].close(0)
    for verb, said in (("up", "nothing was changed"), ("verify", "s2"), ("status", "s2")):
        code, out, err = run(verb)
        assert code == 1, verb
        assert said in out + err
        assert (out + err).count("error agent-unreachable") == 2
    for verb in ("up", "verify", "status", "down"):
        code, document = asked(verb)
        assert (code, document["ok"], document["schema"]) == (1, False, f"roce-ring/{verb}/v1")
        assert codes(document).count("agent-unreachable") == 2
    assert fleet.untouched


def test_another_plan_is_in_the_way_for_up_and_down(
    fleet: Fleet, typed: Run, run: Run, asked: Callable[..., Any], tmp_path: Path
) -> None:
    run("up", "--no-prove")
    before = [node.card.state() for node in fleet.nodes]
    other = plan_of("four-ring-flipped-cage")
    names = dict(zip(other.hosts, fleet.nodes, strict=True))
    (tmp_path / "other.json").write_text(plan_text(other))
    addresses = [f"--agent={host}=unix:{node.socket}" for host, node in names.items()]
    for verb in (["up"], ["up", "--dry-run"], ["down"], ["down", "--force"]):
        code, out, _ = typed(*verb, str(tmp_path / "other.json"), *addresses, "--json")
        assert (code, codes(json.loads(out)).count("plan-conflict")) == (1, 4), verb
    for verb in ("verify", "status"):
        code, out, _ = typed(verb, str(tmp_path / "other.json"), *addresses, "--json")
        assert (code, codes(json.loads(out)).count("plan-differs")) == (1, 4), verb
        fixes = {item["fix"] for item in json.loads(out)["findings"] if item["code"] == "plan-differs"}
        up_again = "'roce-ring down' with that file and then 'roce-ring up' with this one"  # 'up' alone is refused
        assert fixes == {f"use the file of plan {fleet.plan.hash[:12]}, or {up_again}"}
    assert [node.card.state() for node in fleet.nodes] == before


def test_down_asks_all_before_it_touches_one(fleet: Fleet, run: Run, asked: Callable[..., Any]) -> None:
    """A session on one node keeps the plan on all; --force takes it all the same."""
    run("up", "--no-prove")
    before = [node.card.state() for node in fleet.nodes]
    lease = Lease(fleet.nodes[3].run_dir / "lease.sock", "decode", "rank 3 of decode", fleet.plan.hash)
    code, document = asked("down")
    assert (code, codes(document), document["nodes"]) == (1, ["lease-held"], [])
    assert [node.card.state() for node in fleet.nodes] == before
    assert "rank 3 of decode" in run("status")[1]
    assert run("down", "--force")[0] == 0
    assert fleet.untouched
    lease.close()


# verify: there is no RDMA here, so every path fails; what matters is how that is said


def test_verify_says_what_failed_on_every_path(fleet: Fleet, run: Run, asked: Callable[..., Any]) -> None:
    run("up", "--no-prove")
    code, document = asked("verify")
    assert (code, document["ok"], len(document["nodes"])) == (1, False, 4)
    assert len(document["paths"]) == len(fleet.plan.paths)
    assert all(not path["ok"] and path["why"] for path in document["paths"])
    assert codes(document).count("path-broken") == len(fleet.plan.paths)


def test_verify_of_nothing_proves_nothing(run: Run, asked: Callable[..., Any]) -> None:
    code, document = asked("verify")
    assert (code, codes(document)) == (1, ["plan-differs"] * 4)
    assert len(document["paths"]) == 24
    assert not any(path["ok"] for path in document["paths"])
    assert document["paths"][0]["why"].startswith("unknown: ")


def test_what_was_not_looked_at_is_never_ok(fleet: Fleet, run: Run, asked: Callable[..., Any]) -> None:
    """A row that is missing, or that leaves out the relay, reads like one that is proved."""
    run("up", "--no-prove")
    fleet.servers["s2"].close(0)
    _, document = asked("verify")
    concerned = [path for path in document["paths"] if "s2" in (path["source"], path["target"], *path["via"])]
    assert len(document["paths"]) == 24
    assert len(concerned) == 14
    assert not any(path["ok"] for path in concerned)


def test_down_says_what_it_leaves(fleet: Fleet, run: Run, asked: Callable[..., Any]) -> None:
    """The agent of a node lost its state, what stood was adopted, and nobody would take it back."""
    run("up", "--no-prove")
    fleet.nodes[3].agent._state.owned.clear()  # as after 'rm agent.json' and 'up'
    fleet.nodes[3].agent.verify()
    code, document = asked("down")
    assert code == 0
    [left] = document["findings"]
    assert (left["code"], left["where"]) == ("left-in-place", "s4")
    assert left["seen"].count("route 10.") == 2
    assert [node["result"] for node in document["nodes"]][:3] == ["taken back"] * 3
    assert document["nodes"][3]["result"].startswith("taken back; ")


@pytest.mark.parametrize("verb", ["status", "verify", "up", "down"])
def test_nobody_to_ask_is_not_the_ring_being_broken(typed: Run, plan: Path, verb: str) -> None:
    """Monitoring must be able to tell a broken ring from a broken way to it."""
    nowhere = [f"--agent=s{number}=unix:/nowhere/s{number}.sock" for number in (1, 2, 3, 4)]
    assert typed(verb, str(plan), *nowhere)[0] == 2


def test_a_relay_that_cannot_be_asked_refutes_nothing(fleet: Fleet, run: Run, asked: Callable[..., Any]) -> None:
    """Its agent is away, its card forwards: no 'frames went another way'."""
    run("up", "--no-prove")
    fleet.servers["s2"].close(0)
    code, document = asked("verify")
    assert code == 1
    assert set(codes(document)) == {"agent-unreachable", "path-broken"}


# watch


@pytest.mark.expected_warnings("object-missing")
def test_watch_prints_what_happened_and_who_went_away(fleet: Fleet, run: Run) -> None:
    run("up", "--no-prove")
    fleet.nodes[0].card.links["enp1s0f0np0"]["mtu"] = 1500
    fleet.nodes[0].agent.tick()
    timer = threading.Timer(0.5, fleet.servers["s3"].close, (0,))
    timer.start()
    code, out, err = run("watch", "--seconds", "2")
    timer.join()
    assert (code, err) == (1, "")
    assert "object-missing: s1: link enp1s0f0np0 mtu 9000: MTU 1500" in out
    assert (
        sum("the agent of s3 has ended" in line or "the agent of s3 behind" in line for line in out.splitlines()) == 1
    )


def test_watch_is_json_line_by_line(fleet: Fleet, run: Run) -> None:
    run("up", "--no-prove")
    fleet.servers["s4"].close(0)
    code, out, err = run("watch", "--seconds", "0.5", "--json")
    lines = [json.loads(line) for line in out.splitlines()]
    assert (code, err) == (1, "")
    assert {line["schema"] for line in lines} == {"roce-ring/watch/v1"}
    assert [line["host"] for line in lines if line["severity"] == "error"] == ["s4"]
    assert {line["host"] for line in lines if "stands on" in line["text"]} == {"s1", "s2", "s3"}


def test_watch_of_nobody_ends(fleet: Fleet, run: Run) -> None:
    for served in fleet.servers.values():
        served.close(0)
    code, out, _ = run("watch")
    assert (code, len(out.splitlines())) == (2, 4)


def test_what_all_nodes_still_keep_is_in_the_order_of_its_time(fleet: Fleet, run: Run) -> None:
    for word, rank in (("first", 3), ("second", 0), ("third", 2), ("fourth", 0)):
        fleet.nodes[rank].agent.tell("note", word)
    code, out, _ = run("watch", "--seconds", "0.5", "--json")
    assert (code, [json.loads(line)["text"] for line in out.splitlines()]) == (
        0,
        ["first", "second", "third", "fourth"],
    )


def test_nodes_that_are_slow_to_reach_use_up_the_time_to_watch(
    fleet: Fleet, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A script that asked for so many seconds has them, and still gets what the other nodes keep."""
    fleet.nodes[0].agent.tell("note", "hello")
    now = time.monotonic
    late = iter([0.0])
    monkeypatch.setattr("roce_ring.cli.watch.time.monotonic", lambda: now() + next(late, 3600.0))
    code, out, _ = run("watch", "--seconds", "3600")
    assert (code, "hello" in out) == (0, True)


def test_a_node_that_says_nothing_is_not_taken_for_well(
    fleet: Fleet, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A stopped one: it is reached, and never answers."""
    asked = AgentClient.status
    stopped = threading.Event()

    def status(self: AgentClient, look: bool = False) -> NodeStatus:
        if self.host == "s2":
            stopped.wait(10)
            raise RoceRingError("no-answer", "too late to be told")
        return asked(self, look)

    monkeypatch.setattr(AgentClient, "status", status)
    code, out, _ = run("watch", "--seconds", "1", "--json")
    stopped.set()
    (line,) = map(json.loads, out.splitlines())
    assert (code, line["host"], line["text"]) == (1, "s2", "the agent of s2 did not answer in this time")


def test_two_agents_that_are_swapped_are_told(fleet: Fleet, run: Run, plan: Path, typed: Run) -> None:
    run("up", "--no-prove")
    s1, s2, *others = (node.socket for node in fleet.nodes)
    addresses = [f"--agent=s{n}=unix:{path}" for n, path in enumerate((s2, s1, *others), 1)]
    code, out, _ = typed("status", str(plan), *addresses)
    assert (code, out.count("wrong-node")) == (1, 2)
    assert "s1: its agent has the plan as s2; expected s1" in out


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["status", "PLAN", "--follow"], "--follow is for the ranks of this host"),
        (["status", "PLAN", "--session", "x", "--timeout", "3"], "--session, --timeout is for the ranks"),
        (["status", "--agent", "s1=unix:/x"], "--agent is for the nodes of a plan, but no PLAN"),
        (["status", "--tls", "/tmp"], "--tls is for the nodes of a plan"),
        (["agent", "--tls", "/tmp"], "--tls is for --listen"),
        (["agent", "--tls-names", "a"], "--tls-names is for --listen"),
    ],
)
def test_an_option_that_would_be_ignored_is_refused(arguments: list[str], said: str, typed: Run, plan: Path) -> None:
    code, out, err = typed(*(str(plan) if one == "PLAN" else one for one in arguments))
    assert (code, out) == (2, "")
    assert f"roce-ring: {said}" in sentence(err)


def test_where_the_agent_cannot_have_its_directories_is_told_as_it_is(typed: Run, tmp_path: Path) -> None:
    state = ["--state-dir", str(tmp_path / "state")]
    for arguments, said in (
        ([*state, "--run-dir", "/proc/x"], "cannot create the run directory /proc/x: /proc takes no directories"),
        ([*state, "--run-dir", "/nope/x"], "cannot create the run directory /nope/x: there is no directory /nope"),
        (["--state-dir", "/dev/null"], "the agent cannot start: /dev/null: not a directory"),
    ):
        code, _, err = typed("agent", *arguments)
        assert (code, said in sentence(err)) == (2, True), err
        assert "ROCE_RING_RUN_DIR" not in err


# wrong use


def sentence(err: str) -> str:
    """What was said, which is one sentence and maybe a fix."""
    lines = err.strip().splitlines()
    assert 1 <= len(lines) <= 2, err
    return err


@pytest.mark.parametrize("verb", VERBS)
def test_a_plan_that_is_none_is_a_wrong_use(verb: str, typed: Run, tmp_path: Path) -> None:
    plan = json.loads(plan_text(plan_of("triangle")))
    edited = {**plan, "hosts": ["s1", "s2", "s9"]}
    files = {
        "gone.json": None,
        "empty.json": "",
        "facts.json": (Path("mesh/examples/triangle.yaml")).read_text(),
        "words.json": "{not json",
        "list.json": "[1]",
        "edited.json": json.dumps(edited),
        "typed.json": json.dumps({**plan, "ring": "round"}),
        "old.json": json.dumps({**plan, "schema": "roce-ring/mesh-plan/v0"}),
    }
    said = {}
    for name, text in files.items():
        if text is not None:
            (tmp_path / name).write_text(text)
        code, out, err = typed(verb, str(tmp_path / name))
        assert (code, out) == (2, ""), name
        said[name] = sentence(err)
        assert name in err
        assert "facts" not in err or name == "facts.json"
        code, out, _ = typed(verb, str(tmp_path / name), "--json")
        told = json.loads(out)
        assert (code, told["schema"]) == (2, "roce-ring/error/v1")
        assert f"roce-ring: {told['error']['message']}\n  fix: {told['error']['hint']}\n" == err
    assert "cannot be read" in said["gone.json"]
    assert "an unedited plan" in said["edited.json"]
    assert "schema 'roce-ring/mesh-plan/v0'" in said["old.json"]
    assert "holds facts; expected a plan" in said["facts.json"]
    assert "'roce-ring plan --out'" in said["empty.json"]


@pytest.mark.parametrize("verb", VERBS)
@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--agent", "nonsense"], "--agent 'nonsense': expected HOST=ADDRESS"),
        (["--agent", "s1="], "expected HOST=ADDRESS"),
        (["--agent", "s1=pigeon"], "address of s1 'pigeon': expected unix:/path or host:port"),
        (["--agent", "s1=10.0.0.1:7000"], "without mutual TLS anybody could take part"),
        (["--agent", "s9=unix:/x"], "the plan has no node s9"),
        (["--agent", "s1=unix:/a", "--agent", "s1=unix:/b"], "--agent gives s1 twice"),
    ],
)
def test_a_wrong_option_is_a_wrong_use(verb: str, options: list[str], said: str, typed: Run, plan: Path) -> None:
    """Also where other nodes could be asked; nothing is."""
    code, out, err = typed(verb, str(plan), *options)
    assert (code, out) == (2, "")
    assert said in sentence(err)


def test_tls_files_that_are_missing_are_the_callers_mistake(typed: Run, plan: Path) -> None:
    addresses = [f"--agent=s{number}=10.0.0.1:7000" for number in (1, 2, 3, 4)]
    code, _, err = typed("status", str(plan), *addresses, "--tls", str(plan.parent))
    assert code == 2
    assert err.count("ca.pem: no such file") == 1


def test_an_agent_behind_a_port_needs_tls_here_too(typed: Run, plan: Path) -> None:
    """On loopback as well: what answers there speaks nothing else, and would only seem away."""
    code, _, err = typed("status", str(plan), "--agent=s1=127.0.0.1:7000")
    assert code == 2
    assert "an agent at 127.0.0.1:7000 speaks mutual TLS only" in err


def test_ctrl_c_in_the_middle_of_a_commit(fleet: Fleet, plan: Path) -> None:
    """The nodes finish what they began; the program says so, and how to see it and take it back."""
    inside, leave = threading.Event(), threading.Event()

    def slow(command: str) -> None:
        inside.set()
        leave.wait(10)

    fleet.nodes[0].card.before = slow
    with interruptible("up", str(plan), *fleet.addresses()) as process:
        assert inside.wait(20)
        process.send_signal(signal.SIGINT)
        threading.Timer(0.2, leave.set).start()
        status, said = ended(process)
        assert status == 130
        assert "interrupted: nodes go on with plan" in said
        assert f"'roce-ring down {plan}' takes it back" in said
    until(lambda: all(node.agent.status().phase == "active" for node in fleet.nodes), "all nodes have the plan")


def test_ctrl_c_ends_a_watch(fleet: Fleet, plan: Path) -> None:
    fleet.nodes[0].agent.tell("note", "hello")
    with interruptible("watch", str(plan), *fleet.addresses()) as process:
        assert process.stdout is not None
        assert "hello" in process.stdout.readline()
        process.send_signal(signal.SIGINT)
        assert ended(process) == (130, "interrupted\n")


def interruptible(*arguments: str) -> subprocess.Popen[str]:
    return subprocess.Popen([str(PROGRAM), *arguments], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def ended(process: subprocess.Popen[str]) -> tuple[int, str]:
    """(exit status, standard error)"""
    _, said = process.communicate(timeout=20)
    return process.returncode, said
