"""What an all-reduce does beside reducing, on the same launch: residual add with RMSNorm behind it (kernels/norm.cuh),
and a cache prefetch while it waits."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from .errors import UnsupportedError
from .modes import Mode, modes
from .native import MAX_PREFETCH, Op
from .tensors import Tensor, describe

_EITHER_OR = "pass both, or neither"


def _overlap(a: Tensor, b: Tensor) -> bool:
    return a.pointer < b.pointer + b.bytes and b.pointer < a.pointer + a.bytes


def _form(t: Tensor) -> str:
    return f"{'' if t.contiguous else 'non-contiguous '}{'' if t.writable else 'read-only '}"


def add_norm(op: Op, x: Tensor, out: Tensor, mode: Mode, residual: Any, weight: Any, eps: float) -> None:
    """Fills in the norm of `op`. `residual`: like x, becomes the new residual in place; `weight`: one row of x. Raises
    UnsupportedError, on all ranks alike if they pass alike."""
    if residual is None or weight is None:
        missing, given = ("residual", "norm_weight") if residual is None else ("norm_weight", "residual")
        raise UnsupportedError(f"all_reduce: {given} is given without {missing}", _EITHER_OR)
    if not mode.raw:
        raw = ", ".join(name for name, one in modes().items() if one.raw)
        raise UnsupportedError(
            f"all_reduce: mode {mode.name} has no fused norm: it passes partial sums on",
            f"take a mode that adds raw contributions ({raw}), or norm in a kernel behind it",
        )
    if not x.shape:
        raise UnsupportedError("all_reduce: x has no dimension, a norm needs rows", "pass x as [rows, hidden]")
    if not (isinstance(eps, float) and 0.0 <= eps < math.inf):
        raise UnsupportedError(f"all_reduce: eps is {eps!r}, expected a finite float of at least 0")
    r, w = describe(residual), describe(weight)
    if (r.shape, r.dtype, r.device, r.contiguous, r.writable) != (x.shape, x.dtype, x.device, True, True):
        raise UnsupportedError(
            f"all_reduce: residual is a {_form(r)}{r.dtype}{list(r.shape)} on {r.device}, "
            f"expected a contiguous writable {x.dtype}{list(x.shape)} on {x.device}, as x is"
        )
    if (w.shape, w.dtype, w.device, w.contiguous) != (x.shape[-1:], x.dtype, x.device, True):
        raise UnsupportedError(
            f"all_reduce: norm_weight is a {'' if w.contiguous else 'non-contiguous '}{w.dtype}{list(w.shape)} on "
            f"{w.device}, expected a contiguous {x.dtype}[{x.shape[-1]}] on {x.device}: one row of x"
        )
    for one, what in ((r, "residual"), (w, "norm_weight")):
        for other, name in ((x, "x"), (out, "out"), (r, "residual")):
            if one is not other and _overlap(one, other):
                raise UnsupportedError(f"all_reduce: {what} overlaps {name}", "pass memory apart from it")
    op.norm_row, op.norm_residual, op.norm_weight, op.norm_eps = x.shape[-1], r.pointer, w.pointer, eps


def add_prefetch(op: Op, tensors: Sequence[Any], device: str, limit: int) -> None:
    """Fills in what `op` prefetches: the first `limit` bytes of all tensors together. Raises UnsupportedError."""
    if len(tensors) > MAX_PREFETCH:
        raise UnsupportedError(
            f"all_reduce: prefetch has {len(tensors)} tensors, at most {MAX_PREFETCH} are taken",
            "pass those that are read first",
        )
    for number, tensor in enumerate(tensors):
        t = describe(tensor)
        if t.device != device or not t.contiguous:
            why = f"is on {t.device}, expected {device}" if t.device != device else "is not contiguous"
            raise UnsupportedError(f"all_reduce: tensor {number} of prefetch {why}")
        op.prefetch[number], op.prefetch_bytes[number] = t.pointer, min(t.bytes, limit)
        limit -= min(t.bytes, limit)
    op.prefetches = len(tensors)
