"""The facts a plan is made from: how they are written in a file, and how they look once defaults are filled in."""

from __future__ import annotations

import ipaddress
from functools import lru_cache
from typing import Any

import msgspec


class FunctionState(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """State of one network function. The nearest place that gives a value wins: port, node, shared port, ``common``."""

    mtu: int | None = None  # bytes
    roce_active_mtu: int | None = None  # bytes of payload per RoCE packet
    gid_index: int | None = None
    hw_tc_offload: bool | None = None
    flow_steering_mode: str | None = None
    hairpin_num_queues: int | None = None
    hairpin_queue_size: int | None = None  # packets, the size in effect now
    hairpin_configured: int | None = None  # packets, the driverinit value where it is not in effect yet
    link_up: bool | None = None


class Gid(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """One row of an RDMA device's GID table."""

    index: int
    gid: str
    type: str
    netdev: str


class PortEntry(FunctionState, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """One function as written in a file: ``port`` is the cage (0 or 1), ``plane`` the PCIe side (0 or 1)."""

    netdev: str
    rdma: str
    pci: str
    plane: int
    port: int
    ipv4: str | None = None
    mac: str | None = None
    gids: tuple[Gid, ...] | None = None


class Common(FunctionState, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Values shared by all nodes of a file."""

    ports: tuple[PortEntry, ...] = ()


class NodeEntry(FunctionState, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """One node. ``ports`` replaces the shared list; ``ipv4`` and ``mac`` map a netdev to its address."""

    host: str
    schema: str | None = None
    ports: tuple[PortEntry, ...] = ()
    ipv4: dict[str, str] = {}
    mac: dict[str, str] = {}
    problems: tuple[str, ...] = ()  # what `inventory` could not read


class FactsFile(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A whole file: the nodes are listed in tensor-parallel rank order."""

    nodes: tuple[NodeEntry, ...]
    common: Common = Common()


class Port(FunctionState, frozen=True, kw_only=True):
    """One function of one rank with every default filled in; None is what the facts do not give."""

    rank: int
    host: str
    netdev: str
    rdma: str
    pci: str
    plane: int
    port: int
    ipv4: str | None
    mac: str | None
    gids: tuple[Gid, ...] | None

    def __str__(self) -> str:
        # What was mistyped may be a page long; longer than these no name is right.
        return f"{self.host[:253]} {self.netdev[:63]} (plane {self.plane}, port {self.port})"


class Node(msgspec.Struct, frozen=True):
    """One rank's facts; ``ports`` are sorted by (plane, port), the order of every HCA list in the plan."""

    rank: int
    host: str
    ports: tuple[Port, ...]
    problems: tuple[str, ...] = ()


def interface(port: Port) -> ipaddress.IPv4Interface:
    """The port's address; ValueError if it has none or it is not one."""
    return _parsed(port.ipv4 or "")


@lru_cache(maxsize=1024)
def _parsed(text: str) -> ipaddress.IPv4Interface:
    return ipaddress.IPv4Interface(text)


Facts = tuple[Node, ...]  # index = tensor-parallel rank

_STATE = FunctionState.__struct_fields__


def resolve(nodes: tuple[NodeEntry, ...], common: Common) -> Facts:
    """Fill in defaults and number the nodes in the order given."""
    return tuple(_node(rank, node, common) for rank, node in enumerate(nodes))


def _node(rank: int, node: NodeEntry, common: Common) -> Node:
    ports = []
    for entry in node.ports or common.ports:
        nearest = (entry, node, common) if node.ports else (node, entry, common)
        own = {"ipv4": node.ipv4.get(entry.netdev, entry.ipv4), "mac": node.mac.get(entry.netdev, entry.mac)}
        state = {name: _first(nearest, name) for name in _STATE}
        names = {name: getattr(entry, name) for name in ("netdev", "rdma", "pci", "plane", "port", "gids")}
        values: dict[str, Any] = {**names, **own, **state}
        ports.append(Port(rank=rank, host=node.host, **values))
    return Node(rank, node.host, tuple(sorted(ports, key=lambda p: (p.plane, p.port))), node.problems)


def _first(sources: tuple[FunctionState, ...], name: str) -> object:
    return next((value for source in sources if (value := getattr(source, name)) is not None), None)
