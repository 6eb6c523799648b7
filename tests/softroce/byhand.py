"""A node's part of a plan, set up on a soft ring with tc and ip alone: for tests that need paths and no agent."""

from __future__ import annotations

from mesh.things import Address, in_software
from tests.softroce.ring import Node


def apply(node: Node) -> None:
    """Raises GuestError at the first command that fails."""
    lines: dict[str, list[str]] = {"ip": [], "tc": []}
    for thing in in_software(node.plan):
        if not isinstance(thing, Address):  # the ring came with them
            for step in thing.make():
                lines[step.argv[0]].append(" ".join(step.argv[1:]))
    for tool, batch in lines.items():
        if batch:
            node.batch(tool, batch)
