"""`roce-ring stall record`: lets ranks move bytes for some seconds, and finds when that was slow."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ..errors import ConfigError
from .number import number
from .ranks import Json, text_table

if TYPE_CHECKING:
    from ..stall.record import Machine
    from ..stall.trace import Trace

SCHEMA = "roce-ring/stall-record/v1"
MOST_RANKS = 9  # a GPU maps at most 8 peers
USUAL = "read_ring,pull,push,push_phased"  # what stalls, what collapses, and what does neither
COLUMNS = {
    "pattern": "<", "bytes": ">", "rank": ">", "operations": ">", "mean us": ">", "p50": ">", "p99": ">", "max": ">",
    "meeting": ">", "> 1 ms": ">", "windows": "<",
}  # fmt: skip


def register(stall: typer.Typer) -> None:
    @stall.command()
    def record(
        pattern: Annotated[str, typer.Option(help="Patterns joined by commas, or all; --list names them.")] = USUAL,
        device: Annotated[
            str, typer.Option(help="cpu; cuda or cuda:N for all ranks on one GPU; cuda:0,4,8,12 for a rank on each.")
        ] = "cpu",
        ranks: Annotated[
            int | None, number(int, 2, MOST_RANKS, "How many.", show_default="4, or the GPUs of --device")
        ] = None,
        size: Annotated[str, typer.Option(help="S of a pattern, as for bench.")] = "80K",
        seconds: Annotated[float, number(float, 0.1, 600, "How long, for each pattern.")] = 10.0,
        blocks: Annotated[int, number(int, 1, 64, "Of a rank's kernel.")] = 16,
        out: Annotated[Path | None, typer.Option(metavar="DIR", help="Keep the traces there, a file a rank.")] = None,
        plot: Annotated[Path | None, typer.Option(help="Draw them: .png, .svg or .pdf.")] = None,
        listed: Annotated[bool, typer.Option("--list", help="Name the patterns and stop.")] = False,
        as_json: Json = False,
    ) -> None:
        """Let ranks read from and write to each other's memory, and find windows in which that is slow.

        Each rank is one kernel that stamps every operation: begun, all have met, ended. Windows that come every few
        seconds hide from a median and from a short race; 10 s meet some. Exits 1 if there are windows.
        """
        from ..stall.patterns import PATTERNS
        from ..stall.record import record as recorded

        if listed:
            print(text_table({"pattern": "<", "each rank": "<"}, [(n, one.meaning) for n, one in PATTERNS.items()]))
            return
        names = parse_patterns(pattern)
        if plot:
            from ..bench.plot import plot_problem

            if problem := plot_problem(plot):
                raise ConfigError(problem)
        if out and not out.is_dir():
            raise ConfigError(f"--out: there is no directory {out}", "make it first")
        machine = machine_of(device, ranks, parse_size(size), blocks)
        traces = [recorded(machine, name, seconds) for name in names]
        tell(traces, device, as_json)
        keep(traces, out, plot)
        found = any(trace.summary(rank).windows.at for trace in traces for rank in range(machine.world))
        raise typer.Exit(1 if found else 0)


def parse_patterns(text: str) -> list[str]:
    from ..bench.cases import parse_names
    from ..stall.patterns import PATTERNS

    return parse_names(text, {name: name for name in PATTERNS}, "a pattern")


def parse_size(text: str) -> int:
    from ..bench.cases import parse_sizes
    from ..stall.patterns import PACK_BYTES

    sizes = parse_sizes(text)
    if len(sizes) != 1 or sizes[0] % PACK_BYTES:
        raise ConfigError(f"--size is {text!r}, expected one size that is a multiple of {PACK_BYTES} bytes")
    return sizes[0]


def machine_of(device: str, ranks: int | None, size: int, blocks: int) -> Machine:
    """Raises ConfigError, SetupError."""
    name, _, numbers = device.partition(":")
    listed = numbers.split(",") if numbers else []
    if name == "cpu" and not numbers:
        from ..stall.cpu import Threads

        return Threads(ranks or 4, size)
    if len(listed) > 1 and ranks not in (None, len(listed)):
        raise ConfigError(f"--device {device} names {len(listed)} GPUs for {ranks} ranks", "leave --ranks out")
    from ..gpu.executor import device_number
    from ..stall.gpu import Gpus

    each = [f"{name}:{one}" for one in listed] if len(listed) > 1 else [device] * (ranks or 4)
    if len(each) > MOST_RANKS:
        raise ConfigError(f"--device {device} names {len(each)} GPUs, expected at most {MOST_RANKS}")
    return Gpus([device_number(one) for one in each], size, blocks)


def tell(traces: list[Trace], device: str, as_json: bool) -> None:
    from .stall import as_dict, said

    rows, documents = [], []
    for trace in traces:
        for rank in range(len(trace.at_s)):
            one, ops = trace.summary(rank), len(trace.at_s[rank])
            us = (one.mean, one.median, one.p99, one.maximum, one.meeting)
            head = (trace.pattern, f"{trace.bytes:,}", str(rank), f"{ops:,}")
            rows.append((*head, *(f"{value:.1f}" for value in us), str(one.over_1ms), said(one.windows)))
            names = ("mean_us", "median_us", "p99_us", "max_us", "meeting_us")
            fields = {"pattern": trace.pattern, "bytes": trace.bytes, "rank": rank, "operations": ops}
            documents.append(
                fields | dict(zip(names, us, strict=True)) | {"over_1ms": one.over_1ms} | as_dict(one.windows)
            )
    if as_json:
        print(json.dumps({"schema": SCHEMA, "device": device, "traces": documents}, indent=2))
    else:
        print(text_table(COLUMNS, rows))


def keep(traces: list[Trace], out: Path | None, plot: Path | None) -> None:
    from .bench import written

    with written("--out", out):
        for trace in traces if out else []:
            assert out is not None
            trace.write(out)
    with written("--plot", plot):
        if plot:
            from ..stall.plot import plot as draw

            draw(traces, plot)
