"""The files a user copies onto a node: systemd takes them without a complaint, and they fit the rest of the project."""

from __future__ import annotations

import grp
import os
import re
import shlex
import shutil
import socket
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from mesh.loading import load_facts
from mesh.marker import RUN_DIR
from roce_ring.cli import agent
from tests.mesh.rings import EXAMPLES

DEPLOY = Path(__file__).resolve().parents[2] / "deploy"
UNITS = sorted((DEPLOY / "systemd").glob("*.service"))
AGENT = DEPLOY / "systemd" / "roce-ring-agent.service"
PREFIX = "/opt/roce-ring"


def analyze(*arguments: str | Path) -> str:
    """What systemd-analyze says; it needs no running systemd."""
    if not shutil.which("systemd-analyze"):
        if os.environ.get("CI") == "true":
            pytest.fail("no systemd-analyze; run: sudo apt-get install systemd")
        pytest.skip("no systemd-analyze (Debian: systemd)")
    done = subprocess.run(
        ["systemd-analyze", *arguments], capture_output=True, text=True, check=False, timeout=30, env={"LC_ALL": "C"}
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout + done.stderr


@pytest.fixture(params=UNITS, ids=lambda unit: unit.name)
def installed(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """A unit as it would be with its program in place."""
    unit: Path = request.param
    for name in ("roce-ring", "roce-ring-marker"):
        program = tmp_path / "bin" / name
        program.parent.mkdir(exist_ok=True)
        program.write_text("#!/bin/sh\n")
        program.chmod(0o755)
    copy = tmp_path / unit.name
    copy.write_text(unit.read_text().replace(PREFIX, str(tmp_path)))
    return copy


def test_there_are_the_units() -> None:
    assert [unit.name for unit in UNITS] == ["roce-ring-acs.service", "roce-ring-agent.service"]


def test_systemd_knows_every_line(installed: Path) -> None:
    """An unknown or misspelt key is only a warning to systemd, and the protection it names is then missing."""
    assert analyze("verify", "--man=no", installed) == ""


def test_a_misspelt_line_would_be_seen(installed: Path) -> None:
    installed.write_text(installed.read_text().replace("ProtectHome=", "ProtectHomes="))
    assert "Unknown key" in analyze("verify", "--man=no", installed)


def test_a_unit_may_do_little_else(installed: Path) -> None:
    """systemd's own measure, from 0 to 10; a unit without any hardening has 9.6."""
    found = re.search(r"exposure level for \S+: ([0-9.]+)", analyze("security", "--offline=true", installed))
    assert found is not None
    assert float(found[1]) < 4.5


def setting(unit: Path, key: str) -> list[str]:
    return [line.split("=", 1)[1] for line in unit.read_text().splitlines() if line.startswith(f"{key}=")]


def test_what_the_marker_and_the_agent_count_on_is_in_the_unit() -> None:
    unit = AGENT
    assert setting(unit, "KillMode") == ["process"]  # markers outlive the agent
    assert setting(unit, "RuntimeDirectoryPreserve") == ["yes"]
    assert RUN_DIR.is_relative_to(Path("/run") / setting(unit, "RuntimeDirectory")[0])
    assert set(setting(unit, "CapabilityBoundingSet")[0].split()) == {"CAP_NET_ADMIN", "CAP_NET_RAW"}
    assert setting(unit, "LimitMEMLOCK") == ["infinity"]
    assert not setting(unit, "PrivateDevices")  # /dev/infiniband
    group = (DEPLOY / "systemd" / "roce-ring.sysusers.conf").read_text().splitlines()[-1]
    assert group.split() == ["g", setting(unit, "Group")[0], "-"]


def test_the_agents_own_folders_are_those_of_the_unit() -> None:
    unit = AGENT
    assert Path("/var/lib") / setting(unit, "StateDirectory")[0] == agent.STATE_DIR
    assert Path("/run") / setting(unit, "RuntimeDirectory")[0] == agent.RUN_DIR


@pytest.mark.skipif(os.geteuid() != 0, reason="only root has an agent")
def test_the_units_command_starts_an_agent_that_says_when_it_is_ready(tmp_path: Path) -> None:
    """Type=notify: without the message systemd would end the agent after half a minute. In a network name space of its
    own, as one runs per node."""
    unit = AGENT
    program, *words = shlex.split(setting(unit, "ExecStart")[0])
    words[words.index("--group") + 1] = grp.getgrgid(os.getegid()).gr_name  # the unit's is not on this machine
    command = [sys.executable, "-m", "roce_ring.cli.main", *words]
    assert program == f"{PREFIX}/bin/roce-ring"
    assert setting(unit, "Type") == ["notify"]
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        manager.bind(str(tmp_path / "notify"))
        manager.settimeout(20)
        folders = ["--state-dir", str(tmp_path / "state"), "--run-dir", str(tmp_path / "roce-ring")]
        process = subprocess.Popen(
            ["unshare", "--net", *command, *folders], env={**os.environ, "NOTIFY_SOCKET": str(tmp_path / "notify")}
        )
        try:
            assert manager.recv(100) == b"READY=1"
        finally:
            process.terminate()
            assert process.wait(timeout=10) == 0


def test_every_file_is_explained() -> None:
    text = (DEPLOY / "README.md").read_text()
    for file in DEPLOY.rglob("*.*"):
        assert file.name == "README.md" or f"`{file.relative_to(DEPLOY)}`" in text


def test_netplan_sample_is_the_sample_plans_first_node() -> None:
    network = yaml.safe_load((DEPLOY / "netplan" / "60-roce-ring.yaml").read_text())["network"]
    first = load_facts(EXAMPLES / "four-spark-ring.yaml")[0]
    assert {name: entry["addresses"] for name, entry in network["ethernets"].items()} == {
        port.netdev: [port.ipv4] for port in first.ports
    }
    for entry in network["ethernets"].values():
        assert (entry["mtu"], entry["optional"], entry["dhcp4"]) == (9000, True, False)
        assert not {"gateway4", "routes", "nameservers"} & set(entry)
