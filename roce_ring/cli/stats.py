"""`roce-ring stats`: the counters of every rank of this host, and those of every path."""

from __future__ import annotations

import json
import sys
import time
from dataclasses import astuple, fields
from typing import Annotated

import typer

from .number import number
from .ranks import Json, Report, RunDir, Session, Timeout, nothing_runs, reports, text_table

SCHEMA = "roce-ring/stats/v1"
PATH_COLUMNS = {
    "session": "<",
    "rank": ">",
    "peer": ">",
    "path": "<",
    "writes posted": ">",
    "completed": ">",
    "bytes": ">",
    "errors": ">",
}


def register(app: typer.Typer) -> None:
    @app.command()
    def stats(
        run_dir: RunDir = "",
        session: Session = "",
        timeout: Timeout = 2.0,
        as_json: Json = False,
        watch: Annotated[float, number(float, 0, 3600, "Print again every so many seconds; 0 prints once.")] = 0,
    ) -> None:
        """Show the counters of this host's running ranks and of their paths.

        Exits 1 if no rank runs or one does not answer.
        """
        while True:
            found = reports(run_dir, session, timeout)
            if as_json:
                print(json.dumps({"schema": SCHEMA, "ranks": [as_dict(one) for one in found]}), flush=True)
            elif not found:
                print(nothing_runs(run_dir, session))
            else:
                clear = "\x1b[H\x1b[2J" if watch and sys.stdout.isatty() else ""
                print(clear + render(found), flush=True)
            if not watch or not found:
                raise typer.Exit(0 if found and not any(one.error for one in found) else 1)
            time.sleep(watch)


def as_dict(report: Report) -> dict[str, object]:
    from .status import as_dict as whole

    every = whole(report)
    return {key: every[key] for key in ("session_name", "rank", "stats", "error") if key in every}


def render(found: list[Report]) -> str:
    """A table with a row for each counter and a column for each rank, one with a row for each path, and the errors."""
    from ..control.model import RankStats

    parts = []
    answered = [(one.endpoint, one.stats) for one in found if one.stats]
    if answered:
        columns = {"counter": "<"} | {f"{endpoint.session} r{endpoint.rank}": ">" for endpoint, _ in answered}
        counters = [field.name for field in fields(RankStats) if field.name not in ("peers", "memory")]
        parts.append(
            text_table(columns, [(name, *(_number(getattr(s, name)) for _, s in answered)) for name in counters])
        )
    paths = [
        (endpoint.session, str(endpoint.rank), str(peer.rank), path.name, *map(_number, astuple(path)[1:]))
        for endpoint, stats in answered
        for peer in stats.peers
        for path in peer.paths
    ]
    if paths:
        parts.append(text_table(PATH_COLUMNS, paths))
    parts += [f"{one.endpoint.session} rank {one.endpoint.rank}: {one.error.message}" for one in found if one.error]
    return "\n\n".join(parts)


def _number(value: float) -> str:
    return str(value).lower() if isinstance(value, bool) else f"{value:,}" if isinstance(value, int) else f"{value:.4f}"
