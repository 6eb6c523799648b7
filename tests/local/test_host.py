"""What a host lacks is said before a session takes anything from it: memory, RDMA devices, CPUs."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from roce_ring import host
from tests.local.ranks import Rank, Starter


def room(directory: Path, age_s: int = 0, more: int = 0) -> str | None:
    """memory_problem for a region that is `more` bytes larger than what is free now."""
    for path in directory.iterdir():
        seen = path.stat()
        os.utime(path, (seen.st_atime - age_s, seen.st_mtime - age_s))
    there = os.statvfs(directory)
    return host.memory_problem(there.f_bavail * there.f_frsize + more, 1, 4096, directory)


@pytest.fixture
def shm() -> Iterator[Path]:
    """A directory on a real tmpfs."""
    with tempfile.TemporaryDirectory(dir="/dev/shm", prefix="test-") as where:
        yield Path(where)


def leave_region(directory: Path) -> Path:
    """8 MiB of a process that is not this one."""
    path = directory / "roce-ring-1-0123456789abcdef-r0"
    path.write_bytes(bytes(8 << 20))
    return path


def test_room_is_counted_for_all_ranks_of_this_host(tmp_path: Path) -> None:
    there = os.statvfs(tmp_path)
    free = there.f_bavail * there.f_frsize
    assert host.memory_problem(free // 4, 2, 4096, tmp_path) is None
    said = host.memory_problem(free, 2, 4096, tmp_path)
    assert said and re.search(r"for each of this host's 2 ranks: [\d,.]+ MiB needed, [\d,.]+ MiB free; lower", said)
    assert "ROCE_RING_MAX_BYTES" in said and "the larger is 4096" in said


def test_what_dead_ranks_left_is_said_or_counted_as_free(shm: Path) -> None:
    """Killed during set-up, started again at once: the memory is full of files that the user does not know. A minute
    later the next start removes them, so they must not keep it from starting."""
    path = leave_region(shm)
    said = room(shm, more=32 << 20)
    assert said and re.search(r"ranks that died left another 8\.0 MiB, which a start in (5\d|6[01]) s frees", said)
    assert room(shm, age_s=120, more=4 << 20) is None
    assert path.exists(), "looking removes nothing"


def test_a_region_that_is_in_use_is_not_a_leftover(shm: Path) -> None:
    """And looking at it neither takes nor breaks its owner's lock."""
    program = (
        "import fcntl, sys\nf = open(sys.argv[1], 'r+b')\nfcntl.lockf(f, fcntl.LOCK_EX)\n"
        "print('locked', flush=True)\nsys.stdin.readline()\n"
    )
    path = leave_region(shm)
    owner = subprocess.Popen(
        [sys.executable, "-c", program, str(path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    try:
        assert owner.stdout
        assert owner.stdout.readline() == "locked\n"
        for _ in range(2):
            said = room(shm, age_s=120, more=32 << 20)
            assert said and "died" not in said
    finally:
        owner.communicate("\n")


def starts(me: Rank, **settings: object) -> None:
    me.communicator(**settings).close()


def test_verbs_without_a_plan(start: Starter) -> None:
    """ROCE_RING_PROVIDER=verbs alone: a user knows no hca[0], but may know the plan, or the devices."""
    for error in start(starts, 2, provider="verbs").errors():
        assert error.type == "SetupError"
        assert "provider verbs needs to know which RDMA device of this host leads to which rank" in error.message
        assert re.search(r"it has no RDMA device|its RDMA devices are \S+", error.message)
        assert all(f"ROCE_RING_{name}" in error.message for name in ("PLAN", "HCA", "PEER_HCA_MAPS"))


def test_a_cpu_that_this_process_may_not_have(start: Starter) -> None:
    cpu = 4000
    for error in start(starts, 2, per_rank={1: {"proxy_cpu": cpu}}).errors():
        assert "set-up failed on rank 1" in error.message
        assert f"ROCE_RING_PROXY_CPU is {cpu}, this process may use " in error.message
