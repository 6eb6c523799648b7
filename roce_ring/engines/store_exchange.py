"""Ranks that meet over a torch.distributed store: torchrun's TCPStore, a file, or a prefix of one."""

from __future__ import annotations

import time
from contextlib import suppress
from typing import Any

from ..control.meeting import ExchangeError, ranks

# Ranks of a group mostly come together, and a set-up has about ten meetings.
_FIRST_LOOK_S, _LATER_LOOKS_S = 0.001, 0.05


class StoreExchange:
    """An Exchange. The store stays the caller's, and a key of each rank stays in it."""

    def __init__(self, store: Any, rank: int, world: int) -> None:
        """`store`: a torch Store that nothing else writes to; a PrefixStore will do. It is looked at again and again
        and never waited on: a TCPStore's client serves one caller at a time, and another thread's set-up may have to go
        first."""
        self.rank, self.world = rank, world
        self._store, self._round = store, 0

    def all_gather(self, payload: bytes, timeout_s: float) -> list[bytes]:
        """Everybody's bytes, index = rank. Raises ExchangeError naming the ranks that did not come in `timeout_s`."""
        number, self._round = self._round, self._round + 1
        deadline, pause = time.monotonic() + timeout_s, _FIRST_LOOK_S
        keys = [f"{number}/{rank}" for rank in range(self.world)]
        try:
            self._store.set(keys[self.rank], b"=" + payload)  # a FileStore takes an empty value for none
            while not self._store.check(keys):
                if time.monotonic() >= deadline and not all(there := [self._store.check([key]) for key in keys]):
                    raise self._late(there, timeout_s)
                time.sleep(pause)
                pause = min(2 * pause, _LATER_LOOKS_S)
            out = [bytes(self._store.get(key))[1:] for key in keys]
        except RuntimeError as error:  # torch's DistError
            said = str(error).splitlines()[0] if str(error) else type(error).__name__
            raise ExchangeError(
                f"the store of the process group does not answer any more: {said}",
                "its host, mostly rank 0, has ended: read its log; start all ranks again",
            ) from error
        # Everybody is in this round, so everybody has read the one before.
        if number:
            with suppress(RuntimeError):
                self._store.delete_key(f"{number - 1}/{self.rank}")
        return out

    def _late(self, there: list[bool], timeout_s: float) -> ExchangeError:
        missing = ranks([rank for rank, here in enumerate(there) if not here])
        arrived = ", ".join(str(rank) for rank, here in enumerate(there) if here)
        return ExchangeError(
            f"{missing} did not arrive within {timeout_s:g} s; arrived: {arrived}",
            f"read the log of {missing}; start all ranks again",
        )

    def barrier(self, timeout_s: float) -> None:
        self.all_gather(b"", timeout_s)

    def close(self) -> None:
        """Nothing: the store is its owner's."""
