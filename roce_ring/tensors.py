"""Tensors by pointer: numpy arrays and torch CPU tensors, without importing torch unless the caller has."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from typing import Any

import numpy as np

from .errors import UnsupportedError


@dataclass(frozen=True, slots=True)
class Tensor:
    """What an operation needs to know. `dtype` is float32, float16, bfloat16, or another name (all-gather takes any)."""

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
    """Raises UnsupportedError for anything but a numpy array or a torch tensor."""
    if isinstance(x, np.ndarray):
        # numpy has no bfloat16; ml_dtypes registers one under this name.
        return Tensor(
            x.ctypes.data, x.shape, x.dtype.name, x.dtype.itemsize, "cpu", x.flags.c_contiguous, x.flags.writeable
        )
    if _is_torch(x):
        name = str(x.dtype).removeprefix("torch.")
        return Tensor(x.data_ptr(), tuple(x.shape), name, x.element_size(), x.device.type, x.is_contiguous(), True)
    raise UnsupportedError(f"got a {type(x).__name__}, expected a numpy array or a torch tensor")


def empty(like: Any, shape: tuple[int, ...]) -> Any:
    """An uninitialised tensor of the same kind, dtype and device."""
    if isinstance(like, np.ndarray):
        return np.empty(shape, like.dtype)
    return like.new_empty(shape)
