"""What the fused norm promises (kernels/norm.cuh), in numpy: the same steps in the same order, so the same bits."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

Values = np.ndarray[Any, np.dtype[np.float32]]


def normed(
    total: Values, residual: Values, weight: Values, eps: float, pack: int, rounded: Callable[[Values], Values]
) -> tuple[Values, Values]:
    """Output and new residual, as `total` and `residual` are: float32 values of shape [rows, hidden]. `pack`: elements
    in 16 bytes; `rounded`: to what the dtype can hold."""
    h = rounded(total + residual)
    rows, hidden = h.shape
    turns = -(-hidden // (512 * pack))
    squares = np.zeros((rows, turns * 512 * pack), np.float32)
    squares[:, :hidden] = h * h
    lanes = np.zeros((rows, 512), np.float32)
    for turn in range(turns):
        for element in range(pack):
            lanes += squares.reshape(rows, turns, 512, pack)[:, turn, :, element]
    parts = lanes.reshape(rows, 16, 32)
    while parts.shape[2] > 1:
        parts = parts[:, :, : parts.shape[2] // 2] + parts[:, :, parts.shape[2] // 2 :]
    sums = parts[:, :, 0]
    while sums.shape[1] > 1:
        sums = sums[:, : sums.shape[1] // 2] + sums[:, sums.shape[1] // 2 :]
    scale = np.float32(1) / np.sqrt(sums / np.float32(hidden) + np.float32(eps))
    return rounded(h * scale * weight), h
