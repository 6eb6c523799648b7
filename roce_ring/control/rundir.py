"""Where ranks put their control sockets, and who may be behind one.

A socket `<session>-r<rank>.sock` has a lock file beside it that its process holds (flock) for as long as it lives. gRPC
would let a second server take over a socket that is in use, so the lock, not the socket, says who owns it. File
permissions are the access control: 0660 sockets in a 0750 directory.
"""

from __future__ import annotations

import errno
import fcntl
import os
import re
import socket
import stat
import time
import weakref
from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from pathlib import Path

from ..errors import SetupError

DIR_MODE = 0o750
SOCKET_MODE = 0o660
_LONGEST_PATH = 107  # sun_path of unix(7) holds 108 bytes with the final zero
_SOCKET_NAME = re.compile(r"(?P<session>[A-Za-z0-9][A-Za-z0-9._-]*)-r(?P<rank>\d{1,3})\.sock")


def run_dir(chosen: str = "", environ: Mapping[str, str] = os.environ, uid: int | None = None) -> Path:
    """`chosen` (settings.run_dir), else /run/roce-ring for root, $XDG_RUNTIME_DIR/roce-ring, /tmp/roce-ring-UID."""
    uid = os.getuid() if uid is None else uid
    if chosen:
        return Path(chosen)
    if uid == 0:
        return Path("/run/roce-ring")
    if session := environ.get("XDG_RUNTIME_DIR"):
        return Path(session) / "roce-ring"
    return Path(f"/tmp/roce-ring-{uid}")  # noqa: S108  # make_run_dir refuses it unless it is ours alone


def make_run_dir(path: Path, named_by: str = "ROCE_RING_RUN_DIR") -> None:
    """Creates the directory, but none above it: a mistyped path must not become one that nobody looks in. Refuses a
    directory that others could put sockets into. `named_by`: as for SocketLock."""
    own = f"set {named_by} to a directory of its own, e.g. /tmp/roce-ring; it is made if it is missing"
    try:
        path.mkdir(mode=DIR_MODE, exist_ok=True)
        seen = path.lstat()
    except FileNotFoundError:
        gone = path.parent  # which may be there, and take no new directory: /proc
        why = f"{gone} takes no directories" if gone.is_dir() else f"there is no directory {gone}"
        raise SetupError(f"cannot create the run directory {path}: {why}", hint=own) from None
    except OSError as error:
        raise SetupError(f"cannot create the run directory {path}: {_reason(error)}", hint=own) from error
    mode = stat.S_IMODE(seen.st_mode)
    if not stat.S_ISDIR(seen.st_mode):
        raise SetupError(f"run directory {path} is not a directory", hint=own)
    if seen.st_uid not in (os.getuid(), 0):
        raise SetupError(f"run directory {path} belongs to uid {seen.st_uid}, not to uid {os.getuid()}", hint=own)
    if mode & 0o027:
        # Who names /tmp must not be told to close it to everybody else.
        ours = path.name.startswith("roce-ring")
        raise SetupError(
            f"run directory {path} has mode {mode:04o}, expected 0750 or tighter",
            hint=f"chmod 0750 {path}" if ours else own,
        )


def socket_path(directory: Path, session: str, rank: int) -> Path:
    path = directory / f"{session}-r{rank}.sock"
    if len(os.fsencode(path)) > _LONGEST_PATH:
        raise SetupError(
            f"control socket path {path} is {len(os.fsencode(path))} bytes long, the system allows {_LONGEST_PATH}",
            hint="set ROCE_RING_RUN_DIR or ROCE_RING_NAME to something shorter",
        )
    return path


# A forked child shares the lock through its copy of the descriptor, and would hold it after our death: it closes its
# copy.
_held: weakref.WeakSet[SocketLock] = weakref.WeakSet()


def _forget_in_child() -> None:
    for lock in list(_held):
        if lock._fd >= 0:
            os.close(lock._fd)
            lock._fd = -1


os.register_at_fork(after_in_child=_forget_in_child)


class TakenError(SetupError):
    """A running process owns this path."""


class SocketLock:
    """Owns a socket path for this process. Removes a socket that a dead owner left, and both files at release."""

    def __init__(self, path: Path, held_by: str, named_by: str = "ROCE_RING_RUN_DIR") -> None:
        """`held_by`: what another process that wants this path is told, in a few words. `named_by`: what a user changes
        to have another path. Raises TakenError if a process holds it, SetupError if it cannot be had."""
        self.path = path
        self._lock_path = lock_path(path)
        self._named_by = named_by
        self._fd = self._acquire()
        try:
            os.ftruncate(self._fd, 0)
            os.write(self._fd, f"pid {os.getpid()}, {held_by}".encode())
            path.unlink(missing_ok=True)
        except OSError as error:
            self._drop()
            raise self._unusable(error) from error
        _held.add(self)

    def _unusable(self, error: OSError) -> SetupError:
        return SetupError(
            f"cannot open lock file {self._lock_path}: {_reason(error)}",
            hint=f"make room there, or set {self._named_by} to another place"
            if error.errno in (errno.ENOSPC, errno.EDQUOT)
            else f"set {self._named_by} to a place in a directory that exists and that this user may write to",
        )

    def _acquire(self) -> int:
        deadline = time.monotonic() + 0.5  # a cleaner holds a free lock for a moment
        while True:
            try:
                fd = os.open(self._lock_path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o640)
            except OSError as error:
                raise self._unusable(error) from error
            try:
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                owner = os.read(fd, 200).decode(errors="replace") or "another process"
                os.close(fd)
                if time.monotonic() < deadline:
                    time.sleep(0.05)
                    continue
                mine = owner.startswith(f"pid {os.getpid()},")
                raise TakenError(
                    f"{self.path} is already served by {'this' if mine else 'a running'} process ({owner})",
                    hint="give the second communicator another name: settings=Settings(name=...)"
                    if mine
                    else "stop that one, or give this job another ROCE_RING_NAME",
                ) from None
            if _is_same_file(fd, self._lock_path):
                return fd
            os.close(fd)  # a cleaner removed the file between open and lock

    def release(self) -> None:
        if self._fd < 0:
            return
        self.path.unlink(missing_ok=True)
        self._drop()

    def _drop(self) -> None:
        self._lock_path.unlink(missing_ok=True)
        os.close(self._fd)
        self._fd = -1


def remove_stale(directory: Path) -> list[Path]:
    """Removes the sockets and locks that dead ranks left; returns the sockets. Touches nothing without our lock."""
    removed = []
    for path in sorted(directory.glob("*.sock")):
        if not _SOCKET_NAME.fullmatch(path.name):
            continue
        try:
            fd = os.open(lock_path(path), os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC)
        except OSError:
            continue  # without a lock it is not ours; not ours to open, not ours to clean
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if _is_same_file(fd, lock_path(path)):
                path.unlink(missing_ok=True)
                lock_path(path).unlink(missing_ok=True)
                removed.append(path)
        except OSError:
            pass  # its rank is alive (BlockingIOError), or it is not ours to remove
        finally:
            os.close(fd)
    return removed


def lock_path(path: Path) -> Path:
    return path.with_name(path.name + ".lock")


class Reach(Enum):
    """What answers on a socket's path."""

    RUNNING = "running"
    STALE = "stale"  # nobody listens: its process is gone
    DENIED = "permission denied"


@dataclass(frozen=True, slots=True)
class Endpoint:
    path: Path
    session: str
    rank: int
    reach: Reach


def scan(directory: Path) -> list[Endpoint]:
    """Every control socket in a run directory, by session and rank. Connects to each and changes nothing.

    A directory that does not exist holds none; one that may not be read raises SetupError."""
    try:
        names = sorted(path.name for path in directory.iterdir())
    except FileNotFoundError:
        return []
    except OSError as error:
        closed = "run as the user that runs the ranks, or join the group that owns the directory"
        raise SetupError(
            f"cannot look for running ranks in {directory}: {_reason(error)}",
            hint=closed if isinstance(error, PermissionError) else "see --run-dir and ROCE_RING_RUN_DIR",
        ) from error
    found = []
    for name in names:
        if match := _SOCKET_NAME.fullmatch(name):
            reach = probe(directory / name)
            if reach is not None:
                found.append(Endpoint(directory / name, match["session"], int(match["rank"]), reach))
    return sorted(found, key=lambda one: (one.session, one.rank))


def probe(path: Path) -> Reach | None:
    """None: there is nothing at this path."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as client:
        client.settimeout(1.0)
        try:
            client.connect(os.fspath(path))
        except FileNotFoundError:
            return None
        except PermissionError:
            return Reach.DENIED
        except ConnectionRefusedError:
            return Reach.STALE
        except OSError as error:
            if error.errno in (errno.EAGAIN, errno.ETIMEDOUT) or isinstance(error, TimeoutError):
                return Reach.RUNNING  # its backlog is full: somebody is there
            raise SetupError(f"cannot reach control socket {path}: {_reason(error)}") from error
    return Reach.RUNNING


def _is_same_file(fd: int, path: Path) -> bool:
    try:
        on_disk, held = path.stat(), os.fstat(fd)
    except FileNotFoundError:
        return False
    return (on_disk.st_dev, on_disk.st_ino) == (held.st_dev, held.st_ino)


def _reason(error: OSError) -> str:
    return (error.strerror or str(error)).lower()
