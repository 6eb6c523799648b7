"""What Python says about a marker: its command, and whether one is alive with the right marks."""

from __future__ import annotations

import os
import shlex
import subprocess
from pathlib import Path

import pytest

from mesh.marker import RUN_DIR, argv, marker_program, running, state
from mesh.model import Mark, Marker
from tests.marker.lab import Lab, until

BY_PORT = Mark(None, 65535, 0x88B5)
FAR, FARTHER = Mark("10.10.2.10", None, 0x88B6), Mark("10.10.3.10", None, 0x88B7)


def marker(*marks: Mark) -> Marker:
    return Marker("rocep1s0f0", marks)


def test_command_is_exact() -> None:
    both = marker(BY_PORT, FAR)
    words = "--mark sport=65535,ethertype=0x88b5 --mark dst=10.10.2.10,ethertype=0x88b6"
    assert shlex.join(argv(both)) == f"roce-ring-marker --device rocep1s0f0 {words}"
    assert argv(both, Path("/tmp/x"))[3:5] == ["--run-dir", "/tmp/x"]


def test_the_default_folder_is_the_programs(built: tuple[list[str], Path]) -> None:
    command, _ = built
    text = subprocess.run([*command, "--help"], capture_output=True, text=True, check=True, timeout=20).stdout
    assert f"(default {RUN_DIR})" in text


def test_life_of_a_marker_as_the_agent_sees_it(lab: Lab) -> None:
    wanted = marker(BY_PORT, FAR)
    assert running("rocep1s0f0", lab.run_dir) is None
    process = lab.ready(*argv(wanted)[1:])
    found = running("rocep1s0f0", lab.run_dir)
    assert found is not None
    assert found.marks == (BY_PORT, FAR)
    assert state(wanted, lab.run_dir) == "identical"
    assert state(marker(FAR, BY_PORT), lab.run_dir) == "identical"
    assert state(marker(FAR), lab.run_dir) == "different"
    assert state(marker(BY_PORT, FAR, FARTHER), lab.run_dir) == "different"
    process.terminate()
    assert process.wait(timeout=10) == 0
    assert state(wanted, lab.run_dir) == "absent"


def test_the_pid_is_the_locks(lab: Lab, built: tuple[list[str], Path]) -> None:
    process = lab.ready(*argv(marker(BY_PORT))[1:])
    found = running("rocep1s0f0", lab.run_dir)
    assert found is not None
    assert found.pid == process.pid


def test_a_killed_marker_is_absent_whatever_its_file_says(lab: Lab, tmp_path: Path) -> None:
    """Its number may be another process's by now, its rules are gone, and its file is in nobody's way."""
    process = lab.ready(*argv(marker(BY_PORT))[1:])
    process.kill()
    process.communicate(timeout=10)
    assert (lab.run_dir / "rocep1s0f0.state").stat().st_size > 0
    assert state(marker(BY_PORT), lab.run_dir) == "absent"
    gate = tmp_path / "gate"
    os.mkfifo(gate)
    lab.start(*argv(marker(FAR))[1:], RR_FAKE_GATE=str(gate))
    until(lambda: state(marker(FAR), lab.run_dir) != "absent", "the next one holds the lock")
    until(lambda: state(marker(FAR), lab.run_dir) == "starting", "its rules are not there yet, nor the old ones")
    gate.open("wb").close()
    until(lambda: state(marker(FAR), lab.run_dir) == "identical", "it is ready")


def test_looking_does_not_keep_a_marker_from_starting(lab: Lab) -> None:
    (lab.run_dir).mkdir()
    (lab.run_dir / "rocep1s0f0.state").touch()
    with (lab.run_dir / "rocep1s0f0.state").open("rb"):
        assert running("rocep1s0f0", lab.run_dir) is None
        lab.ready(*argv(marker(BY_PORT))[1:])


def test_anyone_may_look(lab: Lab) -> None:
    lab.ready(*argv(marker(BY_PORT))[1:])
    assert (lab.run_dir / "rocep1s0f0.state").stat().st_mode & 0o777 == 0o644


def test_absent_program_is_one_sentence(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr("sysconfig.get_path", lambda name: str(tmp_path))
    with pytest.raises(FileNotFoundError, match=r"^roce-ring-marker is not at .* and not on PATH; .*libibverbs-dev"):
        marker_program()
    program = tmp_path / "roce-ring-marker"
    program.touch(mode=0o755)
    assert marker_program() == program
    assert os.access(program, os.X_OK)
