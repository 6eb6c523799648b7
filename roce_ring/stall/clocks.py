"""One time line for all ranks. GPUs count nanoseconds each by a clock of its own."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

_SPANS = 64  # medians that the line is drawn through; with fewer operations a slope would be noise
MET = 1  # of begun, met, ended


def aligned(stamps: NDArray[np.int64]) -> NDArray[np.float64]:
    """Seconds since rank 0's first stamp. `stamps`: (ranks, operations, 3) in ns of each rank's clock. All ranks leave
    a meeting within a flag's way of each other: what is constant in the difference, or grows evenly, is the clock."""
    ns = (stamps - stamps[0, 0, 0]).astype(np.float64)
    for rank in range(1, len(ns)):
        at = ns[rank, :, MET]
        ahead = at - ns[0, :, MET]
        spans = min(_SPANS, len(at))
        when = np.array([np.median(part) for part in np.array_split(at, spans)])
        much = np.array([np.median(part) for part in np.array_split(ahead, spans)])
        # The median of all slopes between two spans (Theil and Sen): least squares would follow a stall.
        a, b = np.triu_indices(spans, 1)
        slope = float(np.median((much[b] - much[a]) / (when[b] - when[a]))) if spans == _SPANS else 0.0
        ns[rank] -= slope * ns[rank] + float(np.median(much - slope * when))
    seconds: NDArray[np.float64] = ns * 1e-9
    return seconds
