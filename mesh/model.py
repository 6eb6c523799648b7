"""The plan: everything that follows from the facts, immutable, with a hash that every rank must agree on."""

from __future__ import annotations

import hashlib
from typing import Literal

import msgspec

SCHEMA = "roce-ring/mesh-plan/v1"

Shape = Literal["pair", "ring", "chain"]
# How frames that need a relay are told apart: there are none; by one UDP source port and EtherType (one relay at most);
# by destination address and an EtherType that counts the relays left.
Forwarding = Literal["none", "single-relay", "counted-relays"]


class Hca(msgspec.Struct, frozen=True):
    """One RDMA function in use; ``index`` is its place in the rank's HCA list.

    ``gid_index`` is what was seen when planning; connections look it up again, because it moves when a link flaps.
    """

    index: int
    rdma: str
    netdev: str
    pci: str
    plane: int
    port: int
    address: str  # IPv4 with prefix length
    mac: str
    mtu: int
    gid_index: int


class Path(msgspec.Struct, frozen=True):
    """One way from rank ``source`` to rank ``target``. Path i of a pair at one end is path i at the other end."""

    source: int
    target: int
    plane: int
    via: tuple[int, ...]  # ranks of the relays, in travel order
    source_hca: int
    target_hca: int
    source_address: str
    target_address: str
    flow_label: int

    @property
    def hops(self) -> int:
        """Cables on the way."""
        return len(self.via) + 1


class Route(msgspec.Struct, frozen=True):
    destination: str  # IPv4 of the far port, a /32
    device: str
    source: str


class Neighbour(msgspec.Struct, frozen=True):
    """A permanent entry that sends frames for the far port's address to the next node's MAC."""

    address: str
    mac: str
    device: str


class RelayRule(msgspec.Struct, frozen=True):
    """One tc flower rule: what it matches at ingress of ``device``, what it rewrites, and where it sends the frame."""

    device: str
    ethertype: int
    match_source_mac: str | None
    match_target_mac: str | None
    preference: int
    handle: int
    set_ethertype: int
    set_target_mac: str
    output: str


class Mark(msgspec.Struct, frozen=True):
    """Outgoing RDMA frames to ``destination`` (or with ``udp_source_port``) leave with EtherType ``ethertype``."""

    destination: str | None
    udp_source_port: int | None
    ethertype: int


class Marker(msgspec.Struct, frozen=True):
    """The marks that one process holds on one RDMA device."""

    rdma: str
    marks: tuple[Mark, ...]


class Hairpin(msgspec.Struct, frozen=True):
    """Queue size of one function in packets: in effect when planned, and wanted."""

    pci: str
    seen: int
    wanted: int


class NodePlan(msgspec.Struct, frozen=True):
    """What one node has to set up."""

    rank: int
    host: str
    position: int
    hcas: tuple[Hca, ...]
    routes: tuple[Route, ...]
    neighbours: tuple[Neighbour, ...]
    clsact: tuple[str, ...]
    rules: tuple[RelayRule, ...]
    markers: tuple[Marker, ...]
    hairpins: tuple[Hairpin, ...]


class CableEnd(msgspec.Struct, frozen=True):
    rank: int
    port: int


class PlannedCable(msgspec.Struct, frozen=True):
    ends: tuple[CableEnd, CableEnd]
    networks: tuple[str, ...]  # one per plane in use


class Limits(msgspec.Struct, frozen=True):
    """Sizes the forwarding hardware can take. ``load`` is how many whole payloads meet in the busiest hairpin queue."""

    max_bytes: int
    hairpin_packets: int | None  # smallest queue in effect; None where nothing is forwarded
    load: float
    window_bytes: int
    chunk_bytes: int


class Plan(msgspec.Struct, frozen=True):
    """The whole plan. ``ring`` lists ranks in cable order; ``hosts`` lists hosts in rank order."""

    schema: str
    hash: str
    shape: Shape
    planes: tuple[int, ...]
    hosts: tuple[str, ...]
    ring: tuple[int, ...]
    forwarding: Forwarding
    proven: str
    limits: Limits
    cables: tuple[PlannedCable, ...]
    paths: tuple[Path, ...]  # sorted by (source, target), then path number
    nodes: tuple[NodePlan, ...]  # index = rank


def with_hash(plan: Plan) -> Plan:
    """``plan`` with its hash filled in."""
    return msgspec.structs.replace(plan, hash=plan_hash(plan))


def plan_hash(plan: Plan) -> str:
    """SHA-256 over the plan's JSON with sorted keys and an empty hash field."""
    text = msgspec.json.encode(msgspec.structs.replace(plan, hash=""), order="deterministic")
    return hashlib.sha256(text).hexdigest()
