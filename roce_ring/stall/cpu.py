"""Ranks as threads of this process, through its memory: what tests run, and what a host's own noise looks like."""

from __future__ import annotations

import ctypes as ct
import threading
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from ..native import STALL_LINE, STALL_STAMPS, native
from .patterns import Step
from .record import came, meetings, order


class Threads:
    """See record.Machine."""

    def __init__(self, world: int, size: int) -> None:
        self.world, self.bytes = world, size
        self._data = [np.zeros(world * size // 8, np.uint64) for _ in range(world)]
        self._flags = [np.zeros(world * STALL_LINE // 8, np.uint64) for _ in range(world)]
        self._host = [np.zeros(size // 8, np.uint64) for _ in range(world)]
        self._met = 0

    def run(self, steps: Sequence[Sequence[Step]], ops: int) -> NDArray[np.int64]:
        words = np.zeros((self.world, 3), np.uint64)  # lost, grid
        stamps = np.zeros((self.world, ops, STALL_STAMPS), np.int64)
        data, flags = [one.ctypes.data for one in self._data], [one.ctypes.data for one in self._flags]
        orders = [order(rank, mine, ops, self._met, data, flags, self.bytes) for rank, mine in enumerate(steps)]
        for rank, one in enumerate(orders):
            one.host, one.stamps = self._host[rank].ctypes.data, stamps[rank].ctypes.data
            one.lost = words[rank].ctypes.data
            one.grid = words[rank, 1:].ctypes.data
        self._met += ops * meetings(steps[0])
        run = native().kernels.rr_stall_cpu
        threads = [threading.Thread(target=run, args=(ct.byref(one), 0, 1), daemon=True) for one in orders]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        came(words[:, 0].tolist())
        return stamps
