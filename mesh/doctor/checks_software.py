"""Checks of what engines and ranks are told and load: environment, NCCL's files and version, the plan they hold."""

from __future__ import annotations

import ipaddress
from collections.abc import Iterator

from .. import functions
from ..text import CONSUMERS, variables
from .evidence import Function, Process
from .view import Found, View

LEAKING_NCCL = "2.28.9"  # loses proxy slots until a collective hangs
_INTERFACES = ("NCCL_SOCKET_IFNAME", "GLOO_SOCKET_IFNAME", "TP_SOCKET_IFNAME")
_DEVICES = ("NCCL_IB_HCA", "B12X_ROCE_HCA", "ROCE_RING_HCA", "UCX_NET_DEVICES")
_GID_INDICES = ("NCCL_IB_GID_INDEX", "B12X_ROCE_GID_INDEX")
_OWN_ADDRESSES = ("SGLANG_HOST_IP", "VLLM_HOST_IP", "HOST_IP")
_NUMBERS = ("_INDEX", "_TC", "_SL", "_TIMEOUT", "_BYTES", "_SIZE")  # ends of names that are read as numbers


def nccl_files(view: View) -> Found:
    planned = _planned(view)
    for file in view.node.nccl_files:
        odd = [line for line in file.lines if (pair := line.partition("="))[2].strip() != planned.get(pair[0].strip())]
        if odd:
            seen = f"it sets {', '.join(odd[:4])}{', ...' if len(odd) > 4 else ''} in every process that uses NCCL"
            fix = f"move {file.path} away, or make it say what the plan's NCCL line says"
            yield view.find("nccl-conf", file.path, seen, "no stray settings", fix)


def nccl_version(view: View) -> Found:
    versions = {"this host": view.node.libraries.get("nccl")}
    versions |= {str(process): process.libraries.get("nccl") for process in view.node.processes}
    for who, version in versions.items():
        if version is not None and version.split()[0] == LEAKING_NCCL:
            fix = "install 2.30 or newer: this version loses proxy slots until a collective hangs"
            yield view.find("nccl-leak", "", f"{who} has NCCL {version}", f"any but {LEAKING_NCCL}", fix)


def environment(view: View) -> Found:
    for process in view.node.processes:
        for check in (_empty, _interfaces, _devices, _gid_indices, _addresses, _as_planned):
            yield from check(view, process)
    view.need("processes")


def _empty(view: View, process: Process) -> Found:
    for name, value in process.environment.items():
        if not value and name.endswith(_NUMBERS):
            fix = f"unset {name}: an empty one is read as 0, and GID 0 is a link-local address"
            yield view.find("env-empty", str(process), f"{name} is set to nothing", "a number, or unset", fix)


def _interfaces(view: View, process: Process) -> Found:
    wireless = {item.netdev for item in view.node.wifi}
    for name, named in _each(process, _INTERFACES):
        have = view.node.netdevs
        # NCCL takes the beginning of a name, gloo the whole
        exact = named.startswith("=") or not name.startswith("NCCL_")
        wanted = named.lstrip("=")
        chosen = [netdev for netdev in have if netdev == wanted or (not exact and netdev.startswith(wanted))]
        where = f"{process}: {name}={process.environment[name]}"
        fix = f"set {name} to the management port ({_management(view)})"
        if not chosen:
            seen = f"this node has no interface {wanted}"
            yield view.find("env-interface", where, seen, f"one of {', '.join(have)}", fix)
        elif bad := [netdev for netdev in chosen if netdev in view.fabric or netdev in wireless]:
            kind = "a port of the ring, which leads to one node only" if bad[0] in view.fabric else "Wi-Fi"
            yield view.find("env-bootstrap", where, f"{bad[0]} is {kind}", "the wired management network", fix)


def _devices(view: View, process: Process) -> Found:
    """A device of the plan that is gone or down has a finding of its own; here it is the list that is wrong."""
    planned = {hca.rdma for hca in view.part.hcas} if view.part else set()
    for name, named in _each(process, _DEVICES):
        wanted = named.lstrip("=").partition(":")[0]
        exact = named.startswith("=") or process.environment[name].startswith("=") or name != "NCCL_IB_HCA"
        chosen = [
            item for item in view.node.functions if item.rdma == wanted or (not exact and item.rdma.startswith(wanted))
        ]
        where = f"{process}: {name}"
        if name == "UCX_NET_DEVICES" and wanted in (*view.node.netdevs, "all"):
            continue  # UCX takes RDMA devices and interfaces in one list
        if not chosen and wanted not in planned:
            have = ", ".join(item.rdma for item in view.node.functions) or "none"
            fix = f"set {name} as the plan's environment lines do"
            yield view.find("env-hca", where, f"this node has no RDMA device {wanted}", f"one of {have}", fix)
        for item in chosen if exact else ():
            if item not in view.functions:
                seen = f"{item.rdma} has no address, so no cable is meant to be there"
                fix = f"take it out of {name}, or cable and address it; engines fall back to slow paths in silence"
                yield view.find("env-hca", where, seen, "devices that are cabled and up", fix)


def _gid_indices(view: View, process: Process) -> Found:
    for name in _GID_INDICES:
        value = process.environment.get(name, "")
        if not value.lstrip("-").isdigit() or int(value) < 0:  # -1: look it up
            continue
        wrong = [
            f"{item.rdma} ({right.index})"
            for item, port in view.ports
            if (right := functions.matching_gid(port)) is not None
            and right.index != int(value)
            and _used(process, item)
        ]
        if wrong:
            fix = (
                f"unset {name} where the program looks the index up; else re-add the addresses until all devices agree"
            )
            seen = f"the RoCE v2 IPv4 GID is not at {value} on {', '.join(wrong)}"
            yield view.find("env-gid-index", f"{process}: {name}={value}", seen, "the index of every device used", fix)


def _used(process: Process, function: Function) -> bool:
    lists = [process.environment[name].lstrip("=").split(",") for name in _DEVICES if process.environment.get(name)]
    return not lists or any(function.rdma == item.partition(":")[0] for names in lists for item in names)


def _addresses(view: View, process: Process) -> Found:
    owners = {address.partition("/")[0]: name for name, link in view.now.links.items() for address in link.addresses}
    wireless = {item.netdev for item in view.node.wifi}
    for name in (*_OWN_ADDRESSES, "MASTER_ADDR"):
        value = process.environment.get(name, "")
        try:
            address = ipaddress.IPv4Address(value)
        except ValueError:
            continue  # a name, or not set
        owner, where = owners.get(value), f"{process}: {name}={value}"
        subnets = [ipaddress.IPv4Interface(own).network for item in view.functions for own in item.ipv4]
        fix = f"set {name} to the address of the management port ({_management(view)})"
        if name in _OWN_ADDRESSES and owner is None:
            have = ", ".join(address for address, netdev in owners.items() if netdev != "lo")
            yield view.find("env-host-ip", where, "this node does not have that address", f"one of {have}", fix)
        elif any(address in subnet for subnet in subnets) or owner in wireless:
            kind = "Wi-Fi" if owner in wireless else "the ring: nodes that are no neighbours cannot reach it"
            yield view.find("env-bootstrap", where, f"that address is on {kind}", "the wired management network", fix)


def _as_planned(view: View, process: Process) -> Found:
    planned = _planned(view)
    told = dict(process.environment)
    for file in view.node.nccl_files:
        pairs = (line.partition("=") for line in file.lines)
        told = {name.strip(): value.strip() for name, _, value in pairs} | told
    odd = {name: value for name, value in told.items() if value and name in planned and planned[name] != value}
    fix = "start it with the environment lines of 'roce-ring plan'"
    if odd:
        seen = ", ".join(f"{name}={value}" for name, value in odd.items())
        expected = " ".join(f"{name}={planned[name]}" for name in odd)
        yield view.find("env-not-planned", str(process), seen, expected, fix)
    engine = process.pid is not None and not process.what.startswith("rank ")
    if engine and "NCCL_ALGO" in planned and "NCCL_ALGO" not in told and process.environment:
        seen = "NCCL_ALGO is not set, and NCCL's trees need cables that a ring does not have"
        yield view.find("env-not-planned", str(process), seen, f"NCCL_ALGO={planned['NCCL_ALGO']}", fix)


def plans(view: View) -> Found:
    """What the agent and the ranks of this node hold, against the plan that was given."""
    if view.plan is None or not view.given:
        return
    for who, held in holders(view):
        if held != view.plan.hash:
            fix = "give all nodes and ranks the same plan ('roce-ring up', ROCE_RING_PLAN), and start all ranks again"
            yield view.find("plan-differs", who, f"it holds plan {held[:12]}", f"plan {view.plan.hash[:12]}", fix)
    view.need("agent", "processes")


def holders(view: View) -> Iterator[tuple[str, str]]:
    """(who, hash) of everybody on the node who holds a plan."""
    if view.node.agent_plan is not None:
        yield "agent", view.node.agent_plan
    for process in view.node.processes:
        if process.plan_hash is not None:
            yield str(process), process.plan_hash


def _planned(view: View) -> dict[str, str]:
    """What the plan's environment lines say on this node, all consumers together."""
    values: dict[str, str] = {}
    if view.plan is not None and view.part is not None:
        for consumer in CONSUMERS:
            values |= variables(view.plan, consumer, view.part.rank)
    return values


def _each(process: Process, names: tuple[str, ...]) -> Iterator[tuple[str, str]]:
    """(name, item) of every comma-separated value that lists what to use; one that begins with ^ lists what not to."""
    for name in names:
        value = process.environment.get(name, "")
        for item in value.split(",") if value and not value.startswith("^") else ():
            if item.strip():
                yield name, item.strip()


def _management(view: View) -> str:
    """The netdev that most likely is the management port."""
    routes = [route.device for route in view.now.routes.get("default", ())]
    others = [name for name in view.node.netdevs if name not in view.fabric and name != "lo"]
    wired = [name for name in [*routes, *others] if name not in {item.netdev for item in view.node.wifi}]
    return next((name for name in wired if name not in view.fabric), "none found")
