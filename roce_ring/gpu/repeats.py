"""The short way of an all-reduce that was made before. Decoding makes the same few over and over, and what there is to
find out about one costs more than its launch."""

from __future__ import annotations

import ctypes as ct
import os
import sys
from dataclasses import dataclass
from typing import Any

from ..native import Launch
from ..session import Session
from ..tensors import Tensor, current_stream_of

# Prefills come in thousands of lengths. Beyond this many the memory starts anew: what repeats is soon in it again.
MAX_KNOWN = 256


@dataclass(slots=True)
class _Known:
    """`launch`: byref(). `bytes`: of the payload."""

    launch: Any
    bytes: int
    torch: bool  # else CuPy


class Repeats:
    """Of one session. Two tensors of the same class, dtype and shape, on the session's device and contiguous, pass the
    same checks and make the same operation; only their addresses differ, and those every launch brings."""

    def __init__(self, session: Session) -> None:
        self._launch, self._capturing, self._pid = session.launch, session.capturing, os.getpid()
        self._device = int(session.device.partition(":")[2])
        self._known: dict[tuple[object, ...], _Known] = {}

    def remember(self, x: Any, t: Tensor, asked: tuple[object, ...], launch: Launch) -> None:
        """After all checks. `t`: what x is; `asked`: the call's options."""
        if len(self._known) >= MAX_KNOWN:
            self._known.clear()
        self._known[type(x), x.dtype, x.shape, asked] = _Known(ct.byref(launch), t.bytes, t.library == "torch")

    def again(self, x: Any, out: Any, asked: tuple[object, ...]) -> Any:
        """The output, or None: go the long way, which also says what is wrong."""
        try:
            known = self._known.get((type(x), x.dtype, x.shape, asked))
        except (AttributeError, TypeError):  # no tensor, or options of the wrong type
            return None
        if known is None or os.getpid() != self._pid:
            return None
        device = self._device
        address = _torch_address if known.torch else _cupy_address
        at = to = address(x, device)
        if not at:
            return None
        if out is None and known.torch:
            out = sys.modules["torch"].empty_like(x)
            to = out.data_ptr()
        elif out is None:
            if self._capturing(current_stream_of(False, device)):
                return None  # the long way says what CuPy cannot do there
            out = sys.modules["cupy"].empty(x.shape, x.dtype)
            to = out.data.ptr
        elif out is not x:
            if type(out) is not type(x) or out.dtype != x.dtype or out.shape != x.shape:
                return None
            to = address(out, device)
            if not to or -known.bytes < to - at < known.bytes:
                return None
        self._launch(known.launch, at, to, current_stream_of(known.torch, device))
        return out


def _torch_address(x: Any, device: int) -> int:
    """0 if it lies elsewhere, or not in one piece."""
    if x.get_device() != device or not x.is_contiguous() or x.layout is not sys.modules["torch"].strided:
        return 0
    return int(x.data_ptr())


def _cupy_address(x: Any, device: int) -> int:
    data = x.data
    return int(data.ptr) if data.device_id == device and x.flags.c_contiguous else 0
