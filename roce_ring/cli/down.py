"""`roce-ring down`: takes a plan back from all its nodes."""

from __future__ import annotations

from typing import TYPE_CHECKING

import typer

from .nodes import Agent, Force, Json, PlanFile, TlsFiles, finish, fleet
from .ranks import text_table

if TYPE_CHECKING:
    from ..mesh.agent.model import NodeStatus
    from ..mesh.finding import Finding

SCHEMA = "roce-ring/down/v1"


def register(app: typer.Typer) -> None:
    @app.command()
    def down(
        plan_file: PlanFile,
        agent: Agent = [],  # noqa: B006  # typer reads it only
        force: Force = False,
        tls: TlsFiles = None,
        as_json: Json = False,
    ) -> None:
        """Take a plan back from all its nodes: everything that 'roce-ring up' made, and nothing else.

        A node with a running session refuses, and then no node does anything. A node that does not answer keeps what it
        has, and is reported.
        """
        from ..mesh.finding import finding

        with fleet(plan_file, agent, tls) as nodes:
            states, silent = nodes.each(lambda one: one.status())
            found = [*nodes.missing, *silent]
            held = {host: state for host, state in states.items() if state.leases and state.phase == "active"}
            for host, state in held.items() if not force else ():
                who = ", ".join(one.holder for one in state.leases)
                fix = "end the session first, or use --force and lose it"
                found.append(finding("lease-held", host, f"{who} runs", "no running session", fix))
            for host, state in states.items():
                if state.plan_hash not in ("", nodes.plan.hash):
                    fix = (
                        f"'roce-ring down' with the file of plan {state.plan_hash[:12]}; "
                        "lost? docs/troubleshooting.md, plan-conflict"
                    )
                    found.append(
                        finding("plan-conflict", host, f"it holds plan {state.plan_hash[:12]}", "this plan", fix)
                    )
            rows: list[tuple[str, ...]] = []
            if not any(item.code in ("lease-held", "plan-conflict") for item in found):
                left, silent = nodes.each(lambda one: one.teardown(force))
                found += [*silent, *(item for items in left.values() for item in items)]
                for host, items in left.items():
                    before = states.get(host)
                    made = sum(thing.ours for thing in before.things) if before else 0
                    word = "nothing was there" if before and not before.plan_hash else "taken back"
                    if before and not items and (kept := _adopted(before)):
                        found.append(_left_in_place(host, kept))
                        word += f"; {len(kept)} stay as found"
                    rows.append((host, str(made), f"{len(items)} left" if items else word))
            document = {
                "schema": SCHEMA,
                "nodes": [{"host": host, "made": int(made), "result": result} for host, made, result in rows],
            }
            table = text_table({"node": "<", "made": ">", "result": "<"}, rows).splitlines() if rows else []
            finish(found, document if as_json else None, table, asked=bool(states))


def _adopted(before: NodeStatus) -> list[str]:
    """What carries frames and stood before 'up': identical, so nothing was made, and it is nobody's to take back."""
    kinds = ("route", "neighbour", "rule", "mark", "marker")
    return [
        thing.key
        for thing in before.things
        if thing.state == "same" and not thing.ours and thing.key.split()[0] in kinds
    ]


def _left_in_place(host: str, kept: list[str]) -> Finding:
    from ..mesh.finding import finding

    fix = "leave what somebody else made; leftovers of an agent that lost its state: docs/troubleshooting.md"
    return finding("left-in-place", host, f"not made by 'roce-ring up': {', '.join(kept)}", "only what is needed", fix)
