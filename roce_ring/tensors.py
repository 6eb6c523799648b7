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


@dataclass(slots=True)  # not frozen: that costs a microsecond per tensor
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
    count: int  # elements
    bytes: int


def _is_torch(x: Any) -> bool:
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(x, torch.Tensor)


_NUMPY_NAMES: dict[np.dtype[Any], str] = {}  # numpy builds a dtype's name anew each time it is asked: 5 us


def _name(dtype: np.dtype[Any]) -> str:
    if dtype.hasobject:
        raise UnsupportedError("got an array of Python objects, expected numbers")
    # numpy has no bfloat16; ml_dtypes registers one under this name. The name of ">f4" is float32 too.
    return _NUMPY_NAMES.setdefault(dtype, dtype.name if dtype.isnative else dtype.str)


def describe(x: Any) -> Tensor:
    """Raises UnsupportedError for anything but a numpy array of numbers or a dense torch tensor."""
    if isinstance(x, np.ndarray):
        if type(x) is not np.ndarray and isinstance(x, np.ma.MaskedArray):
            raise UnsupportedError("got a masked array, whose mask would be lost", "pass x.filled(0)")
        name = _NUMPY_NAMES.get(x.dtype) or _name(x.dtype)
        if name == "uint16" and isinstance(x, Bfloat16Bits):
            name = "bfloat16"
        contiguous, writable = x.flags.c_contiguous, x.flags.writeable
        return Tensor(x.ctypes.data, x.shape, name, x.itemsize, "cpu", contiguous, writable, x.size, x.nbytes)
    if _is_torch(x):
        if str(x.layout) != "torch.strided":
            layout = str(x.layout).removeprefix("torch.")
            raise UnsupportedError(f"got a tensor of layout {layout}, expected a dense one")
        name = str(x.dtype).removeprefix("torch.")
        item, count = x.element_size(), x.numel()
        shape, device = tuple(x.shape), x.device.type
        return Tensor(x.data_ptr(), shape, name, item, device, x.is_contiguous(), True, count, count * item)
    raise UnsupportedError(f"got a {type(x).__name__}, expected a numpy array or a torch tensor")


def empty(like: Any, shape: tuple[int, ...]) -> Any:
    """An uninitialised tensor of the same kind, dtype and device."""
    if isinstance(like, np.ndarray):
        out = np.empty(shape, like.dtype)
        return out.view(Bfloat16Bits) if isinstance(like, Bfloat16Bits) else out
    return like.new_empty(shape)
