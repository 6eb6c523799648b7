"""Finds windows in which operations are slow, in a trace of start times and durations: how often, how long, since when.

The published case: reads into a quadrant of an IO die are 10 to 50 times slower for 150 to 200 ms every 2.30 s.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

SLOW = 5.0  # times the median; the published windows show 10 and more, the scheduler of a quiet host less
_BINS = 40  # a window is looked for at a fortieth of the trace's longest pause between slow operations ...
_FULL = 0.5  # ... and at least half of a bin's operations are slow: a single late one is no window


@dataclass(frozen=True, slots=True)
class Windows:
    """Seconds. `at`: begin and end of each window; `period` and `phase`: begin of window n is about phase + n * period
    (0.0 each with fewer than three windows); `jitter`: largest distance from that. `slow`: share of all operations in
    windows; `alone`: share that was slow outside."""

    at: tuple[tuple[float, float], ...]
    period: float
    phase: float
    jitter: float
    slow: float
    alone: float

    @property
    def width(self) -> float:
        """Median length of a window."""
        return float(np.median([end - begin for begin, end in self.at])) if self.at else 0.0


def find_windows(begin_s: NDArray[np.float64], took_us: NDArray[np.float64], resolution_s: float = 0.01) -> Windows:
    """`begin_s`: when each operation began, ascending; `took_us`: how long it took. `resolution_s`: the shortest window
    worth the name. ValueError if the two do not belong together."""
    if begin_s.shape != took_us.shape or begin_s.ndim != 1 or (np.diff(begin_s) < 0).any():
        raise ValueError("begin_s and took_us must be as long as each other, and begin_s ascending")
    if not len(begin_s):
        return Windows((), 0.0, 0.0, 0.0, 0.0, 0.0)
    slow = took_us > SLOW * np.median(took_us)
    bins = ((begin_s - begin_s[0]) / resolution_s).astype(np.int64)
    count = np.bincount(bins)
    hit = np.bincount(bins, weights=slow)
    # A stalled operation may outlast a bin, so empty ones between two full ones belong to them.
    full = np.flatnonzero(hit > _FULL * np.maximum(count, 1))
    spans = _joined(full, count)
    at = [_edges(begin_s, took_us, slow, bins, first, last) for first, last in spans]
    inside = np.zeros(len(begin_s), bool)
    for begin, end in at:
        inside |= (begin_s >= begin) & (begin_s <= end)
    period, phase, jitter = _beat(np.array([begin for begin, _ in at]))
    return Windows(
        tuple(at), period, phase, jitter, float((slow & inside).mean()), float((slow & ~inside).mean())
    )  # fmt: skip


def _joined(full: NDArray[np.int64], count: NDArray[np.int64]) -> list[tuple[int, int]]:
    spans: list[tuple[int, int]] = []
    for one in full.tolist():
        if (spans and not count[spans[-1][1] + 1 : one].any()) or (spans and one - spans[-1][1] <= 2):
            spans[-1] = (spans[-1][0], one)
        else:
            spans.append((one, one))
    return spans


def _edges(
    begin_s: NDArray[np.float64],
    took_us: NDArray[np.float64],
    slow: NDArray[np.bool_],
    bins: NDArray[np.int64],
    first: int,
    last: int,
) -> tuple[float, float]:
    """From the first slow operation of these bins to the end of the last."""
    of = np.flatnonzero(slow & (bins >= first - 1) & (bins <= last + 1))
    return float(begin_s[of[0]]), float(begin_s[of[-1]] + took_us[of[-1]] * 1e-6)


def _beat(begins: NDArray[np.float64]) -> tuple[float, float, float]:
    """Period, phase and largest deviation of begins that may leave some beats out: least squares over whole numbers of
    beats."""
    if len(begins) < 3:
        return 0.0, 0.0, 0.0
    steps = np.diff(begins)
    period = float(np.median(steps[steps < 1.5 * steps.min()]))
    for _ in range(3):
        numbers = np.round((begins - begins[0]) / period)
        fit = np.polyfit(numbers, begins, 1)
        period, phase = float(fit[0]), float(fit[1])
    return period, phase % period, float(np.abs(begins - (phase + numbers * period)).max())
