"""Ranks that meet over a torch.distributed store: torchrun's TCPStore, a file, or a prefix of one."""

from __future__ import annotations

import time
from contextlib import suppress
from datetime import timedelta
from typing import Any

from ..control.meeting import ExchangeError, ranks


class StoreExchange:
    """An Exchange. The store stays the caller's, and a key of each rank stays in it."""

    def __init__(self, store: Any, rank: int, world: int) -> None:
        """`store`: a torch Store that nothing else writes to (a PrefixStore will do) and that no other thread waits
        on: a TCPStore serves one caller at a time."""
        self.rank, self.world = rank, world
        self._store, self._round = store, 0

    def all_gather(self, payload: bytes, timeout_s: float) -> list[bytes]:
        """Everybody's bytes, index = rank. Raises ExchangeError naming the ranks that did not come in `timeout_s`."""
        number, self._round = self._round, self._round + 1
        deadline = time.monotonic() + timeout_s
        keys = [f"{number}/{rank}" for rank in range(self.world)]
        try:
            self._store.set(keys[self.rank], b"=" + payload)  # a FileStore takes an empty value for none
            for key in keys:
                # At least a moment: what is there already is there in time.
                self._store.wait([key], timedelta(seconds=max(deadline - time.monotonic(), 0.01)))
            out = [bytes(self._store.get(key))[1:] for key in keys]
        except RuntimeError as error:  # torch's DistError, and what its older stores raise
            raise self._who(keys, timeout_s, error) from error
        # Everybody is in this round, so everybody has read the one before.
        if number:
            with suppress(RuntimeError):
                self._store.delete_key(f"{number - 1}/{self.rank}")
        return out

    def _who(self, keys: list[str], timeout_s: float, error: RuntimeError) -> ExchangeError:
        try:
            missing = [rank for rank, key in enumerate(keys) if not self._store.check([key])]
        except RuntimeError:
            missing = []
        if not missing:
            said = str(error).splitlines()[0] if str(error) else type(error).__name__
            return ExchangeError(
                f"the store of the process group does not answer any more: {said}",
                "its host, mostly rank 0, has ended: read its log; start all ranks again",
            )
        arrived = [rank for rank in range(self.world) if rank not in missing]
        return ExchangeError(
            f"{ranks(missing)} did not arrive within {timeout_s:g} s; arrived: {', '.join(map(str, arrived))}",
            f"read the log of {ranks(missing)}; start all ranks again",
        )

    def barrier(self, timeout_s: float) -> None:
        self.all_gather(b"", timeout_s)

    def close(self) -> None:
        """Nothing: the store is its owner's."""
