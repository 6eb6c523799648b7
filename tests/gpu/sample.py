"""Numbers for the GPU scripts: inputs that every rank can make for every other, the exact answer, and tensors of any
dtype at any address with a guard on both sides."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np

from roce_ring.bench import data
from roce_ring.bench.cases import ITEM_BYTES as BYTES
from roce_ring.bench.data import GUARD

POISON = 0xA5  # as float32, float16 and bfloat16 a small negative number that no sum here gives
Bits = np.ndarray[Any, Any]


def _bits(values: Bits) -> Bits:
    return values.view(f"u{values.itemsize}")


def to_bits(values: Bits, dtype: str) -> Bits:
    """float32 values rounded once to `dtype`, as bit patterns."""
    if dtype == "float32":
        return values.astype(np.float32).view(np.uint32)
    if dtype == "float16":
        return values.astype(np.float16).view(np.uint16)
    bits = np.ascontiguousarray(values, np.float32).view(np.uint32)
    return ((bits + 0x7FFF + (bits >> 16 & 1)) >> 16).astype(np.uint16)


def from_bits(bits: Bits, dtype: str) -> Bits:
    if dtype == "bfloat16":
        return (bits.astype(np.uint32) << 16).view(np.float32)
    return bits.view(np.float32 if dtype == "float32" else np.float16).astype(np.float32)


@cache
def inputs(seed: int, world: int, count: int, dtype: str, whole: bool) -> list[Bits]:
    """Every rank's input as bits. `whole`: small whole numbers, whose sums are exact in any order."""
    if whole:
        return [_bits(data.integers(dtype, count, rank, world, seed)) for rank in range(world)]
    return [_bits(data.reals(dtype, count, rank, seed)) for rank in range(world)]


@cache
def expected(seed: int, world: int, count: int, dtype: str, whole: bool) -> Bits:
    """Their sum: fp32 additions, rank 0 first, one rounding."""
    return _bits((data.sum_of_integers if whole else data.sum_of_reals)(dtype, count, world, seed))


class Room:
    """Device memory for one tensor at a time, with a guard on both sides. Taken once: an allocation may wait for the
    device, whose kernels wait for whoever allocates."""

    def __init__(self, capacity: int) -> None:
        import cupy as cp

        self.memory = cp.full(capacity + 2 * GUARD + 64, POISON, cp.uint8)
        self.use(1, "float32", 0)

    def use(self, count: int, dtype: str, skew: int) -> None:
        """From now on `count` elements, `skew` elements off a 64-byte boundary."""
        self.count, self.dtype = count, dtype
        self._begin = GUARD + skew * BYTES[dtype]
        self._end = self._begin + count * BYTES[dtype]

    def tensor(self, *shape: int) -> Any:
        """A CuPy array, or a torch tensor for bfloat16, which CuPy has not."""
        import cupy as cp

        kind = {"float32": cp.float32, "float16": cp.float16, "bfloat16": cp.int16}[self.dtype]
        array = cp.ndarray(shape or (self.count,), kind, memptr=self.memory.data + self._begin)
        if self.dtype != "bfloat16":
            return array
        import torch

        return torch.as_tensor(array, device="cuda").view(torch.bfloat16)

    def put(self, bits: Bits) -> None:
        self.memory.fill(POISON)
        self.memory[self._begin : self._end].set(np.ascontiguousarray(bits).view(np.uint8))

    def poison(self) -> None:
        self.memory.fill(POISON)

    def bits(self) -> Bits:
        """Waits for the stream. Raises AssertionError if a byte outside was written."""
        import cupy as cp

        # A copy to pageable memory holds the driver's lock while it waits: ranks that are threads of one process would
        # then keep each other from launching what it waits for.
        cp.cuda.get_current_stream().synchronize()
        host = self.memory.get()
        inside = host[self._begin : self._end].copy()
        host[self._begin : self._end] = POISON
        if (host != POISON).any():
            raise AssertionError(f"bytes outside the output were written, first at {np.nonzero(host != POISON)[0][:8]}")
        return inside.view(np.uint32 if self.dtype == "float32" else np.uint16)


def warm_up(*rooms: Room) -> None:
    """Loads every kernel of CuPy and torch that a room uses: loading may wait for the device, whose kernels wait for
    whoever loads."""
    for room in rooms:
        for dtype in BYTES:
            room.use(8, dtype, 0)
            room.put(inputs(0, 2, 8, dtype, True)[0])
            room.tensor()
            room.poison()
            room.bits()
