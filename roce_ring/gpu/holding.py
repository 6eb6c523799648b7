"""Who may still touch memory that ranks of one host share: each holds a shared lock on one file for as long as it may.
The kernel drops a lock with its process, so a dead rank holds nobody up."""

from __future__ import annotations

import fcntl
import os
import time
from contextlib import suppress
from pathlib import Path

from ..errors import SetupError


class Holding:
    """Holds from construction to let_go(). Raises SetupError."""

    def __init__(self, path: Path) -> None:
        self._path = path
        try:
            self._fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
            fcntl.flock(self._fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except OSError as error:
            raise SetupError(f"cannot lock {path}: {error.strerror}") from error

    def unname(self) -> None:
        """Once all ranks hold: the file needs no name any more."""
        with suppress(FileNotFoundError):
            self._path.unlink()

    def let_go(self) -> None:
        self.unname()
        if self._fd >= 0:
            fcntl.flock(self._fd, fcntl.LOCK_UN)  # also of what a forked child has inherited

    def all_let_go(self, timeout_s: float) -> bool:
        """Whether every rank has let go, or does so in time. After let_go()."""
        deadline = time.monotonic() + timeout_s
        while self._fd >= 0 and not self._alone():
            if time.monotonic() > deadline:
                return False
            time.sleep(0.005)
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1
        return True

    def _alone(self) -> bool:
        try:
            fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        fcntl.flock(self._fd, fcntl.LOCK_UN)  # the others look for the same
        return True
