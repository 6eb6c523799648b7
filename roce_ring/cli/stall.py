"""`roce-ring stall find`: windows in which operations are slow, in a trace of them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ..errors import ConfigError
from .number import number
from .ranks import Json, text_table

if TYPE_CHECKING:
    from ..stall.windows import Windows

SCHEMA = "roce-ring/stall/v1"
MOST_BYTES = 1 << 30


def register(app: typer.Typer) -> None:
    stall = typer.Typer(
        name="stall", no_args_is_help=True, help="Windows in which operations are slow: record, find (docs/topo.md)."
    )
    app.add_typer(stall, rich_help_panel="Watch")

    from .stall_quadrants import register as register_quadrants
    from .stall_record import register as register_record

    @stall.command()
    def find(
        trace: Annotated[
            Path, typer.Argument(metavar="TRACE", help="CSV: begin in seconds, duration in us, a line an operation.")
        ],
        resolution: Annotated[float, number(float, 0.0001, 10, "Shortest window looked for, in seconds.")] = 0.01,
        as_json: Json = False,
    ) -> None:
        """Find windows in which operations are slow, and whether they come in a beat.

        Such windows hide from a median and from a short race: reads across the quadrants of an IO die stall for 150 to
        200 ms every 2.3 s. Record 10 s or more. Exits 1 if there are windows.
        """
        from ..stall.windows import find_windows

        begin, took = load(trace)
        found = find_windows(begin, took, resolution)
        if as_json:
            print(json.dumps({"schema": SCHEMA, "operations": len(begin)} | as_dict(found), indent=2))
        else:
            rows = [(f"{a:.3f}", f"{(b - a) * 1e3:.0f}") for a, b in found.at]
            if rows:
                print(text_table({"begins (s)": ">", "lasts (ms)": ">"}, rows))
            print(f"{len(begin)} operations: {said(found)}; {found.slow:.1%} slow in them, {found.alone:.1%} elsewhere")
        raise typer.Exit(1 if found.at else 0)

    register_record(stall)
    register_quadrants(stall)


def said(found: Windows) -> str:
    """How many windows, how often, how long."""
    if not found.at:
        return "no windows"
    beat = f"every {found.period:.2f} s (up to {found.jitter * 1e3:.0f} ms off)" if found.period else "no beat"
    return f"{len(found.at)} windows, {beat}, {found.width * 1e3:.0f} ms each"


def as_dict(found: Windows) -> dict[str, object]:
    return {
        "windows": [{"begin_s": a, "end_s": b} for a, b in found.at], "period_s": found.period,
        "phase_s": found.phase, "jitter_s": found.jitter, "width_s": found.width, "slow_share": found.slow,
        "alone_share": found.alone,
    }  # fmt: skip


def load(path: Path) -> Any:
    """(begins in s, durations in us). Lines that begin with # or a letter are headings. Raises ConfigError."""
    import numpy as np

    fix = "write lines like 0.000102,19.8: begin in seconds, duration in microseconds"
    try:
        if path.stat().st_size > MOST_BYTES:
            raise ConfigError(f"trace {path} has more than {MOST_BYTES >> 20} MiB", "cut it")
        lines = path.read_text(encoding="utf-8").splitlines()
    except OSError as error:
        raise ConfigError(f"cannot read trace {path}: {(error.strerror or str(error)).lower()}", fix) from None
    except UnicodeDecodeError:
        raise ConfigError(f"trace {path} is not text", fix) from None
    rows = []
    for number_of, line in enumerate(lines, 1):
        if not line.strip() or line[0] == "#" or line[0].isalpha():
            continue
        try:
            begin, took = map(float, line.split(","))
        except ValueError:
            raise ConfigError(f"trace {path}, line {number_of}: {line[:40]!r} is not two numbers", fix) from None
        rows.append((begin, took))
    table = np.array(rows, float).reshape(-1, 2)
    if not np.isfinite(table).all() or (table[:, 1] < 0).any() or (np.diff(table[:, 0]) < 0).any():
        raise ConfigError(f"trace {path}: expected finite numbers, durations from 0 up, begins in order", fix)
    return table[:, 0], table[:, 1]
