"""`roce-ring bench`: checks and measures collectives over ranks that it starts here, or as one rank among hosts."""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ..errors import ConfigError
from .number import number

if TYPE_CHECKING:
    from ..bench.cases import Spec
    from ..bench.job import Answer

COMPARE = ("gloo",)
MAX_ITERS = 100_000
PLAIN_EVERY_S = 5.0
MEETING_S = 60.0  # how long the first host waits for the last one's command
SEVERAL = "Over several hosts"

Local = Annotated[int | None, number(int, 2, 16, "Ranks to start on this machine.", show_default="4 without --join")]
Join = Annotated[
    str,
    typer.Option(
        help="Be one rank among several hosts, which meet here: HOST:PORT of rank 0 on the management network, with "
        "--tls; or unix:/PATH that all of them see.",
        rich_help_panel=SEVERAL,
    ),
]
RingPlan = Annotated[
    str,
    typer.Option(
        help="The plan of the ring, the same on every host.", show_default="ROCE_RING_PLAN", rich_help_panel=SEVERAL
    ),
]
RankHere = Annotated[
    int | None,
    number(int, 0, 15, "This host's rank.", show_default="whose ports these are, by the plan", rich_help_panel=SEVERAL),
]
TlsFiles = Annotated[
    Path | None,
    typer.Option(
        help="Directory with ca.pem, cert.pem and key.pem: this host's certificate, and who signed all.",
        rich_help_panel=SEVERAL,
    ),
]
TlsNames = Annotated[
    str,
    typer.Option(
        help="Names in certificates that may take part, joined by commas.",
        show_default="the plan's hosts",
        rich_help_panel=SEVERAL,
    ),
]
Device = Annotated[
    str,
    typer.Option(
        help="cpu; cuda or cuda:N for graphs of 40 operations on a GPU, which all ranks share; cuda:0,4,8,12 for one "
        "GPU a rank."
    ),
]


def register(app: typer.Typer) -> None:
    @app.command()
    def bench(
        local: Local = None,
        join: Join = "",
        plan: RingPlan = "",
        rank: RankHere = None,
        tls: TlsFiles = None,
        tls_names: TlsNames = "",
        sizes: Annotated[
            str,
            typer.Option(
                help="Payloads in bytes, joined by commas; K and M are 1024 and 1024 x 1024; 2K-1M doubles from 2K to "
                "1M. Rounded up to whole elements."
            ),
        ] = "2K-1M",
        dtype: Annotated[str, typer.Option(help="float32, bf16, fp16, several joined by commas, or all.")] = "float32",
        op: Annotated[
            str, typer.Option(help="all_reduce, all_gather, reduce_scatter, several, or all.")
        ] = "all_reduce",
        mode: Annotated[
            str, typer.Option(help="Modes of all_reduce, or all that this world can run; auto is the one for the size.")
        ] = "auto",
        iters: Annotated[int, number(int, 1, MAX_ITERS, "Samples a row.")] = 100,
        check: Annotated[
            bool, typer.Option("--check", help="Check every alignment, in place, repeats and bits; see below.")
        ] = False,
        fp32_partials: Annotated[
            bool, typer.Option("--fp32-partials", help="Modes that pass on partial sums of 16 bits pass on 32.")
        ] = False,
        paths: Annotated[
            int | None, number(int, 1, 4, "Paths between every two ranks; with --join the plan's.", show_default="1")
        ] = None,
        provider: Annotated[
            str, typer.Option(help="shm, verbs or pcie.", show_default="ROCE_RING_PROVIDER, or shm")
        ] = "",
        device: Device = "cpu",
        share: Annotated[
            str,
            typer.Option(
                help="Ranks of one GPU: processes, or mps (under an MPS daemon that this run starts and stops)."
            ),
        ] = "processes",
        profile: Annotated[
            bool, typer.Option("--profile", help="Also show where an operation's time goes; kernels that note it.")
        ] = False,
        compare: Annotated[str, typer.Option(help="gloo: torch's all-reduce, taking turns in the same run.")] = "",
        as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead of the table.")] = False,
        plot: Annotated[Path | None, typer.Option(help="Draw latency against size: .png, .svg or .pdf.")] = None,
        report: Annotated[Path | None, typer.Option(help="Write the table and what it ran on as Markdown.")] = None,
    ) -> None:
        """Check and measure collectives over ranks that it starts on this machine, or as one rank among several hosts.

        Every row is checked, out of place and in place, on inputs whose right answer is exact, before and while it is
        timed. --check adds inputs and outputs at odd addresses, and sums that round: same bits on all ranks, on every
        repeat and at every address. On a GPU a sample is a replay of a graph. ROCE_RING_* variables apply.

        Over several hosts, give the same command with --join and --plan on each of them; rank 0 prints. Exits 1 if a
        value is wrong on any rank, 2 if it could not run, with the same status everywhere.
        """
        from ..bench.cases import Spec, parse_dtypes, parse_ops, parse_sizes
        from ..bench.table import as_dict, render
        from ..settings import Settings

        forced = {"ROCE_RING_PROVIDER": provider, "ROCE_RING_PLAN": plan}
        settings = Settings.from_env({**os.environ, **{name: value for name, value in forced.items() if value}})
        fitting(join, local=local, paths=paths, compare=compare, rank=rank, tls=tls, tls_names=tls_names, plan=plan)
        if join:
            from ..bench.member import place

            here = place(join, settings, rank, tls, tls_names)
        spec = Spec(
            sizes=parse_sizes(sizes),
            dtypes=parse_dtypes(dtype),
            ops=parse_ops(op),
            modes=parse_modes(mode, here.world if join else local or 4, settings.provider == "pcie"),
            iterations=iters,
            thorough=check,
            fp32_partials=fp32_partials,
            gloo=bool(parse_compare(compare)),
            device=device,
            share=parse_share(share, device, join),
            profile=profile,
        )
        before_start(spec, here.world if join else local or 4, plot, report)
        with progress() as tell:
            if join:
                from ..bench.member import run_member

                result = run_member(here, spec, settings, MEETING_S, tell)
            else:
                from ..bench.local import run_local

                result = run_local(local or 4, spec, settings, paths or 1, tell)
        if join and here.rank:
            raise typer.Exit(1 if result.wrong else 0)
        print(json.dumps(as_dict(result, spec), indent=2) if as_json else render(result, spec))
        try:
            with written("--plot", plot):
                if plot:
                    from ..bench.plot import plot as draw

                    draw(result, plot)
            with written("--report", report):
                if report:
                    from ..bench.report import markdown

                    report.write_text(markdown(result, spec), encoding="utf-8")
        except ConfigError as error:  # told, not raised: the answer is printed, and --json is one document
            from .main import say

            say(error.message, error.hint)
            raise typer.Exit(2) from None
        raise typer.Exit(1 if result.wrong else 0)


def fitting(join: str, **given: object) -> None:
    """Raises ConfigError for options that mean nothing on one machine, or among several hosts."""
    alone = ("rank", "tls", "tls_names", "plan") if not join else ("local", "paths", "compare")
    wrong = [f"--{name.replace('_', '-')}" for name in alone if given[name] not in (None, "")]
    if wrong:
        fits = "is for one machine, but --join is" if join else "is for several hosts, but --join is not"
        raise ConfigError(f"{', '.join(wrong)} {fits} there", "leave one of them out")


def parse_modes(text: str, world: int, pcie: bool = False) -> list[str]:
    """Mode names that this world can run; none for auto. Raises ConfigError for a name it cannot."""
    from ..bench.cases import parse_names
    from ..direct import LOADS, NO_ACCESS
    from ..modes import modes

    if text == "auto":
        return []
    names = parse_names(text, {name: name for name in modes()}, "a mode")
    why = {name: modes()[name].refusal(world, access=LOADS if pcie else NO_ACCESS) for name in names}
    refusals = [refusal for refusal in why.values() if refusal]
    if refusals and text != "all":
        raise ConfigError("; ".join(refusals), "leave them out; --mode all runs every mode that fits")
    return [name for name in names if not why[name]]


def parse_compare(text: str) -> str:
    if text and text not in COMPARE:
        raise ConfigError(f"--compare: {text!r} is not known", f"expected {' or '.join(COMPARE)}")
    return text


def parse_share(text: str, device: str, join: str) -> str:
    from ..bench.cases import SHARES

    if text not in SHARES:
        raise ConfigError(f"--share: {text!r} is not known", f"expected {', '.join(SHARES)}")
    if text != SHARES[0] and (device == "cpu" or join):
        raise ConfigError(f"--share {text} is for the ranks of one GPU", "give --device cuda, and leave --join out")
    return text


def before_start(spec: Spec, world: int, plot: Path | None, report: Path | None) -> None:
    """Raises ConfigError for what would only show after minutes of measuring."""
    from importlib.util import find_spec

    problems = []
    if spec.device != "cpu":
        from ..bench.gpu import gpu_problem

        problems += ["--compare gloo is for --device cpu"] if spec.gloo else []
        problems += [said] if (said := gpu_problem(spec, world)) else []
    elif spec.gloo and find_spec("torch") is None:
        problems.append("--compare gloo needs torch, which is not installed: pip install torch")
    if plot:
        from ..bench.plot import plot_problem

        problems += [problem] if (problem := plot_problem(plot)) else []
    for option, file in (("--plot", plot), ("--report", report)):
        if file:
            try:
                try_to_write(option, file)
            except ConfigError as error:
                problems.append(error.message)
    if problems:
        raise ConfigError("; ".join(problems))


def try_to_write(option: str, file: Path) -> None:
    """Raises ConfigError if the file cannot be opened for writing. Leaves what is there as it is."""
    if not file.parent.is_dir():
        raise ConfigError(f"{option}: there is no directory {file.parent}")
    fresh = not (file.exists() or file.is_symlink())
    with written(option, file):
        file.open("ab").close()
        if fresh:
            file.unlink()


@contextmanager
def written(option: str, file: Path | None) -> Iterator[None]:
    """Turns what the system says into one sentence."""
    try:
        yield
    except OSError as error:
        reason = (error.strerror or str(error)).lower()
        raise ConfigError(f"{option}: {file} cannot be written: {reason}", "name a file elsewhere") from error


@contextmanager
def progress() -> Iterator[Callable[[Answer], None]]:
    """What ranks say, on stderr: a bar on a terminal, elsewhere a line now and then; and their warnings."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    from ..bench import job

    console = Console(stderr=True)
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    live = console.is_terminal
    said = time.monotonic()
    # Redrawn only when a rank says something: a clock of its own would take a core from the ranks.
    with Progress(*columns, console=console, transient=True, auto_refresh=False, disable=not live) as bar:
        task = bar.add_task("starting ranks", total=None)
        bar.refresh()

        def tell(answer: Answer) -> None:
            nonlocal said
            if isinstance(answer, job.Logged):
                console.print(f"roce-ring bench: {answer.text}", markup=False, highlight=False, soft_wrap=True)
            elif isinstance(answer, job.Progress):
                bar.update(task, completed=answer.done, total=answer.of, description=answer.what, refresh=live)
                if not live and time.monotonic() - said > PLAIN_EVERY_S:
                    said = time.monotonic()
                    print(f"roce-ring bench: step {answer.done} of {answer.of}: {answer.what}", file=sys.stderr)

        yield tell
