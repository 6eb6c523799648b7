"""`roce-ring watch`: what happens to a plan's paths, on all its nodes, as it happens."""

from __future__ import annotations

import contextlib
import json
import queue
import threading
import time
from collections.abc import Iterator
from itertools import chain
from typing import TYPE_CHECKING, Annotated

import typer

from ..errors import RoceRingError
from .nodes import Agent, Json, PlanFile, TlsFiles, fleet
from .number import number

if TYPE_CHECKING:
    from ..mesh.agent.client import AgentClient
    from ..mesh.agent.model import AgentEvent

    Events = queue.Queue[tuple[str, AgentEvent | RoceRingError]]

SCHEMA = "roce-ring/watch/v1"
BACKLOG_S = 0.5


def register(app: typer.Typer) -> None:
    @app.command()
    def watch(
        plan_file: PlanFile,
        agent: Agent = [],  # noqa: B006  # typer reads it only
        seconds: Annotated[
            float, number(float, 0, 86400, "Stop after so long, and once no node keeps us waiting; 0: never.")
        ] = 0.0,
        tls: TlsFiles = None,
        as_json: Json = False,
    ) -> None:
        """Print events of all nodes as they happen: links, rules, error counters, leases, agents that go away.

        Begins with those that the agents still keep.

        Exits 1 if a node cannot be watched any more, 2 if none can be asked.
        """
        until = time.monotonic() + seconds if seconds else float("inf")  # agents that are slow to reach count too
        events: Events = queue.Queue()
        with fleet(plan_file, agent, tls) as nodes:
            for item in nodes.missing:
                events.put((item.where, RoceRingError("not-running", item.seen)))
            for one in nodes.agents.values():
                threading.Thread(target=_follow, args=(one, events), daemon=True).start()
            watched = len(nodes.plan.hosts)
            lost = False
            for host, event in chain(_backlog(events), _live(events, until)):
                if isinstance(event, RoceRingError):
                    watched, lost = watched - 1, True
                    _lost(host, event.message, as_json)
                else:
                    _print(host, event, as_json)
                if not watched:
                    break
            status = (1 if nodes.agents else 2) if lost else 0
        raise typer.Exit(status)


def _backlog(events: Events) -> list[tuple[str, AgentEvent | RoceRingError]]:
    """What the agents still keep: each sends it at once and in its order, and all of it is put in order here."""
    until, kept = time.monotonic() + BACKLOG_S, []
    while (left := until - time.monotonic()) > 0:
        with contextlib.suppress(queue.Empty):
            kept.append(events.get(timeout=left))
    now = time.time()
    return sorted(kept, key=lambda one: now if isinstance(one[1], RoceRingError) else one[1].unix_s)


def _live(events: Events, until: float) -> Iterator[tuple[str, AgentEvent | RoceRingError]]:
    while (left := until - time.monotonic()) > 0:
        with contextlib.suppress(queue.Empty):
            yield events.get(timeout=min(left, 1.0))


def _follow(agent: AgentClient, events: Events) -> None:
    try:
        for event in agent.watch():
            events.put((agent.host, event))
        raise RoceRingError("not-running", f"the agent of {agent.host} has ended", "see its log")
    except RoceRingError as error:
        events.put((agent.host, error))


def _lost(host: str, why: str, as_json: bool) -> None:
    """A node that is not watched, or not any more."""
    from ..mesh.agent.model import AgentEvent

    _print(host, AgentEvent(0, time.time(), "error", why), as_json)


def _print(host: str, event: AgentEvent, as_json: bool) -> None:
    if as_json:
        import msgspec

        print(json.dumps({"schema": SCHEMA, "host": host, **msgspec.to_builtins(event)}), flush=True)
    else:
        at = time.strftime("%H:%M:%S", time.localtime(event.unix_s))
        print(f"{at} {host:12} {event.severity:7} {event.text}", flush=True)
