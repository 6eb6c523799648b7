"""`roce-ring stats`: the counters of every rank of this host, and those of every path."""

from __future__ import annotations

import json
import time
from dataclasses import fields
from typing import TYPE_CHECKING, Annotated

import typer

from .ranks import Json, Report, RunDir, Session, Timeout, nothing_runs, reports

if TYPE_CHECKING:
    from rich.console import RenderableType

SCHEMA = "roce-ring/stats/v1"


def register(app: typer.Typer) -> None:
    @app.command()
    def stats(
        run_dir: RunDir = "",
        session: Session = "",
        timeout: Timeout = 2.0,
        as_json: Json = False,
        watch: Annotated[
            float, typer.Option(min=0, max=3600, help="Print again every so many seconds; 0 prints once.")
        ] = 0,
    ) -> None:
        """Show the counters of every rank that runs on this host, per rank and per path.

        Exits 1 if no rank runs or one does not answer.
        """
        from rich.console import Console

        console = Console()
        while True:
            found = reports(run_dir, session, timeout)
            if as_json:
                print(json.dumps({"schema": SCHEMA, "ranks": [as_dict(one) for one in found]}), flush=True)
            elif not found:
                print(nothing_runs(run_dir, session))
            else:
                if watch and console.is_terminal:
                    console.clear()
                for part in render(found):
                    console.print(part, width=None if console.is_terminal else 1000)
            if not watch or not found:
                raise typer.Exit(0 if found and not any(one.error for one in found) else 1)
            time.sleep(watch)


def as_dict(report: Report) -> dict[str, object]:
    from .status import as_dict as whole

    every = whole(report)
    return {key: every[key] for key in ("session_name", "rank", "stats", "error") if key in every}


def render(found: list[Report]) -> list[RenderableType]:
    """A table with a row for each counter and a column for each rank, one with a row for each path, and the errors."""
    from rich.table import Table

    from ..control.model import RankStats

    answered = [one for one in found if one.stats]
    counters = Table(box=None, pad_edge=False, header_style="bold")
    counters.add_column("counter")
    for one in answered:
        counters.add_column(f"{one.endpoint.session} r{one.endpoint.rank}", justify="right")
    for field in fields(RankStats):
        values = [getattr(one.stats, field.name) for one in answered]
        if not any(isinstance(value, tuple) for value in values):
            counters.add_row(field.name, *(_number(value) for value in values))
    paths = Table(box=None, pad_edge=False, header_style="bold")
    for name in ("session", "rank", "peer", "path"):
        paths.add_column(name)
    for name in ("writes posted", "completed", "bytes", "errors"):
        paths.add_column(name, justify="right")
    for one in answered:
        assert one.stats
        for peer in one.stats.peers:
            for path in peer.paths:
                numbers = (path.writes_posted, path.writes_completed, path.bytes_written, path.errors)
                where = (one.endpoint.session, str(one.endpoint.rank), str(peer.rank), path.name)
                paths.add_row(*where, *map(_number, numbers))
    errors = [f"{one.endpoint.session} rank {one.endpoint.rank}: {one.error.message}" for one in found if one.error]
    return [*([counters] if answered else []), *([paths] if paths.row_count else []), *errors]


def _number(value: float) -> str:
    return str(value).lower() if isinstance(value, bool) else f"{value:,}" if isinstance(value, int) else f"{value:.4f}"
