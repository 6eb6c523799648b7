"""What a Python user does in the first hour: copy the example, start it twice, and get things wrong."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.local.ranks import Rank, Starter

ROOT = Path(__file__).parents[2]
EXAMPLE = ROOT / "examples" / "two_terminals.py"


def script(text: str, where: Path, *arguments: str, **environment: str) -> subprocess.Popen[str]:
    """A copy of the text in a fresh directory, run as a user runs it: no help from this repository's paths."""
    copy = where / "copy" / "two_terminals.py"
    copy.parent.mkdir(exist_ok=True)
    copy.write_text(text)
    clean = {key: value for key, value in os.environ.items() if not key.startswith(("ROCE_RING_", "PYTHONPATH"))}
    return subprocess.Popen(
        [sys.executable, str(copy), *arguments],
        cwd=copy.parent,
        env=clean | {"ROCE_RING_RUN_DIR": str(where)} | environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def ends(process: subprocess.Popen[str], timeout_s: float = 30.0) -> tuple[int, str, str]:
    try:
        out, errors = process.communicate(timeout=timeout_s)
    finally:
        process.kill()
    return process.returncode, out, errors


def clear_up(where: Path) -> None:
    (where / "copy" / "two_terminals.py").unlink()
    (where / "copy").rmdir()


def test_the_readme_example_runs_in_two_terminals(start: Starter) -> None:
    """People copy from the README, so what stands there runs as it stands there, and examples/ holds the same file.
    Rank 1 first: nobody starts two terminals at the same instant."""
    blocks = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)
    [text] = [one for one in blocks if "# two_terminals.py" in one]
    assert len(text.splitlines()) <= 15
    assert text == EXAMPLE.read_text()
    one = script(text, start.where, "1", "2")
    time.sleep(0.5)
    zero = script(text, start.where, "0", "2")
    for rank, (status, out, errors) in enumerate((ends(zero), ends(one))):
        assert (status, errors) == (0, "")
        assert out == f"rank {rank} of 2: {rank + 1}.0 -> 3.0\ngathered: [0 1]\n"
    clear_up(start.where)


def test_both_terminals_with_the_same_rank(start: Starter) -> None:
    """The second terminal's command is the first one's, from the history. Both hear what is wrong, within seconds."""
    text = EXAMPLE.read_text()
    first = script(text, start.where, "0", "2")
    time.sleep(1.5)
    second = script(text, start.where, "0", "2")
    for status, _, errors in (ends(second), ends(first)):
        assert status == 1
        assert "rank 0 joined twice" in errors.splitlines()[-1], errors
    clear_up(start.where)


def test_ctrl_c_while_waiting_for_the_other_terminal(start: Starter) -> None:
    """Who waits for a second terminal that never comes must be able to leave."""
    waiting = script(EXAMPLE.read_text(), start.where, "0", "2")
    time.sleep(2.0)
    assert waiting.poll() is None
    waiting.send_signal(signal.SIGINT)
    began = time.monotonic()
    status, _, errors = ends(waiting, 15)
    assert time.monotonic() - began < 10
    assert status in (1, -signal.SIGINT) and "KeyboardInterrupt" in errors
    clear_up(start.where)


@pytest.mark.parametrize(
    ("name", "value", "sentence"),
    [
        ("ROCE_RING_MAX_BITES", "1024", "ROCE_RING_MAX_BITES is not a setting; did you mean ROCE_RING_MAX_BYTES?"),
        ("ROCE_RING_FOO", "1", "ROCE_RING_FOO is not a setting"),
        ("ROCE_RING_MODE", "rign", "did you mean ring?"),
        ("ROCE_RING_MAX_BYTES", "many", "ROCE_RING_MAX_BYTES: expected a whole number of bytes from 16 to 1073741824"),
    ],
)
def test_a_wrong_environment_variable(start: Starter, name: str, value: str, sentence: str) -> None:
    """A typo in a launch script must not be taken for a default; it is said before anything waits for anybody."""
    began = time.monotonic()
    status, out, errors = ends(script(EXAMPLE.read_text(), start.where, "0", "2", **{name: value}))
    assert time.monotonic() - began < 10
    assert status == 1 and out == ""
    assert sentence in errors.splitlines()[-1], errors
    assert "ConfigError" in errors
    clear_up(start.where)


def test_importing_costs_nothing() -> None:
    """`import roce_ring` in an engine's plugin must not pull in numpy, grpc or torch before anybody asks for a ring."""
    code = "import sys, roce_ring; print(*sorted(set(sys.modules) & {'numpy', 'grpc', 'torch', 'msgspec', 'ctypes'}))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=30, check=True)
    assert done.stdout.strip() == ""
    code = "import roce_ring; roce_ring.AllReduce; roce_ring.AllRedoce"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=30, check=False)
    assert "has no attribute 'AllRedoce'" in done.stderr


# ---- hosts that lack what a region needs ----


def no_memory(me: Rank, directory: str = "", max_bytes: int = 1 << 20) -> None:
    import roce_ring.session

    if directory:
        config = roce_ring.session.Session._config

        def elsewhere(session: roce_ring.session.Session, first_seq: int) -> roce_ring.session.Config:
            out = config(session, first_seq)
            out.shm_dir = directory.encode()
            return out

        roce_ring.session.Session._config = elsewhere  # type: ignore[method-assign]
    me.communicator(max_bytes=max_bytes)


def test_shared_memory_that_cannot_be_written(start: Starter) -> None:
    """A container without /dev/shm on one rank: all ranks say which one and where."""
    for error in start(no_memory, 3, per_rank={1: {"directory": "/no/such/directory"}}).errors():
        assert error.type == "SetupError"
        assert "rank 1: cannot create a region file in /no/such/directory: No such file or directory" in error.message


def test_shared_memory_that_is_too_small(start: Starter) -> None:
    """Docker's 64 MiB /dev/shm: an error with the number of bytes at start, not a bus error in the middle of a run."""
    stat = os.statvfs("/dev/shm")
    largest = 1 << 30  # of a slot; a region has two to send from, each double, and two a rank to receive in
    world = next((n for n in range(2, 17) if (4 + 2 * n) * largest > stat.f_frsize * stat.f_blocks), 0)
    if not world:
        pytest.skip("/dev/shm of this machine has room for the largest region there is")
    # Said before the first page is taken: filling /dev/shm takes long and starves whoever else needs it.
    for error in start(no_memory, world, max_bytes=largest).errors(timeout_s=15):
        assert error.type == "SetupError"
        assert "/dev/shm has no room for a region of" in error.message
        assert f"for each of this host's {world} ranks" in error.message
        assert "lower ROCE_RING_MAX_BYTES" in error.message
        assert "give the container a larger /dev/shm" in error.message
        assert all(f"rank {rank}:" in error.message for rank in range(world))
