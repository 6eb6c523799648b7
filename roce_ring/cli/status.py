"""`roce-ring status`: one line for every rank of this host, or for every node of a plan."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from .node_table import as_dicts, table
from .nodes import Agent, TlsFiles, finish, fleet, instead_of, refuse_given
from .ranks import Json, Report, RunDir, Session, Timeout, find, memory, nothing_runs, reports, text_table

if TYPE_CHECKING:
    from ..control.rundir import Endpoint
    from ..mesh.agent.model import NodeStatus

SCHEMA, EVENT_SCHEMA = "roce-ring/status/v1", "roce-ring/event/v1"
COLUMNS = {
    "session": "<",
    "rank": ">",
    "world": ">",
    "state": "<",
    "pid": ">",
    "seq": ">",
    "provider": "<",
    "device": "<",
    "memory": ">",
    "found asleep": ">",
    "reason": "<",
}


def register(app: typer.Typer) -> None:
    @app.command()
    def status(
        context: typer.Context,
        plan_file: Annotated[
            Path | None,
            typer.Argument(metavar="[PLAN]", help="With a plan: the state of its nodes, from their agents."),
        ] = None,
        agent: Agent = [],  # noqa: B006  # typer reads it only
        tls: TlsFiles = None,
        run_dir: RunDir = "",
        session: Session = "",
        timeout: Timeout = 2.0,
        as_json: Json = False,
        follow: Annotated[bool, typer.Option(help="Then print events as they happen, until interrupted.")] = False,
    ) -> None:
        """Show this host's running ranks: state, who is late or to blame, memory. With PLAN, show its nodes instead.

        Exits 1 if no rank runs, or if one is aborted or does not answer; with PLAN, if a node is not as planned.
        """
        if plan_file is None:
            refuse_given(context, ("agent", "tls"), "is for the nodes of a plan, but no PLAN is given", "name the plan")
        else:
            unused = ("run_dir", "session", "timeout", "follow")
            fix = "leave it out, or leave PLAN out; 'roce-ring watch PLAN' prints the events of its nodes"
            refuse_given(context, unused, "is for the ranks of this host, but PLAN asks for its nodes", fix)
            nodes_of(plan_file, agent, tls, as_json)
        found = reports(run_dir, session, timeout)
        if as_json:
            document = {"schema": SCHEMA, "ranks": [as_dict(one) for one in found]}
            print(json.dumps(document, indent=None if follow else 2), flush=True)  # followed: a document a line
        elif not found:
            print(nothing_runs(run_dir, session))
        else:
            print(text_table(COLUMNS, [row(one) for one in found]))
            for line in memory_lines(found):
                print(line)
        if follow and found:
            _follow(find(run_dir, session), as_json)
        raise typer.Exit(0 if found and all(healthy(one) for one in found) else 1)


def nodes_of(plan_file: Path, agent: list[str], tls: Path | None, as_json: bool) -> None:
    """The nodes of a plan as their agents last saw them, with all findings; exits."""
    from ..mesh.finding import finding

    with fleet(plan_file, agent, tls) as nodes:
        states, silent = nodes.each(lambda one: one.status())
        found = [*nodes.missing, *silent, *(item for state in states.values() for item in state.findings)]
        for host, state in states.items():
            if state.plan_hash != nodes.plan.hash:
                seen = f"it holds plan {state.plan_hash[:12]}" if state.plan_hash else "it holds no plan"
                fix = instead_of(state.plan_hash)
                found.append(finding("plan-differs", host, seen, f"plan {nodes.plan.hash[:12]}", fix))
            elif state.host != host:  # two agents swapped look fine each
                fix = f"see which agent --agent {host}=... and ssh {host} reach"
                found.append(finding("wrong-node", host, f"its agent has the plan as {state.host}", host, fix))
        lines = [*table(states).splitlines(), *_held(states)] if states else []
        finish(found, {"schema": SCHEMA, "nodes": as_dicts(states)} if as_json else None, lines, asked=bool(states))


def _held(states: dict[str, NodeStatus]) -> list[str]:
    return [f"{host} is in use by {one.holder}" for host, state in states.items() for one in state.leases]


def healthy(report: Report) -> bool:
    return report.state is not None and report.state.state != "ABORTED"


def as_dict(report: Report) -> dict[str, Any]:
    out: dict[str, Any] = {
        "session_name": report.endpoint.session,
        "rank": report.endpoint.rank,
        "socket": str(report.endpoint.path),
    }
    if report.error:
        return out | {"error": {"code": report.error.code, "message": report.error.message}}
    assert report.info and report.state and report.stats
    return out | {"info": asdict(report.info), "state": asdict(report.state), "stats": asdict(report.stats)}


def row(report: Report) -> tuple[str, ...]:
    first = (report.endpoint.session, str(report.endpoint.rank))
    if report.error:
        return (*first, "", report.error.code, "", "", "", "", "", "", report.error.message)
    assert report.info and report.state and report.stats
    info, state, stats = report.info, report.state, report.stats
    return (
        *first,
        str(info.world),
        state.state.value,
        str(info.pid),
        f"{stats.last_seq_completed:,}",
        info.provider,
        info.device,
        memory(sum(part.size_bytes for part in stats.memory)),
        f"{stats.asleep_share:.1%}",
        reason(report),
    )


def reason(report: Report) -> str:
    """Why a rank is aborted, or for whom it waits."""
    assert report.state
    state = report.state
    said = [state.reason] if state.reason else []
    if state.culprit_rank is not None and f"rank {state.culprit_rank}" not in state.reason:
        said.append(f"culprit rank {state.culprit_rank}")
    if state.waiting_for_ranks and not state.reason:
        late = ", ".join(map(str, state.waiting_for_ranks))
        said.append(f"waiting for rank {late}")
    return "; ".join(said)


def memory_lines(found: list[Report]) -> list[str]:
    """The parts behind the memory column; ranks of one session have the same."""
    lines = {}
    for one in found:
        if one.stats and one.stats.memory:
            parts = ", ".join(f"{part.name} {memory(part.size_bytes)}" for part in one.stats.memory)
            lines[(one.endpoint.session, parts)] = f"memory of a rank of {one.endpoint.session}: {parts}"
    return list(lines.values())


def _follow(endpoints: list[Endpoint], as_json: bool) -> None:
    """Prints every rank's events, the oldest first, until interrupted or until all sessions are over."""
    import queue
    import threading

    from ..control.client import RankClient
    from ..control.model import RankState
    from ..errors import RoceRingError

    lines: queue.Queue[str | None] = queue.Queue()

    def watch(endpoint: Endpoint) -> None:
        name = {"schema": EVENT_SCHEMA, "session_name": endpoint.session, "rank": endpoint.rank}
        try:
            with RankClient(endpoint.path) as client:
                after = 0
                while True:
                    for update in client.watch(after, timeout_s=60):
                        if isinstance(update, RankState):
                            continue  # the table showed the state; its changes come as events too
                        after = update.index
                        said = {**name, **asdict(update)}
                        text = f"{endpoint.session} rank {endpoint.rank}: {update.kind.value.lower()}: {update.message}"
                        lines.put(json.dumps(said) if as_json else text)
        except RoceRingError as error:
            said = {**name, "error": {"code": error.code, "message": error.message}}
            text = f"{endpoint.session} rank {endpoint.rank}: {error.message}"
            lines.put(json.dumps(said) if as_json else text)
        lines.put(None)

    for endpoint in endpoints:
        threading.Thread(target=watch, args=(endpoint,), daemon=True).start()
    running = len(endpoints)
    while running:
        line = lines.get()
        if line is None:
            running -= 1
        else:
            print(line, flush=True)
