"""Traces as a picture: when operations were slow, one panel a pattern, one line a rank."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from .trace import Trace

_COLUMNS = 800  # of a panel: the slowest operation of each is drawn, since one that stalls is what is looked for


def plot(traces: Sequence[Trace], file: Path) -> None:
    """Windows are shaded."""
    import matplotlib

    matplotlib.use("Agg")  # no display needed
    from matplotlib import pyplot as plt

    figure, axes = plt.subplots(len(traces), 1, figsize=(10, 1 + 2.4 * len(traces)), squeeze=False, sharex=True)
    for (axis,), trace in zip(axes, traces, strict=True):
        for rank, at in enumerate(trace.at_s):
            begun, met, ended = at.T
            column = ((begun - begun[0]) / max(begun[-1] - begun[0], 1e-9) * (_COLUMNS - 1)).astype(int)
            slowest = np.zeros(_COLUMNS)
            np.maximum.at(slowest, column, (ended - met) * 1e6)
            shown = slowest > 0
            when = np.linspace(begun[0], begun[-1], _COLUMNS)[shown]
            (line,) = axis.plot(when, slowest[shown], linewidth=0.8, label=f"rank {rank}")
            for first, last in trace.summary(rank).windows.at:
                axis.axvspan(first, last, color=line.get_color(), alpha=0.12, linewidth=0)
        axis.set_yscale("log")
        axis.set_ylabel("us, slowest")
        axis.set_title(f"{trace.pattern}, {trace.bytes / 1024:g} KiB", fontsize="medium")
        axis.grid(visible=True, alpha=0.25)
    axes[0][0].legend(fontsize="small", loc="upper right", ncols=4)
    axes[-1][0].set_xlabel("s")
    figure.tight_layout()
    figure.savefig(file, dpi=110)
    plt.close(figure)
