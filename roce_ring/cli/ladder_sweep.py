"""`roce-ring ladder sweep`: measures what a ladder should say, or whether the one there is holds."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ..errors import ConfigError
from .bench import (
    MEETING_S,
    Device,
    Join,
    Local,
    RankHere,
    RingPlan,
    TlsFiles,
    TlsNames,
    before_start,
    fitting,
    parse_share,
    progress,
    written,
)
from .number import number
from .ranks import text_table

if TYPE_CHECKING:
    from ..bench.job import Result
    from ..ladder.model import Key, Ladder
    from ..ladder.sweep import Cell

QUICK_MARGIN = 1.10  # a shipped choice holds if nothing that was measured beside it is faster by more


def register(ladder: typer.Typer) -> None:
    @ladder.command()
    def sweep(
        out: Annotated[
            Path | None, typer.Option(metavar="FILE", help="Write the ladder there; FILE.part keeps what is done.")
        ] = None,
        local: Local = None,
        join: Join = "",
        plan: RingPlan = "",
        rank: RankHere = None,
        tls: TlsFiles = None,
        tls_names: TlsNames = "",
        sizes: Annotated[str, typer.Option(help="As for bench.", show_default="24 from 1K to 3M")] = "",
        dtype: Annotated[str, typer.Option(help="float32, bf16 or fp16.")] = "bf16",
        provider: Annotated[
            str, typer.Option(help="shm, verbs or pcie.", show_default="verbs with --join, else shm")
        ] = "",
        device: Device = "cpu",
        share: Annotated[str, typer.Option(help="As for bench: processes, or mps.")] = "processes",
        iters: Annotated[
            int | None,
            number(int, 10, 100_000, "Samples of each mode at each size.", show_default="60; 100 replays on a GPU"),
        ] = None,
        quick: Annotated[bool, typer.Option("--quick", help="Only see whether the ladder in use holds.")] = False,
        report: Annotated[Path | None, typer.Option(help="Write what was measured as Markdown.")] = None,
        plot: Annotated[Path | None, typer.Option(help="Draw it: .png, .svg or .pdf.")] = None,
    ) -> None:
        """Measure every mode that fits at every size, each checked before it is timed, and choose.

        Of those within 3 % of the best median, the one with the lowest mean is taken; what stalls is out. A sample is
        the time of the slowest rank; where reads of peers' memory are allowed, a mode is sampled for at least 3 s at
        each size. Interrupted, it goes on from FILE.part. Over several hosts, give the same command with --join and
        --plan on each: each writes the same ladder.

        With --quick it measures four sizes and exits 1 if another mode is more than 10 % faster than the ladder's.
        """
        from ..bench.cases import Spec, parse_dtypes, parse_sizes
        from ..ladder.choose import choose
        from ..ladder.sweep import QUICK, SIZES, cells, measure
        from ..settings import Settings

        if not quick and out is None:
            raise ConfigError("sweep needs to know where the ladder goes", "--out FILE, or --quick")
        if quick and out is not None:
            raise ConfigError("--quick writes no ladder, but --out is there", "leave one of them out")
        fitting(join, local=local, paths=None, compare="", rank=rank, tls=tls, tls_names=tls_names, plan=plan)
        provider = provider or ("verbs" if join else "shm")
        if provider not in (("verbs",) if join else ("shm", "pcie")):
            known = "verbs, as --join is there" if join else "shm, pcie"
            raise ConfigError(f"--provider: {provider!r} is not one of {known}")
        dtypes = parse_dtypes(dtype)
        if len(dtypes) != 1:
            raise ConfigError(f"--dtype: a ladder is swept with one dtype, these are {len(dtypes)}")
        wanted = sorted(parse_sizes(sizes)) if sizes else list(QUICK if quick else SIZES)
        if wrong := [size for size in wanted if size % 16]:
            raise ConfigError(f"--sizes: {wrong[0]} is no multiple of 16 bytes, on which buckets end")
        forced = {"ROCE_RING_PROVIDER": provider} | ({"ROCE_RING_PLAN": plan} if plan else {})
        settings = Settings.from_env({**os.environ, **forced})
        if join:
            from ..bench.member import place

            here = place(join, settings, rank, tls, tls_names)
        world = here.world if join else local or 4
        share, samples = parse_share(share, device, join), iters or (60 if device == "cpu" else 100)

        def spec(some: list[int]) -> Spec:
            return Spec(some, dtypes, ["all_reduce"], [], samples, device=device, share=share, sweep=True)

        before_start(spec(wanted), world, plot, report)
        asked = f"{provider} on {device}, {world} ranks, {dtypes[0]}, {samples} samples"
        keep = out.with_name(out.name + ".part") if out else None
        results: list[Result] = []
        with progress() as tell, written("--out", keep):

            def run(some: list[int]) -> Result:
                if join:
                    from ..bench.member import run_member

                    results.append(run_member(here, spec(some), settings, MEETING_S, tell))
                else:
                    from ..bench.local import run_local

                    results.append(run_local(world, spec(some), settings, 1, tell))
                return results[-1]

            parts = list(measure(wanted, asked, keep, run))
        rows, fabric, key = [row for part in parts for row in part.rows], parts[0].fabric, parts[0].key
        found = cells(rows, fabric, world)
        print(table(found))
        with written("--report", report):
            if report:
                report.write_text(markdown(asked, fabric, found, results), encoding="utf-8")
        with written("--plot", plot):
            if plot and results:
                import msgspec

                from ..bench.plot import plot as draw

                draw(msgspec.structs.replace(results[-1], rows=rows), plot)
        if quick:
            raise typer.Exit(_held(found, choose(settings.ladder, fabric, key, settings.max_bytes).ladder))
        assert out is not None
        _write(out, found, fabric, key, asked)
        if keep:
            keep.unlink(missing_ok=True)


def markdown(asked: str, fabric: str, found: list[Cell], results: list[Result]) -> str:
    """A sweep to be kept: what it ran on, how busy that was, and the choices."""
    import platform
    import time

    lines = [f"# Sweep: {asked}", "", f"- date: {time.strftime('%Y-%m-%d %H:%M UTC', time.gmtime())}"]
    lines += [f"- fabric class {fabric}; {platform.node()}, kernel {platform.release()}"]
    if results:  # else all of it was measured before
        first, others = results[-1].ranks[0], max(one.others for one in results)
        lines += [f"- {first.device}, {first.cpus} CPUs; other programs used up to {others:.0%} of them"]
    return "\n".join([*lines, "", "```", table(found), "```", ""])


def table(found: list[Cell]) -> str:
    rows = []
    for cell in found:
        best, second = cell.rows[cell.selected.mode], cell.second
        beside = f"{second.mode} {second.median:.1f}" if second else ""
        rows.append((f"{cell.size:,}", cell.selected.mode, f"{best.median:.1f}", f"{best.mean:.1f}", beside))
    columns = {"bytes": ">", "mode": "<", "median us": ">", "mean us": ">", "next best": "<"}
    out = sorted({f"{mode}: {why}" for cell in found for mode, why in cell.selected.out.items()})
    return text_table(columns, rows) + "".join(f"\nout: {one}" for one in out)


def _held(found: list[Cell], inuse: Ladder) -> int:
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


def _write(out: Path, found: list[Cell], fabric: str, key: Key, asked: str) -> None:
    import platform

    import msgspec

    from ..ladder.loading import parse
    from ..ladder.sweep import ladder_of
    from ..mesh import durable

    file = ladder_of(found, fabric, key, f"sweep on {platform.node()}: {asked}")
    raw = msgspec.json.format(msgspec.json.encode(file), indent=1)
    digest = parse(raw, str(out)).digest  # what was written can be read
    with written("--out", out):
        durable.replace(out, raw + b"\n")
    print(f"wrote {out}: {len(found)} buckets, digest {digest}; ROCE_RING_LADDER={out} uses it", file=sys.stderr)
