"""Tensors by pointer: numpy and CuPy arrays and torch tensors. Neither torch nor CuPy is imported here: whoever passes
one has."""

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
    any). `device` is cpu, cuda:N, or another name that no communicator has. `library`: numpy, torch or cupy."""

    pointer: int
    shape: tuple[int, ...]
    dtype: str
    item_bytes: int
    device: str
    contiguous: bool
    writable: bool
    count: int  # elements
    bytes: int
    library: str


def _is_torch(x: Any) -> bool:
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(x, torch.Tensor)


_NUMPY_NAMES: dict[np.dtype[Any], str] = {}  # numpy builds a dtype's name anew each time it is asked: 5 us

_TORCH_NAMES: dict[Any, str] = {}


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
        return Tensor(x.ctypes.data, x.shape, name, x.itemsize, "cpu", contiguous, writable, x.size, x.nbytes, "numpy")
    if _is_torch(x):
        if x.layout is not sys.modules["torch"].strided:
            layout = str(x.layout).removeprefix("torch.")
            raise UnsupportedError(f"got a tensor of layout {layout}, expected a dense one")
        name = _TORCH_NAMES.get(x.dtype) or _TORCH_NAMES.setdefault(x.dtype, str(x.dtype).removeprefix("torch."))
        item, count = x.element_size(), x.numel()
        shape, device = tuple(x.shape), x.device.type
        if device == "cuda":
            device = f"cuda:{x.get_device()}"
        return Tensor(x.data_ptr(), shape, name, item, device, x.is_contiguous(), True, count, count * item, "torch")
    cupy = sys.modules.get("cupy")
    if cupy is not None and isinstance(x, cupy.ndarray):
        name = _NUMPY_NAMES.get(x.dtype) or _name(x.dtype)
        device, contiguous = f"cuda:{x.data.device_id}", x.flags.c_contiguous
        return Tensor(x.data.ptr, x.shape, name, x.itemsize, device, contiguous, True, x.size, x.nbytes, "cupy")
    raise UnsupportedError(f"got a {type(x).__name__}, expected a numpy or CuPy array or a torch tensor")


def empty(like: Any, shape: tuple[int, ...]) -> Any:
    """An uninitialised tensor of the same kind, dtype and device."""
    if isinstance(like, np.ndarray):
        out = np.empty(shape, like.dtype)
        return out.view(Bfloat16Bits) if isinstance(like, Bfloat16Bits) else out
    if _is_torch(like):
        return like.new_empty(shape)
    return sys.modules["cupy"].empty(shape, like.dtype)


def current_stream_of(torch_s: bool, device: int) -> int:
    """The stream that torch, or else CuPy, would work on now. Asked for at every call: a stream kept from an earlier
    one would leave a graph capture empty."""
    if torch_s:
        torch = sys.modules["torch"]
        if raw := getattr(torch._C, "_cuda_getCurrentRawStream", None):  # what torch's own launchers ask: 0.1 for 4 us
            return int(raw(device))
        return int(torch.cuda.current_stream(device).cuda_stream)
    return int(sys.modules["cupy"].cuda.get_current_stream(device).ptr)


def current_stream(t: Tensor) -> int:
    """Of the tensor's library and device."""
    return current_stream_of(t.library == "torch", int(t.device.partition(":")[2]))
