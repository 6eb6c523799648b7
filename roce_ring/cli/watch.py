"""`roce-ring watch`: what happens to a plan's paths, on all its nodes, as it happens."""

from __future__ import annotations

import contextlib
import json
import queue
import threading
import time
from collections.abc import Iterable, Iterator
from itertools import chain
from typing import TYPE_CHECKING, Annotated

import typer

from ..errors import RoceRingError
from .nodes import Agent, Json, PlanFile, TlsFiles, fleet
from .number import number

if TYPE_CHECKING:
    from ..mesh.agent.client import AgentClient
    from ..mesh.agent.model import AgentEvent

    # A node's events; None once it answers, an error once it does not.
    Happened = tuple[str, AgentEvent | RoceRingError | None]
    Events = queue.Queue[Happened]

SCHEMA = "roce-ring/watch/v1"
ANSWER_S, LEAST_S, QUIET_S = 5.0, 1.0, 0.2  # for a node's first answer; at least; and then for what it still keeps


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
            silent, lost = set(nodes.agents), False
            for host, event in chain(_backlog(events, silent, until), _live(events, until)):
                silent.discard(host)
                if isinstance(event, RoceRingError):
                    watched, lost = watched - 1, True
                    _lost(host, event.message, as_json)
                elif event is not None:
                    _print(host, event, as_json)
                if not watched:
                    break
            for host in sorted(silent):  # stopped, or overloaded: that it said nothing does not mean that all is well
                lost = True
                _lost(host, f"the agent of {host} did not answer in this time", as_json)
            status = (1 if nodes.agents else 2) if lost else 0
        raise typer.Exit(status)


def _backlog(events: Events, hosts: Iterable[str], until: float) -> list[Happened]:
    """What the agents still keep: each sends it at once and in its order, and all of it is put in order here."""
    kept, waiting, now = [], set(hosts), time.monotonic()
    end = now + max(LEAST_S, min(ANSWER_S, until - now))
    while (left := end - time.monotonic()) > 0:
        if not waiting:
            left = min(left, QUIET_S)
        try:
            kept.append(events.get(timeout=left))
        except queue.Empty:
            break
        waiting.discard(kept[-1][0])
    late = time.time()
    return sorted(kept, key=lambda one: getattr(one[1], "unix_s", late))


def _live(events: Events, until: float) -> Iterator[Happened]:
    while (left := until - time.monotonic()) > 0:
        with contextlib.suppress(queue.Empty):
            yield events.get(timeout=min(left, 1.0))


def _follow(agent: AgentClient, events: Events) -> None:
    try:
        agent.status()
        events.put((agent.host, None))
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
