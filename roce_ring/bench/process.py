"""What a bench process knows of its processors, and how it ends in order."""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any


@dataclass(frozen=True, slots=True)
class CpuTime:
    """Seconds since boot that the CPUs of this machine were there and were busy, and that this process ran."""

    there: float
    busy: float
    ours: float

    @classmethod
    def now(cls) -> CpuTime:
        line = Path("/proc/stat").read_text(encoding="ascii").split("\n", 1)[0]
        ticks = [int(one) for one in line.split()[1:9]]  # proc(5): user nice system idle iowait irq softirq steal
        times = os.times()
        scale = os.sysconf("SC_CLK_TCK")
        return cls(sum(ticks) / scale, (sum(ticks) - ticks[3] - ticks[4]) / scale, times.user + times.system)

    def others_share(self, later: CpuTime, ours_s: float) -> float:
        """The share of the time between the two in which the CPUs neither idled nor worked for us: `ours_s` seconds,
        over all of our processes here."""
        others = later.busy - self.busy - ours_s
        return min(max(others / max(later.there - self.there, 1e-3), 0.0), 1.0)


@contextlib.contextmanager
def interruptible() -> Iterator[None]:
    """Turns SIGTERM and SIGHUP into SystemExit, as Ctrl-C is KeyboardInterrupt already, so that clean-up runs."""

    def leave(number: int, _frame: FrameType | None) -> None:
        raise SystemExit(128 + number)

    before: dict[int, Any] = {}
    try:
        for number in (signal.SIGTERM, signal.SIGHUP):
            before[number] = signal.signal(number, leave)
        yield
    finally:
        for saved, handler in before.items():
            signal.signal(saved, handler)
