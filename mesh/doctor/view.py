"""What the checks of one node see: its evidence, and its part of the plan if there is one."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cached_property
from typing import NoReturn

from ..facts import Common, NodeEntry, Port, resolve
from ..finding import Finding, finding
from ..model import Hca, NodePlan, Plan
from ..snapshot import Snapshot
from . import evidence as evidence_of
from .evidence import Evidence, Function

NO_PLAN = "no plan: give --plan, or all nodes of the ring with --ssh"


class Unknown(Exception):
    """A check could not look; the message says why."""


class View:
    """One node. ``plan`` is the one given, or the one that follows from what was seen on all nodes (not ``given``: it
    has a hash of its own, which nobody else needs to hold)."""

    def __init__(self, node: Evidence, plan: Plan | None, given: bool = True) -> None:
        self.node = node
        self.plan = plan
        self.given = given and plan is not None
        self.host = node.host

    @cached_property
    def part(self) -> NodePlan | None:
        """This node's part: found by host name, or by its MACs where hosts have several names."""
        if self.plan is None:
            return None
        if self.host in self.plan.hosts:
            return self.plan.nodes[self.plan.hosts.index(self.host)]
        macs = {(item.mac or "").lower() for item in self.node.functions}
        return next((part for part in self.plan.nodes if {hca.mac for hca in part.hcas} <= macs), None)

    @property
    def planned(self) -> NodePlan:
        """This node's part; :class:`Unknown` without one."""
        if self.part is None:
            raise Unknown(NO_PLAN if self.plan is None else f"the plan has no node {self.host}")
        return self.part

    @cached_property
    def now(self) -> Snapshot:
        """Addresses, routes, neighbours and filters; :class:`Unknown` if they could not be read."""
        found = evidence_of.snapshot(self.node)
        if found is None:
            raise Unknown(self.node.unknown.get("iproute", "what ip and tc printed could not be read"))
        return found

    def need(self, *sections: str) -> None:
        """Raise :class:`Unknown` if something of these sections of the evidence could not be read."""
        for section in sections:
            if section in self.node.unknown:
                self.unknown(self.node.unknown[section])

    def unknown(self, reason: str) -> NoReturn:
        raise Unknown(reason)

    @cached_property
    def functions(self) -> tuple[Function, ...]:
        """Those in use: addressed, or in the plan."""
        planned = {hca.rdma for hca in self.part.hcas} if self.part else set()
        return tuple(item for item in self.node.functions if item.ipv4 or item.rdma in planned)

    @property
    def soft(self) -> bool:
        """Soft-RoCE only: no card to ask."""
        return bool(self.functions) and all(item.soft for item in self.functions)

    @property
    def fabric(self) -> tuple[str, ...]:
        """The netdevs of the functions in use."""
        return tuple(item.netdev for item in self.functions)

    def hca(self, function: Function) -> Hca | None:
        return next((hca for hca in self.part.hcas if hca.rdma == function.rdma), None) if self.part else None

    @cached_property
    def ports(self) -> tuple[tuple[Function, Port], ...]:
        """The addressed functions as the planner's checks want them."""
        entries = []
        addressed = [item for item in self.functions if item.ipv4]
        for item in addressed:
            hca = self.hca(item)
            entries.append(evidence_of.port_entry(item, *((hca.plane, hca.port) if hca else ())))
        (node,) = resolve((NodeEntry(host=self.host, ports=tuple(entries)),), Common()) if entries else (None,)
        by_name = {port.rdma: port for port in node.ports} if node else {}
        return tuple((item, by_name[item.rdma]) for item in addressed)

    def where(self, name: str = "") -> str:
        return f"{self.host} {name}".strip()

    def find(self, code: str, name: str, seen: str, expected: str, fix: str) -> Finding:
        """A finding on this node at ``name`` (empty: the node itself)."""
        return finding(code, self.where(name), seen, expected, fix)


Found = Iterator[Finding]
