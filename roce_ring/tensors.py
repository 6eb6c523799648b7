"""Tensors by pointer: numpy arrays and torch CPU tensors, without importing torch unless the caller has."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from typing import Any

import numpy as np

from .errors import UnsupportedError


class Bfloat16Bits(np.ndarray):
    """A uint16 array whose elements are bfloat16 bit patterns: `bits.view(Bfloat16Bits)`. For those who have neither
    torch nor ml_dtypes; it only tells the communicator what the bits mean, arithmetic on it is arithmetic on
    integers."""


@dataclass(frozen=True, slots=True)
class Tensor:
    """What an operation needs to know. `dtype` is float32, float16, bfloat16, or another name (all-gather takes
    any)."""

    pointer: int
    shape: tuple[int, ...]
    dtype: str
    item_bytes: int
    device: str
    contiguous: bool
    writable: bool

    @property
    def count(self) -> int:
        n = 1
        for one in self.shape:
            n *= one
        return n

    @property
    def bytes(self) -> int:
        return self.count * self.item_bytes


def _is_torch(x: Any) -> bool:
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(x, torch.Tensor)


def describe(x: Any) -> Tensor:
    """Raises UnsupportedError for anything but a numpy array of numbers or a dense torch tensor."""
    if isinstance(x, np.ndarray):
        if x.dtype.hasobject:
            raise UnsupportedError("got an array of Python objects, expected numbers")
        # numpy has no bfloat16; ml_dtypes registers one under this name. The name of ">f4" is float32 too.
        name = x.dtype.name if x.dtype.isnative else x.dtype.str
        if isinstance(x, Bfloat16Bits) and x.dtype == np.uint16:
            name = "bfloat16"
        return Tensor(x.ctypes.data, x.shape, name, x.dtype.itemsize, "cpu", x.flags.c_contiguous, x.flags.writeable)
    if _is_torch(x):
        if str(x.layout) != "torch.strided":
            layout = str(x.layout).removeprefix("torch.")
            raise UnsupportedError(f"got a tensor of layout {layout}, expected a dense one")
        name = str(x.dtype).removeprefix("torch.")
        return Tensor(x.data_ptr(), tuple(x.shape), name, x.element_size(), x.device.type, x.is_contiguous(), True)
    raise UnsupportedError(f"got a {type(x).__name__}, expected a numpy array or a torch tensor")


def empty(like: Any, shape: tuple[int, ...]) -> Any:
    """An uninitialised tensor of the same kind, dtype and device."""
    if isinstance(like, np.ndarray):
        out = np.empty(shape, like.dtype)
        return out.view(Bfloat16Bits) if isinstance(like, Bfloat16Bits) else out
    return like.new_empty(shape)
