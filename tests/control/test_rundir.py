"""The run directory: where it is, who may use it, and what dead ranks leave in it."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from roce_ring.control.rundir import (
    Reach,
    SocketLock,
    lock_path,
    make_run_dir,
    probe,
    remove_stale,
    run_dir,
    scan,
    socket_path,
)
from roce_ring.errors import SetupError


@pytest.mark.parametrize(
    ("chosen", "environ", "uid", "expected"),
    [
        ("/x/y", {"XDG_RUNTIME_DIR": "/run/user/7"}, 0, "/x/y"),
        ("", {"XDG_RUNTIME_DIR": "/run/user/7"}, 0, "/run/roce-ring"),
        ("", {"XDG_RUNTIME_DIR": "/run/user/7"}, 7, "/run/user/7/roce-ring"),
        ("", {}, 7, "/tmp/roce-ring-7"),
    ],
)
def test_the_directory_is_found_without_being_told(
    chosen: str, environ: dict[str, str], uid: int, expected: str
) -> None:
    assert run_dir(chosen, environ, uid) == Path(expected)


def test_a_directory_that_others_can_write_to_is_refused(tmp_path: Path) -> None:
    """Somebody else could put a socket there first and answer in a rank's name."""
    directory = tmp_path / "roce-ring"
    directory.mkdir()
    for mode in (0o777, 0o755, 0o770 | 0o001):
        directory.chmod(mode)
        with pytest.raises(SetupError, match="expected 0750 or tighter") as caught:
            make_run_dir(directory)
        assert caught.value.hint == f"chmod 0750 {directory}"
    directory.chmod(0o2750)  # an administrator's directory with a group of its own
    make_run_dir(directory)


@pytest.mark.parametrize("place", ["/tmp", "/proc", "/"])
def test_nobody_is_told_to_close_a_directory_of_the_system(place: str) -> None:
    """ROCE_RING_RUN_DIR=/tmp: a tired operator pastes what the hint says, as root."""
    with pytest.raises(SetupError) as caught:
        make_run_dir(Path(place))
    assert "chmod" not in str(caught.value)
    assert "set ROCE_RING_RUN_DIR to a directory of its own, e.g. /tmp/roce-ring" in caught.value.hint


def test_a_mistyped_path_is_not_made_into_directories(tmp_path: Path) -> None:
    """Ranks would serve where no `roce-ring status` looks."""
    with pytest.raises(SetupError, match=rf"there is no directory {tmp_path}/rnu") as caught:
        make_run_dir(tmp_path / "rnu" / "roce-ring")
    assert "set ROCE_RING_RUN_DIR" in caught.value.hint
    assert list(tmp_path.iterdir()) == []


@pytest.mark.skipif(shutil.which("unshare") is None, reason="a full file system of its own needs unshare")
@pytest.mark.parametrize("full", ["size=4k", "nr_inodes=2"])
def test_a_full_run_directory_is_one_sentence_and_leaves_nothing(tmp_path: Path, full: str) -> None:
    """A full /run: which path, what to do; and no lock files that fill it further."""
    program = (
        "import sys; from pathlib import Path; from roce_ring.control.rundir import SocketLock\n"
        "from roce_ring.errors import SetupError\n"
        "where = Path(sys.argv[1])\n"
        "try:\n    (where / 'filler').write_bytes(bytes(8192))\nexcept OSError:\n    pass\n"
        "try:\n    SocketLock(where / 'job-r0.sock', 'rank 0')\n"
        "except SetupError as error:\n    print(error.message, error.hint, sep='\\n')\n"
        "print(*(one.name for one in where.iterdir()))\n"
    )
    mount = f'mount -t tmpfs -o {full} none "$1" || exit 77; "$2" -c "$3" "$1"'
    ran = subprocess.run(
        ["unshare", "-rm", "sh", "-c", mount, "sh", str(tmp_path), sys.executable, program],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    if not ran.stdout:
        pytest.skip(f"no file system of its own here: {ran.stderr.strip()}")
    assert ran.stdout.splitlines() == [
        f"cannot open lock file {tmp_path}/job-r0.sock.lock: no space left on device",
        "make room there, or set ROCE_RING_RUN_DIR to another place",
        "filler",
    ], ran.stderr


def test_a_place_that_cannot_be_cleared_leaves_no_lock(tmp_path: Path) -> None:
    path = tmp_path / "job-r0.sock"
    path.mkdir()
    with pytest.raises(SetupError, match=r"job-r0\.sock\.lock: is a directory"):
        SocketLock(path, "rank 0")
    assert list(tmp_path.iterdir()) == [path]


def test_a_link_in_place_of_the_directory_is_refused(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir(mode=0o750)
    (tmp_path / "link").symlink_to(tmp_path / "real")
    with pytest.raises(SetupError, match="is not a directory"):
        make_run_dir(tmp_path / "link")


def test_a_file_in_place_of_the_directory_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(SetupError, match=r"cannot create the run directory .*file"):
        make_run_dir(tmp_path / "file")


def test_a_path_too_long_for_a_socket_is_refused_with_its_length() -> None:
    with pytest.raises(SetupError, match=r"is \d+ bytes long, the system allows 107"):
        socket_path(Path("/" + "d" * 100), "job", 0)


def test_what_a_killed_rank_left_is_found_stale_and_removed_by_the_next(tmp_path: Path) -> None:
    program = (
        "import socket, sys, time; from pathlib import Path; from roce_ring.control.rundir import SocketLock\n"
        f"p = Path('{tmp_path}/job-r1.sock'); lock = SocketLock(p, 'rank 1'); s = socket.socket(socket.AF_UNIX)\n"
        "s.bind(str(p)); s.listen(); print('up', flush=True); time.sleep(60)\n"
    )
    rank = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True)
    assert rank.stdout
    assert rank.stdout.readline() == "up\n"
    path = tmp_path / "job-r1.sock"
    assert remove_stale(tmp_path) == [], "a live rank's socket must never be removed"
    assert [one.reach for one in scan(tmp_path)] == [Reach.RUNNING]
    with pytest.raises(SetupError, match=rf"already served by a running process \(pid {rank.pid}, rank 1\)"):
        SocketLock(path, "rank 1 again")
    rank.send_signal(signal.SIGKILL)
    rank.communicate()
    assert [(one.session, one.rank, one.reach) for one in scan(tmp_path)] == [("job", 1, Reach.STALE)]
    assert remove_stale(tmp_path) == [path]
    assert list(tmp_path.iterdir()) == []


def test_cleaning_leaves_alone_what_is_not_ours(tmp_path: Path) -> None:
    foreign = [tmp_path / "docker.sock", tmp_path / "other-r1.sock", tmp_path / "x.sock.lock"]
    for path in foreign:
        path.touch()
    assert remove_stale(tmp_path) == []
    assert sorted(tmp_path.iterdir()) == sorted(foreign)


def test_a_lock_is_free_again_once_released(tmp_path: Path) -> None:
    path = tmp_path / "job-r0.sock"
    first = SocketLock(path, "first")
    with pytest.raises(SetupError, match=rf"already served by this process \(pid {os.getpid()}, first\)") as caught:
        SocketLock(path, "a second communicator of this process")
    assert "settings=Settings(name=...)" in caught.value.hint
    assert lock_path(path).read_text() == f"pid {os.getpid()}, first"
    first.release()
    first.release()
    SocketLock(path, "second").release()


def test_scan_of_a_directory_that_does_not_exist_finds_nothing(tmp_path: Path) -> None:
    assert scan(tmp_path / "none") == []


def test_scan_sorts_by_rank_as_a_number_and_skips_other_files(tmp_path: Path) -> None:
    for name in ("job-r10.sock", "job-r2.sock", "a-r0.sock"):
        with socket.socket(socket.AF_UNIX) as left_behind:
            left_behind.bind(str(tmp_path / name))
    (tmp_path / "notes.txt").touch()
    assert [(one.session, one.rank) for one in scan(tmp_path)] == [("a", 0), ("job", 2), ("job", 10)]


@pytest.mark.skipif(os.getuid() != 0, reason="only root can become somebody else")
def test_a_stranger_is_denied(tmp_path: Path) -> None:
    """0660 in 0750: neither the directory nor the socket opens for another user."""
    directory = tmp_path / "run"
    make_run_dir(directory)
    path = directory / "job-r0.sock"
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(path))
        listener.listen()
        path.chmod(0o660)
        program = (
            "import os, sys; os.setgroups([]); os.setgid(65534); os.setuid(65534)\n"
            "from pathlib import Path; from roce_ring.control.rundir import probe, scan\n"
            "from roce_ring.errors import SetupError\n"
            "try:\n    print(scan(Path(sys.argv[1])))\nexcept SetupError as error:\n    print(error.message)\n"
            "os.chdir('/')\nprint(probe(Path(sys.argv[2])))"
        )
        assert probe(path) is Reach.RUNNING
        preload = f"import roce_ring.control.rundir, yaml\n{program}"
        out = subprocess.run(
            [sys.executable, "-c", preload, str(directory), str(path)], capture_output=True, text=True, check=False
        )
        assert "permission denied" in out.stdout.splitlines()[0], out.stderr
        assert out.stdout.splitlines()[1] == "Reach.DENIED"
