"""The format of the evidence: what `look` gathers on one node, and what the checks read."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import msgspec

from ..facts import Common, Facts, Gid, NodeEntry, PortEntry, resolve
from ..finding import Finding, Refused, finding
from ..loading import Kind, read_document, what_it_is
from ..model import Mark
from ..snapshot import CommandFailed, Snapshot, read
from ..strict import convert
from .look import SCHEMA

_EVIDENCE = Kind(
    "a list with the evidence of each node",
    "name a file that 'roce-ring doctor --evidence-out FILE' wrote, or write it again with this version",
)


class _Struct(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    pass


class Pcie(_Struct, frozen=True):
    """Speeds in GT/s per lane."""

    current_speed: float | None
    current_width: int | None
    max_speed: float | None
    max_width: int | None


class Function(_Struct, frozen=True):
    """One RDMA function. ``pci``, ``plane`` and ``port`` are None for Soft-RoCE; from ``hw_tc_offload`` on only what is
    addressed and has a card was asked."""

    rdma: str
    netdev: str
    pci: str | None
    plane: int | None
    port: int | None
    mac: str | None
    mtu: int | None
    link_up: bool
    gids: tuple[Gid, ...]
    ipv4: tuple[str, ...]
    roce_active_mtu: int | None
    firmware: str | None
    hw_tc_offload: bool | None = None
    offload_fixed: bool = False
    flow_steering_mode: str | None = None
    hairpin_num_queues: int | None = None
    hairpin_queue_size: int | None = None
    hairpin_configured: int | None = None
    reload_failed: bool | None = None
    eswitch: dict[str, str] = {}
    pcie: Pcie | None = None
    aer: dict[str, int] = {}
    counters: dict[str, int] = {}
    growth: dict[str, int] = {}

    @property
    def soft(self) -> bool:
        """Soft-RoCE: no card, so nothing that only cards have is asked of it."""
        return self.pci is None


class Iproute(_Struct, frozen=True):
    address: str
    qdisc: str
    filters: str


class Wifi(_Struct, frozen=True):
    netdev: str
    power_save: bool | None


class ConfigFile(_Struct, frozen=True):
    path: str
    ports: tuple[str, ...]


class Memlock(_Struct, frozen=True):
    """Bytes; -1 is unlimited; None: not there to ask."""

    login: int
    login_may_exceed: bool
    systemd: int | None
    docker: int | None


class Kernel(_Struct, frozen=True):
    release: str
    machine: str
    kho: bool
    cma_kib: int | None


class NcclFile(_Struct, frozen=True):
    path: str
    lines: tuple[str, ...]


class Process(_Struct, frozen=True):
    """``pid`` None is the login that looked. ``memlock``: bytes, -1 unlimited."""

    pid: int | None
    what: str
    environment: dict[str, str]
    memlock: int | None
    libraries: dict[str, str]
    plan_hash: str | None

    def __str__(self) -> str:
        return self.what if self.pid is None else f"{self.what} (pid {self.pid})"


class Evidence(_Struct, frozen=True):
    """One node. ``unknown``: section -> why something of it could not be read. ``growth`` is over ``interval_s``."""

    schema: str
    host: str
    interval_s: float
    functions: tuple[Function, ...]
    problems: tuple[str, ...]
    iproute: Iproute | None
    far_macs: dict[str, tuple[str, ...]]
    silent: dict[str, tuple[str, ...]]
    netdevs: tuple[str, ...]
    wifi: tuple[Wifi, ...]
    ip_forward: bool | None
    others_forward: tuple[str, ...]
    firewall: tuple[str, ...]
    config_files: tuple[ConfigFile, ...]
    ssh_address: str | None
    memlock: Memlock
    kernel: Kernel
    libraries: dict[str, str]
    nccl_files: tuple[NcclFile, ...]
    processes: tuple[Process, ...]
    markers: dict[str, tuple[Mark, ...]]
    agent_plan: str | None
    forwarded_growth: int | None
    unknown: dict[str, str]


def evidence_from_json(raw: object, where: str) -> Evidence:
    """One node's evidence; raises :class:`Refused` with every mistake in it."""
    if not isinstance(raw, dict) or raw.get("schema") != SCHEMA:
        seen, expected = f"holds {what_it_is(raw)}", f"the evidence of a node ({SCHEMA})"
        raise Refused([finding("bad-value", where, seen, expected, _EVIDENCE.fix)])
    return convert(raw, Evidence, where)


def load_evidence(path: Path) -> tuple[Evidence, ...]:
    """What ``--evidence-out`` wrote: a list with one mapping per node."""
    raw = read_document(path, _EVIDENCE)
    if not isinstance(raw, list) or not raw:
        seen = "holds an empty list" if raw == [] else f"holds {what_it_is(raw)}"
        raise Refused([finding("wrong-type", str(path), seen, _EVIDENCE.holds, _EVIDENCE.fix)])
    problems: list[Finding] = []
    nodes: list[Evidence] = []
    for number, item in enumerate(raw):
        try:
            nodes.append(evidence_from_json(item, f"{path}[{number}]"))
        except Refused as refused:
            problems += refused.findings
    if problems:
        raise Refused(problems)
    return tuple(nodes)


def snapshot(evidence: Evidence) -> Snapshot | None:
    """The kernel's things as :mod:`mesh.snapshot` sees them; None if they could not be read."""
    texts = evidence.iproute
    if texts is None:
        return None

    def answer(argv: Sequence[str], stdin: str = "") -> str:
        if argv[0] == "ip":
            return texts.address
        return texts.filters if stdin else texts.qdisc

    try:
        now = read(answer)
    except CommandFailed:
        return None
    return msgspec.structs.replace(now, marked=evidence.markers)


def facts_of(nodes: Sequence[Evidence]) -> Facts:
    """The planner's facts of several nodes, ranks as listed, without Soft-RoCE: that does not say where it sits."""
    return resolve(tuple(map(_entry, nodes)), Common())


def _entry(node: Evidence) -> NodeEntry:
    return NodeEntry(host=node.host, ports=tuple(port_entry(item) for item in node.functions if not item.soft))


def port_entry(function: Function, plane: int = 0, port: int = 0) -> PortEntry:
    """The function as the planner's checks want it; ``plane`` and ``port`` are for one that does not know its own."""
    return PortEntry(
        netdev=function.netdev,
        rdma=function.rdma,
        pci=function.pci or "0000:00:00.0",
        plane=plane if function.plane is None else function.plane,
        port=port if function.port is None else function.port,
        ipv4=function.ipv4[0] if function.ipv4 else None,
        mac=function.mac,
        gids=function.gids,
        mtu=function.mtu,
        roce_active_mtu=function.roce_active_mtu,
        hw_tc_offload=function.hw_tc_offload,
        flow_steering_mode=function.flow_steering_mode,
        hairpin_num_queues=function.hairpin_num_queues,
        hairpin_queue_size=function.hairpin_queue_size,
        hairpin_configured=function.hairpin_configured,
        link_up=function.link_up,
    )
