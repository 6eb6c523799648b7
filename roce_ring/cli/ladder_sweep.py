"""`roce-ring ladder sweep`: measures what a ladder should say, or whether the one there is holds."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ..errors import ConfigError
from .bench import progress, written
from .number import number
from .ranks import text_table

if TYPE_CHECKING:
    from ..bench.job import Result
    from ..ladder.sweep import Cell

QUICK_MARGIN = 1.10  # a shipped choice holds if nothing that was measured beside it is faster by more


def register(ladder: typer.Typer) -> None:
    @ladder.command()
    def sweep(
        out: Annotated[
            Path | None, typer.Option(metavar="FILE", help="Write the ladder there; FILE.part keeps what is done.")
        ] = None,
        local: Annotated[int, number(int, 2, 16, "Ranks to start on this machine.", show_default="4")] = 4,
        sizes: Annotated[str, typer.Option(help="As for bench.", show_default="24 from 1K to 3M")] = "",
        dtype: Annotated[str, typer.Option(help="float32, bf16 or fp16.")] = "bf16",
        provider: Annotated[str, typer.Option(help="shm or pcie.")] = "shm",
        iters: Annotated[int, number(int, 10, 100_000, "Samples of each mode at each size.")] = 60,
        quick: Annotated[bool, typer.Option("--quick", help="Only see whether the ladder in use holds.")] = False,
        report: Annotated[Path | None, typer.Option(help="Write what was measured as Markdown.")] = None,
        plot: Annotated[Path | None, typer.Option(help="Draw it: .png, .svg or .pdf.")] = None,
    ) -> None:
        """Measure every mode that fits at every size, each checked before it is timed, and choose.

        Of those within 3 % of the best median, the one with the lowest mean is taken; what stalls is out. A sample is
        the time of the slowest rank. Interrupted, it goes on from FILE.part. With --quick it measures one size a
        bucket and exits 1 if another mode is more than 10 % faster than the ladder's.
        """
        from ..bench.cases import Spec, parse_dtypes, parse_sizes
        from ..bench.local import run_local
        from ..ladder.choose import choose, fabric_of
        from ..ladder.model import Key
        from ..ladder.sweep import SIZES, candidates, cells, measure
        from ..settings import Settings

        if not quick and out is None:
            raise ConfigError("sweep needs to know where the ladder goes", "--out FILE, or --quick")
        if quick and out is not None:
            raise ConfigError("--quick writes no ladder, but --out is there", "leave one of them out")
        if provider not in ("shm", "pcie"):
            raise ConfigError(f"--provider: {provider!r} is not one of shm, pcie")
        dtypes = parse_dtypes(dtype)
        if len(dtypes) != 1:
            raise ConfigError(f"--dtype: a ladder is swept with one dtype, these are {len(dtypes)}")
        settings = Settings.from_env({**os.environ, "ROCE_RING_PROVIDER": provider})
        fabric, key = fabric_of(provider, complete=True, forwards=False), Key(world=local, device="cpu")
        inuse = choose(settings.ladder, fabric, key, settings.max_bytes).ladder
        wanted = parse_sizes(sizes) if sizes else list(SIZES)
        if quick and not sizes:
            wanted = [max(low, min(high // 2, SIZES[-1])) for low, high, _ in inuse.bands() if low <= SIZES[-1]]
        if wrong := [size for size in wanted if size % 16]:
            raise ConfigError(f"--sizes: {wrong[0]} is no multiple of 16 bytes, on which buckets end")
        asked = f"{fabric}, {local} ranks, {dtypes[0]}, {iters} samples"
        keep = out.with_name(out.name + ".part") if out else None
        results: list[Result] = []
        with progress() as tell, written("--out", keep):

            def run(some: list[int]) -> Result:
                spec = Spec(some, dtypes, ["all_reduce"], candidates(fabric, local), iters)
                results.append(run_local(local, spec, settings, 1, tell))
                return results[-1]

            rows = [row for _, part in measure(sorted(wanted), asked, keep, run) for row in part]
        found = cells(rows, fabric, local)
        print(table(found))
        with written("--report", report):
            if report:
                report.write_text(f"# Sweep: {asked}\n\n```\n{table(found)}\n```\n", encoding="utf-8")
        with written("--plot", plot):
            if plot and results:
                import msgspec

                from ..bench.plot import plot as draw

                draw(msgspec.structs.replace(results[-1], rows=rows), plot)
        if quick:
            raise typer.Exit(_held(found, inuse))
        assert out is not None
        _write(out, found, fabric, key, asked)
        if keep:
            keep.unlink(missing_ok=True)


def table(found: list[Cell]) -> str:
    rows = []
    for cell in found:
        best, second = cell.rows[cell.selected.mode], cell.second
        beside = f"{second.mode} {second.median:.1f}" if second else ""
        rows.append((f"{cell.size:,}", cell.selected.mode, f"{best.median:.1f}", f"{best.mean:.1f}", beside))
    columns = {"bytes": ">", "mode": "<", "median us": ">", "mean us": ">", "next best": "<"}
    out = sorted({f"{mode}: {why}" for cell in found for mode, why in cell.selected.out.items()})
    return text_table(columns, rows) + "".join(f"\nout: {one}" for one in out)


def _held(found: list[Cell], inuse: object) -> int:
    from ..ladder.model import Ladder

    assert isinstance(inuse, Ladder)
    bad = 0
    for cell in found:
        mode = inuse.profile(cell.size).mode
        ours, best = cell.rows[mode], cell.rows[cell.selected.mode]
        slower = ours.median / best.median
        if ours.wrong or slower > QUICK_MARGIN:
            bad += 1
            print(f"{cell.size:,} bytes: {inuse.name} says {mode}, {cell.selected.mode} is {slower:.2f} times as fast")
    print(f"{inuse.name}: {'holds' if not bad else f'does not hold at {bad} of {len(found)} sizes'}")
    return 1 if bad else 0


def _write(out: Path, found: list[Cell], fabric: str, key: object, asked: str) -> None:
    import platform

    import msgspec

    from ..ladder.loading import parse
    from ..ladder.model import Key
    from ..ladder.sweep import ladder_of

    assert isinstance(key, Key)
    file = ladder_of(found, fabric, key, f"sweep on {platform.node()}: {asked}")
    raw = msgspec.json.format(msgspec.json.encode(file), indent=1)
    digest = parse(raw, str(out)).digest  # what was written can be read
    with written("--out", out):
        out.write_bytes(raw + b"\n")
    print(f"wrote {out}: {len(found)} buckets, digest {digest}; ROCE_RING_LADDER={out} uses it", file=sys.stderr)
