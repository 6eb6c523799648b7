"""Asks the running ranks of this host what the verbs status, stats and tune show."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TypeVar

import typer

from ..errors import RoceRingError
from .number import number

if TYPE_CHECKING:
    from ..control.client import RankClient
    from ..control.model import RankInfo, RankState, RankStats
    from ..control.rundir import Endpoint

T = TypeVar("T")

RunDir = Annotated[
    str, typer.Option(envvar="ROCE_RING_RUN_DIR", help="Directory of the control sockets.", show_default="the system's")
]
Session = Annotated[str, typer.Option(help="Only ranks of this session name.", show_default="all")]
Timeout = Annotated[float, number(float, 0.1, 60, "Seconds to wait for each rank.")]
Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]


@dataclass(frozen=True, slots=True)
class Report:
    """One rank's answers, or the error that came instead."""

    endpoint: Endpoint
    info: RankInfo | None = None
    state: RankState | None = None
    stats: RankStats | None = None
    error: RoceRingError | None = None


def directory(run_dir: str) -> Path:
    from ..control.rundir import run_dir as resolve

    return resolve(run_dir)


def find(run_dir: str, session: str) -> list[Endpoint]:
    """Every control socket, the stale ones too. Raises SetupError if the directory cannot be read."""
    from ..control.rundir import scan

    return [one for one in scan(directory(run_dir)) if not session or one.session == session]


def ask(endpoints: list[Endpoint], timeout_s: float, question: Callable[[RankClient], T]) -> list[T | RoceRingError]:
    """Asks every rank at once; a rank that does not answer gives its error instead."""
    from concurrent.futures import ThreadPoolExecutor

    from ..control.client import RankClient

    def one(endpoint: Endpoint) -> T | RoceRingError:
        try:
            with RankClient(endpoint.path, timeout_s) as client:
                return question(client)
        except RoceRingError as error:
            return error

    if not endpoints:
        return []
    with ThreadPoolExecutor(min(len(endpoints), 16)) as pool:
        return list(pool.map(one, endpoints))


def reports(run_dir: str, session: str, timeout_s: float) -> list[Report]:
    """Info, state and counters of every rank, by session and rank."""
    endpoints = find(run_dir, session)
    answers = ask(endpoints, timeout_s, lambda client: (client.info(), client.state(), client.stats()))
    return [
        Report(endpoint, error=answer) if isinstance(answer, RoceRingError) else Report(endpoint, *answer)
        for endpoint, answer in zip(endpoints, answers, strict=True)
    ]


def nothing_runs(run_dir: str, session: str) -> str:
    of_session = f" of session {session}" if session else ""
    place = directory(run_dir)
    looked = f"looked in {place}" if place.is_dir() else f"there is no directory {place}"
    return f"no rank{of_session} is running on this host ({looked})"


def text_table(columns: dict[str, str], rows: Sequence[tuple[str, ...]]) -> str:
    """Aligned columns. `columns`: name -> "<" or ">". Never cut to a terminal's width: a reason must be read whole."""
    names = tuple(columns)
    width = [max(len(row[i]) for row in (names, *rows)) for i in range(len(names))]
    lines = []
    for row in (names, *rows):
        cells = (f"{cell:{side}{w}}" for cell, side, w in zip(row, columns.values(), width, strict=True))
        lines.append("  ".join(cells).rstrip())
    return "\n".join(lines)


def memory(size_bytes: float) -> str:
    """20971520 -> 20.0 MiB."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if size_bytes < 1024 or unit == "GiB":
            return f"{size_bytes:.0f} {unit}" if unit == "B" else f"{size_bytes:.1f} {unit}"
        size_bytes /= 1024
    raise AssertionError
