"""Who uses the paths right now. A session holds a lease for as long as its stream to the agent lives."""

from __future__ import annotations

import contextlib
import itertools
import threading
import time
from pathlib import Path

import msgspec

from .model import Holder

FILE = "leases.json"
RESUME_S = 30.0  # sessions come back to an agent that was started again well within this


class Leases:
    """Thread-safe. Those that lived when the agent last ran count until their sessions had time to return."""

    def __init__(self, directory: Path, rebooted: bool) -> None:
        self._path = directory / FILE
        self._lock = threading.Lock()
        self._numbers = itertools.count()
        self._held: dict[int, Holder] = {}  # one per stream: two ranks of a session may be on one node
        self._before: list[Holder] = []
        self._until = time.monotonic() + RESUME_S
        if not rebooted:
            with contextlib.suppress(OSError, msgspec.MsgspecError):  # at worst nobody is waited for
                self._before = msgspec.json.decode(self._path.read_bytes(), type=list[Holder])

    def take(self, session: str, holder: str) -> int:
        """What drop() wants."""
        with self._lock:
            one, number = Holder(session, holder), next(self._numbers)
            if one in self._before:
                self._before.remove(one)
            self._held[number] = one
            self._keep()
            return number

    def drop(self, number: int) -> None:
        with self._lock:
            self._held.pop(number, None)
            self._keep()

    def all(self) -> tuple[Holder, ...]:
        with self._lock:
            return self._all()

    def _all(self) -> tuple[Holder, ...]:
        if self._before and time.monotonic() > self._until:
            self._before = []
            self._keep()
        return (*self._before, *self._held.values())

    def _keep(self) -> None:
        new = self._path.with_suffix(".new")
        with contextlib.suppress(OSError):  # a full disk must not keep a session from starting
            new.write_bytes(msgspec.json.encode((*self._before, *self._held.values())))
            new.rename(self._path)
