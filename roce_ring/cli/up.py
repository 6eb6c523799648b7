"""`roce-ring up`: a plan on all its nodes, or on none."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Annotated

import typer

from .node_table import as_dicts, table
from .nodes import Agent, Force, Json, PlanFile, TlsFiles, finish, fleet, instead_of

if TYPE_CHECKING:
    from ..mesh.agent.model import NodeStatus
    from ..mesh.finding import Finding
    from .nodes import Fleet

SCHEMA = "roce-ring/up/v1"


def register(app: typer.Typer) -> None:
    @app.command()
    def up(
        plan_file: PlanFile,
        agent: Agent = [],  # noqa: B006  # typer reads it only
        dry_run: Annotated[bool, typer.Option(help="Print what would run on each node; change nothing.")] = False,
        prove: Annotated[bool, typer.Option(help="Then prove every path with RDMA writes.")] = True,
        force: Force = False,
        tls: TlsFiles = None,
        as_json: Json = False,
    ) -> None:
        """Set a plan up on all its nodes, and prove its paths.

        All nodes check the plan first; if one refuses, nothing changes anywhere. If one fails while it is set up, the
        others take it back. Again with the same plan it mends what is amiss.
        """
        with fleet(plan_file, agent, tls) as nodes:
            if dry_run:
                _dry_run(nodes, as_json)
            found = refused(nodes)
            if found:
                _say_nothing_changed(as_json)
                finish(found, {"schema": SCHEMA, "nodes": []} if as_json else None, (), asked=bool(nodes.agents))
            before, found = nodes.each(lambda one: one.status())
            try:
                found = found or _commit(nodes, before, force)
            except KeyboardInterrupt:
                print(
                    f"interrupted: nodes go on with plan {nodes.plan.hash[:12]}; "
                    f"'roce-ring status {plan_file}' shows it, 'roce-ring down {plan_file}' takes it back",
                    file=sys.stderr,
                )
                raise typer.Exit(130) from None
            if not found and prove:
                from .verify import proven

                proven(nodes, SCHEMA, as_json)
            after, silent = nodes.each(lambda one: one.status())
            found += silent
            document = {"schema": SCHEMA, "nodes": as_dicts(after)} if as_json else None
            finish(found, document, table(after).splitlines() if not found else ())


def refused(nodes: Fleet) -> list[Finding]:
    """Why the plan cannot go to all nodes: one does not answer, refuses it, or holds another. Staged everywhere if
    nothing is wrong."""
    from ..mesh.finding import finding

    states, silent = nodes.each(lambda one: one.status())
    found = [*nodes.missing, *silent]
    others = {host: state.plan_hash for host, state in states.items() if state.plan_hash not in ("", nodes.plan.hash)}
    for host, other in others.items():
        fix = instead_of(other)
        seen = f"it holds plan {other[:12]}"
        found.append(finding("plan-conflict", host, seen, f"no plan, or {nodes.plan.hash[:12]}", fix))
    if found:
        return found
    staged, silent = nodes.each(lambda one: one.stage(nodes.document))
    return [*silent, *(item for items in staged.values() for item in items)]


def _commit(nodes: Fleet, before: dict[str, NodeStatus], force: bool) -> list[Finding]:
    """Everywhere, or taken back where this very call set it up."""
    from ..mesh.finding import finding

    done, silent = nodes.each(lambda one: one.commit(nodes.plan.hash, force))
    found = [*silent, *(item for items in done.values() for item in items)]
    if not found:
        return []
    new = {host for host, items in done.items() if not items and not before[host].plan_hash}
    if new:
        back, lost = nodes.each(lambda one: one.teardown() if one.host in new else ())
        left = [item for items in back.values() for item in items] + lost
        print(f"taken back from {', '.join(sorted(new))}: all nodes or none", file=sys.stderr)
        found += left
    elif not any(state.plan_hash for state in before.values()):
        found.append(finding("object-failed", "all nodes", "the plan stands on none", "all", "mend the above first"))
    return found


def _dry_run(nodes: Fleet, as_json: bool) -> None:
    answers, silent = nodes.each(lambda one: one.validate(nodes.document))
    found = [*nodes.missing, *silent, *(item for items, _ in answers.values() for item in items)]
    lines = []
    for host, (_, commands) in answers.items():
        lines += [f"# {host}", *(commands or ["# nothing to do"]), ""]
    by_host = {host: list(commands) for host, (_, commands) in answers.items()}
    finish(
        found, {"schema": SCHEMA, "dry_run": True, "commands": by_host} if as_json else None, lines, asked=bool(answers)
    )


def _say_nothing_changed(as_json: bool) -> None:
    if not as_json:
        print("nothing was changed on any node:", file=sys.stderr)
