"""`roce-ring verify`: looks at everything a plan set up, and proves every path with RDMA writes."""

from __future__ import annotations

from typing import TYPE_CHECKING

import typer

from .node_table import as_dicts, table
from .nodes import Agent, Json, PlanFile, TlsFiles, finish, fleet, instead_of
from .ranks import text_table

if TYPE_CHECKING:
    from ..mesh.agent.proving import Proof
    from .nodes import Fleet

SCHEMA = "roce-ring/verify/v1"
COLUMNS = {"path": "<", "plane": ">", "via": "<", "write": ">", "relay frames": ">", "result": "<"}


def register(app: typer.Typer) -> None:
    @app.command()
    def verify(
        plan_file: PlanFile,
        agent: Agent = [],  # noqa: B006  # typer reads it only
        tls: TlsFiles = None,
        as_json: Json = False,
    ) -> None:
        """Prove a plan that is up: all of it stands, every path carries RDMA writes both ways, relays pass them on.

        Proof of a far path: its writes are acknowledged, the relay's rule counted their frames, and the relay's kernel
        forwarded none. Harmless beside a running session.
        """
        with fleet(plan_file, agent, tls) as nodes:
            proven(nodes, SCHEMA, as_json)


def proven(nodes: Fleet, schema: str, as_json: bool) -> None:
    """Prints the nodes and their paths, and exits."""
    import msgspec

    from ..mesh.agent.proving import prove
    from ..mesh.finding import finding

    before, silent = nodes.each(lambda one: one.status(look=True))
    found = [*nodes.missing, *silent]
    for host, state in before.items():
        if state.plan_hash != nodes.plan.hash or state.phase != "active":
            seen = f"it holds plan {state.plan_hash[:12]}, {state.phase}" if state.plan_hash else "it holds no plan"
            fix = instead_of(state.plan_hash if state.plan_hash != nodes.plan.hash else "")
            found.append(finding("plan-differs", host, seen, f"plan {nodes.plan.hash[:12]}, active", fix))
    found += [item for state in before.values() for item in state.findings]
    stands = {host for host, state in before.items() if (state.plan_hash, state.phase) == (nodes.plan.hash, "active")}
    ready = {host: nodes.agents[host] for host in before if host in stands}
    proofs, broken, after = prove(nodes.plan, ready, before)
    found += broken
    if as_json:
        document = {"schema": schema, "nodes": as_dicts(after), "paths": msgspec.to_builtins(proofs)}
        finish(found, document, (), asked=bool(before))
    shown = (
        [*table(after).splitlines(), "", *text_table(COLUMNS, list(map(_row, proofs))).splitlines()] if before else []
    )
    finish(found, None, shown, asked=bool(before))


def _row(proof: Proof) -> tuple[str, ...]:
    return (
        f"{proof.source} -> {proof.target}",
        str(proof.plane),
        ", ".join(proof.via) or "cable",
        f"{proof.latency_us:.1f} us" if proof.latency_us else "-",
        "+".join(map(str, proof.relayed)) or "-",
        "ok" if proof.ok else proof.why,
    )
