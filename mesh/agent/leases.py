"""Who uses the paths right now. A session holds a lease for as long as its stream to the agent lives."""

from __future__ import annotations

import contextlib
import threading
import time
from pathlib import Path

import msgspec

FILE = "leases.json"
RESUME_S = 30.0  # sessions come back to an agent that was started again well within this


class Leases:
    """Thread-safe. Those that lived when the agent last ran count until their sessions had time to return."""

    def __init__(self, directory: Path, rebooted: bool) -> None:
        self._path = directory / FILE
        self._lock = threading.Lock()
        self._held: dict[str, str] = {}
        self._before: dict[str, str] = {}
        self._until = time.monotonic() + RESUME_S
        if not rebooted:
            with contextlib.suppress(OSError, msgspec.DecodeError):  # at worst nobody is waited for
                self._before = msgspec.json.decode(self._path.read_bytes(), type=dict[str, str])

    def take(self, session: str, holder: str) -> None:
        with self._lock:
            self._before.pop(session, None)
            self._held[session] = holder
            self._keep()

    def drop(self, session: str) -> None:
        with self._lock:
            self._held.pop(session, None)
            self._keep()

    def all(self) -> dict[str, str]:
        """session -> holder."""
        with self._lock:
            return self._all()

    def _all(self) -> dict[str, str]:
        if time.monotonic() > self._until:
            self._before = {}
        return self._before | self._held

    def _keep(self) -> None:
        new = self._path.with_suffix(".new")
        with contextlib.suppress(OSError):  # a full disk must not keep a session from starting
            new.write_bytes(msgspec.json.encode(self._all()))
            new.rename(self._path)
