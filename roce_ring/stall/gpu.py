"""Ranks as kernels of this process, one for each, all on one GPU or on one each."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..errors import ConfigError, SetupError
from ..gpu.p2p import ALREADY_ENABLED
from ..gpu.program import compiled, import_cupy
from ..native import STALL_LINE, STALL_STAMPS
from .patterns import Step
from .record import came, meetings, order

THREADS = 512


class Gpus:
    """See record.Machine. `devices[r]`: rank r's, as CUDA counts them. Raises SetupError, ConfigError."""

    def __init__(self, devices: Sequence[int], size: int, blocks: int) -> None:
        self.world, self.bytes = len(devices), size
        self._cupy, self._devices, self._blocks = import_cupy(), devices, blocks
        self._runtime = self._cupy.cuda.runtime
        self._met = 0
        self._data: list[Any] = []
        self._flags: list[Any] = []
        self._streams: list[Any] = []
        self._host: list[Any] = []
        self._kernels = {device: self._open(device) for device in dict.fromkeys(devices)}
        for device in devices:
            with self._cupy.cuda.Device(device):
                self._data.append(self._cupy.zeros(self.world * size, np.uint8))
                self._flags.append(self._cupy.zeros(blocks * self.world * STALL_LINE, np.uint8))
                self._streams.append(self._cupy.cuda.Stream(non_blocking=True))
                self._host.append(self._cupy.cuda.alloc_pinned_memory(size))
                self._runtime.deviceSynchronize()
        self.run([[]] * self.world, 0)  # loads the kernels: later that might wait for one that waits for us

    def _open(self, device: int) -> Any:
        """Its kernel; it may reach the others' memory then. Kernels that wait for each other must all run at once."""
        here = self._devices.count(device)
        with self._cupy.cuda.Device(device):
            most = self._runtime.getDeviceProperties(device)["multiProcessorCount"]
            if here * self._blocks > most:
                raise ConfigError(
                    f"{here} ranks of {self._blocks} blocks do not fit GPU {device}, which runs {most} at once",
                    f"--blocks {most // here}",
                )
            for peer in dict.fromkeys(self._devices):
                if peer == device:
                    continue
                try:
                    self._runtime.deviceEnablePeerAccess(peer)
                except self._runtime.CUDARuntimeError as error:
                    if error.status != ALREADY_ENABLED:
                        raise SetupError(
                            f"GPU {device} may not reach the memory of GPU {peer}: {error}",
                            "see 'roce-ring topo --p2p'",
                        ) from error
            return compiled("stall.cuh").get_function("rr_stall_kernel")

    def run(self, steps: Sequence[Sequence[Step]], ops: int) -> NDArray[np.int64]:
        cupy = self._cupy
        data, flags = [one.data.ptr for one in self._data], [one.data.ptr for one in self._flags]
        stamps, words, orders = [], [], []
        for rank, mine in enumerate(steps):
            with cupy.cuda.Device(self._devices[rank]):
                stamps.append(cupy.zeros(ops * STALL_STAMPS, np.int64))
                words.append(cupy.zeros(3, np.uint64))  # lost, grid
                one = order(rank, mine, ops, self._met, data, flags, self.bytes)
                one.host, one.stamps = self._host[rank].ptr, stamps[rank].data.ptr
                one.lost = words[rank].data.ptr
                one.grid = one.lost + words[rank].itemsize
                orders.append(cupy.asarray(np.frombuffer(bytes(one), np.uint8)))
                self._runtime.deviceSynchronize()
        self._met += ops * meetings(steps[0])
        for rank, device in enumerate(self._devices):
            with cupy.cuda.Device(device), self._streams[rank]:
                self._kernels[device]((self._blocks,), (THREADS,), (orders[rank],))
        for rank, device in enumerate(self._devices):
            with cupy.cuda.Device(device):
                self._streams[rank].synchronize()
        came([int(one.get()[0]) for one in words])
        return np.stack([one.get().reshape(ops, STALL_STAMPS) for one in stamps])
