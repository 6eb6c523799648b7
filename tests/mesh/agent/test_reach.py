"""Agents of other nodes over ssh: a script (fake_ssh.py) that takes the same arguments and forwards as ssh does."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from mesh.agent import reach
from mesh.agent.client import AgentClient, AgentError
from mesh.agent.reach import agents
from mesh.loading import plan_text
from roce_ring.errors import ConfigError, RoceRingError
from tests.mesh.agent.conftest import plan_of
from tests.mesh.agent.fleet import Fleet

FAKE = Path(__file__).with_name("fake_ssh.py")
PROGRAM = Path(sys.executable).with_name("roce-ring")


@pytest.fixture
def fleet(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Fleet]:
    with Fleet(plan_of("triangle"), tmp_path, monkeypatch) as fleet:
        yield fleet


@pytest.fixture
def ssh(fleet: Fleet, monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """The fake; temporary folders are made where the test can see them."""
    monkeypatch.setenv("NODES", json.dumps({node.host: str(node.socket) for node in fleet.nodes}))
    with tempfile.TemporaryDirectory(prefix="rr-") as short:
        monkeypatch.setenv("TMPDIR", short)
        monkeypatch.setattr(tempfile, "tempdir", None)
        yield [sys.executable, str(FAKE)]


def left_behind() -> tuple[list[str], list[str]]:
    """(ssh processes, temporary folders)"""
    shown = subprocess.run(["ps", "-ewwo", "args="], capture_output=True, text=True, check=True).stdout
    place = Path(os.environ["TMPDIR"])
    return [line for line in shown.splitlines() if str(place) in line], [path.name for path in place.iterdir()]


def test_every_node_is_asked_over_its_own_connection(fleet: Fleet, ssh: list[str]) -> None:
    with agents(fleet.plan.hosts, {"s2": "ssh:root@s2"}, None, ssh) as found:
        assert list(found) == list(fleet.plan.hosts)
        for one in found.values():
            assert isinstance(one, AgentClient)
            for _ in range(3):
                assert one.status().phase == "idle"
        processes, folders = left_behind()
        assert (len(processes), len(folders)) == (3, 1)
        assert all("BatchMode=yes" in line and "ControlPath=none" in line for line in processes)
    assert left_behind() == ([], [])


def test_each_that_fails_says_why_and_the_others_are_asked(fleet: Fleet, ssh: list[str]) -> None:
    """Banners and warnings come before the line that counts. No temporary path is shown to the user."""
    hosts = (fleet.plan.hosts[0], "no-route", "no-key", "no-name", "bare")
    with agents(hosts, {}, None, ssh) as found:
        errors = {host: str(one) for host, one in found.items() if isinstance(one, RoceRingError)}
    assert set(errors) == set(hosts[1:])
    assert errors["no-route"].startswith("ssh failed (ssh: connect to host no-route port 22: No route to host)")
    assert "ssh failed (root@no-key: Permission denied (publickey).)" in errors["no-key"]
    assert "Could not resolve hostname" in errors["no-name"]
    assert errors["bare"].startswith("ssh reaches bare, but no agent behind /run/roce-ring/agent.sock there")
    assert "systemctl start roce-ring-agent" in errors["bare"]
    for text in errors.values():
        assert "\n" not in text
        assert os.environ["TMPDIR"] not in text
    assert left_behind() == ([], [])


def test_a_host_that_does_not_answer_costs_a_bounded_time(
    fleet: Fleet, ssh: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reach, "LOGIN_S", 1.0)
    began = time.monotonic()
    with agents((fleet.plan.hosts[0], "hangs"), {}, None, ssh) as found:
        assert "ssh failed (no message)" in str(found["hangs"])
    assert time.monotonic() - began < 4
    assert left_behind() == ([], [])


def test_an_ssh_that_does_not_end_is_ended(fleet: Fleet, ssh: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NODES", json.dumps({"stubborn": str(fleet.nodes[0].socket)}))
    with agents(("stubborn", "no-route"), {}, None, ssh) as found:
        assert isinstance(found["stubborn"], AgentClient)
    assert left_behind() == ([], [])


def test_a_failure_in_the_middle_leaves_nothing(fleet: Fleet, ssh: list[str]) -> None:
    with pytest.raises(ZeroDivisionError), agents(fleet.plan.hosts, {}, None, ssh):
        raise ZeroDivisionError
    assert left_behind() == ([], [])


def test_an_ssh_that_dies_under_a_call_is_one_sentence(fleet: Fleet, ssh: list[str]) -> None:
    """The connection breaks while a node is asked."""
    with agents(fleet.plan.hosts, {}, None, ssh) as found:
        one = found[fleet.plan.hosts[0]]
        assert isinstance(one, AgentClient)
        shown = subprocess.run(["ps", "-ewwo", "pid=,args="], capture_output=True, text=True, check=True).stdout
        for line in shown.splitlines():
            if os.environ["TMPDIR"] in line:
                os.kill(int(line.split()[0]), signal.SIGKILL)
        with pytest.raises(AgentError, match="the agent of s1 over ssh cannot be reached"):
            one.status()


@pytest.mark.parametrize(
    ("program", "said"),
    [("no-such-ssh", "'no-such-ssh' is not installed here"), ("/etc", "'/etc' cannot be started: permission denied")],
)
def test_no_ssh_is_one_sentence(program: str, said: str) -> None:
    with agents(("s1", "s2"), {}, None, [program]) as found:
        assert all(said in str(one) for one in found.values())


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"s9": "ssh:s9"}, "the plan has no node s9 (its nodes are s1, s2)"),
        ({"s1": "ssh:-oProxyCommand=x"}, "names no host that ssh could log in to"),
        ({"s1": "ssh:"}, "names no host that ssh could log in to"),
        ({"s1": "ssh:a b"}, "names no host that ssh could log in to"),
        ({"s1": "carrier pigeon"}, "address of s1 'carrier pigeon': expected unix:/path or host:port"),
        ({"s1": "unix:relative"}, "an absolute path"),
        ({"s1": "10.0.0.1:7000"}, "without mutual TLS anybody could take part (give --tls, or go over ssh)"),
    ],
)
def test_an_address_that_cannot_be_right_is_a_wrong_use(given: dict[str, str], said: str) -> None:
    """Refused before anything is started, whatever the other nodes say."""
    with pytest.raises(ConfigError) as caught, agents(("s1", "s2"), given, None, ["no-such-ssh"]):
        pass
    assert said in str(caught.value)


def test_all_wrong_addresses_are_told_at_once() -> None:
    given = {"s1": "pigeon", "s2": "10.0.0.1:1", "s3": "ssh:s3"}
    with pytest.raises(ConfigError) as caught, agents(("s1", "s2"), given, None):
        pass
    for part in ("no node s3", "address of s1", "address of s2"):
        assert part in caught.value.message


def test_ctrl_c_ends_the_search_and_leaves_nothing(fleet: Fleet, ssh: list[str], tmp_path: Path) -> None:
    """While ssh still tries: no process, no socket, no folder, and no traceback."""
    program = tmp_path / "bin" / "ssh"
    program.parent.mkdir()
    program.write_text(f'#!/bin/sh\nexec {sys.executable} {FAKE} "$@"\n')
    program.chmod(0o755)
    (tmp_path / "plan.json").write_text(plan_text(fleet.plan))
    argv = [str(PROGRAM), "verify", str(tmp_path / "plan.json"), "--agent=s1=ssh:hangs", "--agent=s2=ssh:hangs"]
    environment = {**os.environ, "PATH": f"{program.parent}:{os.environ['PATH']}"}
    with subprocess.Popen(argv, env=environment, stderr=subprocess.PIPE, text=True) as process:
        deadline = time.monotonic() + 40  # a program of this size takes long to start on a busy machine
        while len(left_behind()[0]) < 3:
            assert time.monotonic() < deadline, "three connections were not tried"
            time.sleep(0.02)
        began = time.monotonic()
        process.send_signal(signal.SIGINT)  # to it alone: a terminal would tell ssh as well
        _, said = process.communicate(timeout=20)
    assert (process.returncode, said) == (130, "interrupted\n")
    assert time.monotonic() - began < 3
    assert left_behind() == ([], [])
