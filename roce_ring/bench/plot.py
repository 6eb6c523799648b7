"""Latency against size, one line for each mode."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

from ..errors import ConfigError
from .cases import GLOO
from .job import Result, Row

_FORMATS = ("png", "svg", "pdf")


def plot_problem(file: Path) -> str | None:
    """Why a plot could not be written to `file`; asked before the ranks are started."""
    if find_spec("matplotlib") is None:
        return "--plot needs matplotlib, which is not installed: pip install 'roce-ring[plot]'"
    if file.suffix.lstrip(".") not in _FORMATS:
        return f"--plot: {file.name} should end in one of .{', .'.join(_FORMATS)}"
    return None


def plot(result: Result, file: Path) -> None:
    """One panel per operation and dtype: medians as lines, p99 as a pale band. Rows with wrong values are left out."""
    import matplotlib

    matplotlib.use("Agg")  # no display needed
    from matplotlib import pyplot as plt
    from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

    # One mode a size: a line of what all_reduce does by itself reads better than one in pieces.
    ours = [row.case for row in result.rows if row.case.mode not in ("", GLOO)]
    only_auto = all(case.chosen for case in ours) and len({case.mode for case in ours}) > 1

    def names(row: Row) -> str:
        return "auto" if only_auto and row.case.chosen else row.case.mode or row.case.op

    panels: dict[tuple[str, str], dict[str, list[Row]]] = {}
    for row in result.rows:
        if not row.wrong.total:
            lines = panels.setdefault((row.case.op, row.case.dtype), {})
            lines.setdefault(names(row), []).append(row)
    if not panels:
        raise ConfigError("--plot: every row has wrong values, there is nothing to draw")
    modes = list(dict.fromkeys(mode for lines in panels.values() for mode in lines))
    figure, axes = plt.subplots(1, len(panels), figsize=(1.5 + 5.5 * len(panels), 5), squeeze=False, sharey=True)
    for axis, ((op, dtype), lines) in zip(axes[0], panels.items(), strict=True):
        for mode, rows in lines.items():
            rows.sort(key=lambda row: row.case.bytes)
            sizes, medians = [row.case.bytes for row in rows], [row.us.median for row in rows]
            look = {"color": "black", "linestyle": "--"} if mode == GLOO else {"color": f"C{modes.index(mode)}"}
            axis.plot(sizes, medians, marker="o", markersize=4, label=mode, **look)
            axis.fill_between(
                sizes, medians, [row.us.p99 for row in rows], alpha=0.12, linewidth=0, color=look["color"]
            )
        axis.set_xscale("log", base=2)
        axis.set_yscale("log")
        axis.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
        axis.yaxis.set_minor_formatter(NullFormatter())
        axis.xaxis.set_major_formatter(FuncFormatter(lambda size, _: _size(size)))
        axis.yaxis.set_major_formatter(FuncFormatter(lambda us, _: f"{us:g}"))
        axis.set_xlabel("size (bytes)")
        axis.set_title(f"{op}, {dtype}")
        axis.grid(visible=True, alpha=0.25)
        axis.legend(fontsize="small")
    axes[0][0].set_ylabel("time (us): median, band up to p99")
    first = result.ranks[0]
    figure.suptitle(f"roce-ring, {result.world} ranks on {first.cpus} CPUs, {first.provider}")
    figure.tight_layout()
    figure.savefig(file, dpi=120)
    plt.close(figure)


def _size(size: float) -> str:
    for unit, scale in (("M", 1 << 20), ("K", 1 << 10)):
        if size >= scale:
            return f"{size / scale:g}{unit}"
    return f"{size:g}"
