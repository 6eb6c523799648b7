"""All nodes of a ring on this machine: agents behind sockets of their own, each on a fake card under Soft-RoCE."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path

import pytest

from mesh.agent import server
from mesh.agent.agent import Agent
from mesh.agent.server import AgentServer
from mesh.model import Plan
from tests.mesh.agent.card import Card


class NodeOfFleet:
    def __init__(self, plan: Plan, rank: int, folder: Path) -> None:
        self.host = plan.hosts[rank]
        folder.mkdir()
        (folder / "state").mkdir()
        self.card = Card(plan.nodes[rank], folder / "sys")
        self.before = self.card.state()
        self.agent = Agent(folder / "state", "soft", run=self.card.run, sysfs=folder / "sys")
        self.run_dir = folder / "run"

    @property
    def socket(self) -> Path:
        return self.run_dir / "agent.sock"


class Fleet:
    """A context manager."""

    def __init__(self, plan: Plan, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.plan, self._monkeypatch = plan, monkeypatch
        self.nodes = [NodeOfFleet(plan, rank, folder / str(rank)) for rank in range(len(plan.hosts))]
        self.servers: dict[str, AgentServer] = {}
        self._stack = ExitStack()

    def __enter__(self) -> Fleet:
        for node in self.nodes:
            self._monkeypatch.setattr(server, "_NODE_LOCK", f"\0{node.run_dir}")
            served = AgentServer(lambda node=node: node.agent, node.run_dir)  # type: ignore[misc]
            self.servers[node.host] = served
            self._stack.callback(served.close, 0)
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def addresses(self, *without: str) -> list[str]:
        """Options for the nodes' verbs."""
        return [f"--agent={node.host}=unix:{node.socket}" for node in self.nodes if node.host not in without]

    @property
    def untouched(self) -> bool:
        return all(node.card.state() == node.before for node in self.nodes)
