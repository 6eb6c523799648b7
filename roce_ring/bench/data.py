"""Inputs and right answers. Every rank can make every rank's input, so that it knows the answer without asking.

Inputs that are small integers have one right answer in every mode and dtype: with |x| <= 256 // world no partial sum of
any subset of ranks exceeds 256; bfloat16 holds all integers up to 256 (8 significant bits), float16 up to 2048, float32
up to 2^24. So nothing is ever rounded, wherever and however often a mode rounds.

bfloat16 is kept as its bit patterns (numpy has no such dtype); the communicator takes them as Bfloat16Bits.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..tensors import Bfloat16Bits

Array = NDArray[Any]

STORAGE: dict[str, np.dtype[Any]] = {
    "float32": np.dtype(np.float32),
    "float16": np.dtype(np.float16),
    "bfloat16": np.dtype(np.uint16),
}
POISON = 0xFF  # bytes of it are a NaN in all three dtypes
GUARD = 64
_SEED = 20_260_801


def encode(values: NDArray[np.float32], dtype: str) -> Array:
    """float32 -> the dtype's storage; rounds to nearest, ties to even."""
    if dtype != "bfloat16":
        return values.astype(STORAGE[dtype])
    bits = values.view(np.uint32)
    return ((bits + (0x7FFF + (bits >> 16 & 1))) >> 16).astype(np.uint16)


def decode(stored: Array, dtype: str) -> NDArray[np.float32]:
    if dtype != "bfloat16":
        return stored.astype(np.float32)
    return (stored.astype(np.uint32) << 16).view(np.float32)


def _generator(rank: int, turn: int) -> np.random.Generator:
    return np.random.default_rng((_SEED, turn, rank))


def integers(dtype: str, count: int, rank: int, world: int, turn: int) -> Array:
    """Rank's exact input number `turn`."""
    limit = 256 // world
    values = _generator(rank, turn).integers(-limit, limit, count, dtype=np.int16, endpoint=True)
    return encode(values.astype(np.float32), dtype)


def sum_of_integers(dtype: str, count: int, world: int, turn: int) -> Array:
    total = np.zeros(count, np.float32)
    for rank in range(world):
        total += decode(integers(dtype, count, rank, world, turn), dtype)
    return encode(total, dtype)


def reals(dtype: str, count: int, rank: int, turn: int) -> Array:
    """Rank's input number `turn` with fractions: sums round, so that the order of additions shows."""
    return encode(_generator(rank, turn).standard_normal(count, dtype=np.float32), dtype)


def sum_of_reals(dtype: str, count: int, world: int, turn: int) -> Array:
    """In fp32, rank 0 first, rounded once: what modes promise in which raw contributions meet."""
    total = decode(reals(dtype, count, 0, turn), dtype)
    for rank in range(1, world):
        total = total + decode(reals(dtype, count, rank, turn), dtype)
    return encode(total, dtype)


def any_bits(dtype: str, count: int, rank: int, turn: int) -> Array:
    """For what only moves bytes: every pattern must come through, NaNs of all kinds included."""
    raw = _generator(rank, turn).integers(0, 256, count * STORAGE[dtype].itemsize, dtype=np.uint8)
    return raw.view(STORAGE[dtype])


def differing(got: Array, wanted: Array) -> int:
    """How many elements differ in any bit; a NaN equals only the same NaN."""
    kind = f"u{wanted.dtype.itemsize}"
    return int(np.count_nonzero(np.ascontiguousarray(got).view(kind) != np.ascontiguousarray(wanted).view(kind)))


class Placed:
    """Room for `count` elements that starts `offset` bytes past a 64-byte boundary, with poison in it and around it."""

    def __init__(self, dtype: str, count: int, offset: int = 0) -> None:
        self.dtype, size = dtype, count * STORAGE[dtype].itemsize
        self._raw = np.full(size + offset + 3 * GUARD, POISON, np.uint8)
        self._begin = -self._raw.ctypes.data % GUARD + GUARD + offset
        self._end = self._begin + size
        self.values: Array = self._raw[self._begin : self._end].view(STORAGE[dtype])

    def send(self) -> None:
        """`values` and what is around them -> where the operation finds them."""

    def fetch(self) -> None:
        """The way back."""

    def spilled(self) -> int:
        """Bytes outside the room that somebody wrote to."""
        raw = self._raw
        return int(np.count_nonzero(raw[: self._begin] != POISON) + np.count_nonzero(raw[self._end :] != POISON))

    def tensor(self, begin: int = 0, count: int | None = None) -> Any:
        """Elements of the room as the communicator takes them."""
        part = self.values[begin : None if count is None else begin + count]
        return part.view(Bfloat16Bits) if self.dtype == "bfloat16" else part
