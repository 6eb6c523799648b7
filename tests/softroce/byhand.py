"""A node's part of a plan, set up on a soft ring with tc and ip alone: for tests that need paths and no agent."""

from __future__ import annotations

from mesh.things import Address, in_software
from tests.softroce.ring import Node


def apply(node: Node) -> None:
    """Raises GuestError at the first command that fails."""
    for tool, batch in _lines(node).items():
        if batch:
            node.batch(tool, batch)


def again(*nodes: Node) -> None:
    """The same, where a part of it may be there: a port that was down has lost its routes and neighbours."""
    scripts = [
        "\n".join(f"{tool} -force -b - <<'END'\n" + "\n".join(batch) + "\nEND" for tool, batch in _lines(node).items())
        for node in nodes
    ]
    for job in [node.spawn(f"({script}\n) 2> /dev/null") for node, script in zip(nodes, scripts, strict=True)]:
        job.wait()


def _lines(node: Node) -> dict[str, list[str]]:
    lines: dict[str, list[str]] = {"ip": [], "tc": []}
    for thing in in_software(node.plan):
        if not isinstance(thing, Address):  # the ring came with them
            for step in thing.make():
                lines[step.argv[0]].append(" ".join(step.argv[1:]))
    return lines
