"""`roce-ring down`: takes a plan back from all its nodes."""

from __future__ import annotations

import typer

from .nodes import Agent, Force, Json, PlanFile, TlsFiles, finish, fleet
from .ranks import text_table

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
                    fix = f"take back plan {state.plan_hash[:12]} with its own file"
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
                    rows.append((host, str(made), f"{len(items)} left" if items else word))
            document = {
                "schema": SCHEMA,
                "nodes": [{"host": host, "made": int(made), "result": result} for host, made, result in rows],
            }
            table = text_table({"node": "<", "made": ">", "result": "<"}, rows).splitlines() if rows else []
            finish(found, document if as_json else None, table)
