"""What was recorded of one pattern, and what it says."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from .windows import Windows, find_windows

LONG_US = 1000.0  # the published stalls of reads last 1 to 2.7 ms; nothing else on that host took 0.8


@dataclass(frozen=True, slots=True)
class Summary:
    """One rank's operations, in us. Times of an operation include the meeting it begins with; windows are of what
    follows, so that a rank which only waits for a stalled one shows none."""

    mean: float
    median: float
    p99: float
    maximum: float
    meeting: float
    over_1ms: int
    windows: Windows


@dataclass(frozen=True, slots=True)
class Trace:
    """`at_s`: (ranks, operations, 3): begun, met, ended, on one time line. `bytes`: S of the pattern."""

    pattern: str
    bytes: int
    at_s: NDArray[np.float64]

    def summary(self, rank: int) -> Summary:
        begun, met, ended = self.at_s[rank].T
        took = (ended - begun) * 1e6
        median, p99 = np.percentile(took, [50, 99])
        found = find_windows(begun, (ended - met) * 1e6)
        return Summary(
            mean=float(took.mean()),
            median=float(median),
            p99=float(p99),
            maximum=float(took.max()),
            meeting=float((met - begun).mean() * 1e6),
            over_1ms=int((took > LONG_US).sum()),
            windows=found,
        )

    def write(self, folder: Path) -> None:
        """A file a rank, which `stall find` reads. Raises OSError."""
        for rank, at in enumerate(self.at_s):
            begun, met, ended = at.T
            rows = np.stack([begun, (ended - met) * 1e6], 1)
            file = folder / f"{self.pattern}-{self.bytes}-{rank}.csv"
            np.savetxt(file, rows, fmt="%.9f,%.3f", header="begin_s,us after the ranks had met", comments="# ")
