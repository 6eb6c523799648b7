"""`roce-ring tune`: changes the idle policy of running ranks."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

import typer

from ..errors import ConfigError, RoceRingError
from .number import number
from .ranks import Json, RunDir, Session, Timeout, ask, find, nothing_runs

if TYPE_CHECKING:
    from ..control.client import RankClient
    from ..control.model import IdlePolicy

SCHEMA = "roce-ring/tune/v1"
LIVE = ("idle_spins", "nap_us")


def register(app: typer.Typer) -> None:
    @app.command()
    def tune(
        values: Annotated[list[str], typer.Argument(metavar="KEY=VALUE...", help="idle_spins=N and/or nap_us=N.")],
        rank: Annotated[int, number(int, -1, 15, "Only this rank.", show_default="all")] = -1,
        run_dir: RunDir = "",
        session: Session = "",
        timeout: Timeout = 2.0,
        as_json: Json = False,
    ) -> None:
        """Change how long running ranks poll before they nap: before -> after.

        Exits 1 if no rank runs, or if one could not be changed.
        """
        wanted = parse_values(values)
        endpoints = [one for one in find(run_dir, session) if rank in (-1, one.rank)]

        def change(client: RankClient) -> tuple[IdlePolicy, IdlePolicy]:
            session_id = client.info().session_id
            return client.set_idle(wanted.get("idle_spins"), wanted.get("nap_us"), session_id)

        answers = ask(endpoints, timeout, change)
        rows = []
        for endpoint, answer in zip(endpoints, answers, strict=True):
            name = {"session_name": endpoint.session, "rank": endpoint.rank}
            if isinstance(answer, RoceRingError):
                rows.append(name | {"error": {"code": answer.code, "message": answer.message}})
                said = answer.message
            else:
                before, after = asdict(answer[0]), asdict(answer[1])
                rows.append(name | {"before": before, "after": after})
                said = ", ".join(f"{key} {before[key]} -> {after[key]}" for key in LIVE)
            if not as_json:
                print(f"{endpoint.session} rank {endpoint.rank}: {said}")
        if as_json:
            print(json.dumps({"schema": SCHEMA, "ranks": rows}, indent=2))
        elif not rows:
            sentence = nothing_runs(run_dir, session)
            print(sentence if rank < 0 else sentence.replace("no rank", f"no rank {rank}", 1))
        raise typer.Exit(1 if not rows or any(isinstance(answer, RoceRingError) for answer in answers) else 0)


def parse_values(values: list[str]) -> dict[str, int]:
    """["idle_spins=5"] -> {"idle_spins": 5}. Raises ConfigError with every problem."""
    from ..settings import KNOBS, did_you_mean, parse

    wanted: dict[str, int] = {}
    problems = []
    for text in values:
        key, equals, value = text.partition("=")
        if not equals:
            problems.append(f"{text!r} is not KEY=VALUE")
        elif key not in KNOBS:
            problems.append(f"{key} is not a setting{did_you_mean(key, LIVE)}")
        elif key not in LIVE:
            problems.append(f"{key} is fixed while ranks run; {' and '.join(LIVE)} can be changed")
        elif key in wanted:
            problems.append(f"{key} is given twice")
        else:
            try:
                wanted[key] = int(parse(key, value))
                if wanted[key] < 0:
                    problems.append(f"{key}: {value} lets a starting rank choose; give a running one a number")
            except ValueError as error:
                problems.append(f"{key}: {error}")
    if problems:
        raise ConfigError("; ".join(problems), hint="roce-ring tune idle_spins=20000000 nap_us=20")
    return wanted
