"""Every check of the facts that does not need the ring. All findings are collected; nothing stops at the first.

To add one: write a function like those below, list it in CHECKS, and give its code a line in `finding.CODES` and an
entry in `docs/troubleshooting.md`.
"""

from __future__ import annotations

import ipaddress
import re
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import suppress

from .cables import Plug
from .facts import Facts, Port, interface
from .finding import Finding, finding
from .inventory import HOST
from .limits import HAIRPIN_MAX

MIN_NODES, MAX_NODES = 2, 16
DEVICE = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]*")  # netdev and RDMA names end up in commands and environment lines
_MAX_NETDEV = 15  # IFNAMSIZ - 1
MAX_RDMA = 63  # IB_DEVICE_NAME_MAX - 1
PCI = re.compile(r"[0-9a-fA-F]{4,8}:[0-9a-fA-F]{2}:[0-9a-fA-F]{2}\.[0-7]")
MAC = re.compile(r"([0-9a-f]{2}:){5}[0-9a-f]{2}")
# this network, loopback, and from 224.0.0.0 on multicast, reserved and broadcast: no port is reached there
_NO_HOSTS = tuple(map(ipaddress.IPv4Network, ("0.0.0.0/8", "127.0.0.0/8", "224.0.0.0/3")))
_ROCE_MTUS = (256, 512, 1024, 2048, 4096)
_GID_ROWS = (0, 255, "verbs keep the index in one byte")
_BOUNDS = {  # field -> smallest, largest, what says so
    "mtu": (0, 9978, "maxmtu of mlx5 in 'ip -d link'"),
    "roce_active_mtu": (256, 4096, "the smallest and largest RoCE MTU"),
    "gid_index": _GID_ROWS,
    "hairpin_num_queues": (1, 2**32 - 1, "a 32-bit devlink parameter"),
    "hairpin_queue_size": (1, HAIRPIN_MAX, "what mlx5 accepts"),
    "hairpin_configured": (1, HAIRPIN_MAX, "what mlx5 accepts"),
}


def check_facts(facts: Facts) -> Iterator[Finding]:
    """Findings of every check in CHECKS; of a list that is no ring at all, that alone."""
    if len(facts) > MAX_NODES:
        yield from _node_count(facts)
        return
    for check in CHECKS:
        yield from check(facts)


def ports(facts: Facts) -> Iterator[Port]:
    """Every port that has an address; the others are not cabled and take no part."""
    return (port for node in facts for port in node.ports if port.ipv4 is not None)


def plugs(facts: Facts) -> tuple[Plug, ...]:
    """Every port as the cable finder wants it."""
    return tuple(
        Plug(
            port.rank,
            port.port,
            port.plane,
            "" if port.ipv4 is None else str(interface(port).network),
            str(port),
            port.host,
        )
        for node in facts
        for port in node.ports
    )


def _node_count(facts: Facts) -> Iterator[Finding]:
    if not MIN_NODES <= len(facts) <= MAX_NODES:
        fix = (
            "list every node of the ring, rank 0 first" if len(facts) < MIN_NODES else "plan a ring of at most 16 nodes"
        )
        yield finding("node-count", "nodes", f"{len(facts)} node(s)", f"{MIN_NODES} to {MAX_NODES}", fix)


def _names(facts: Facts) -> Iterator[Finding]:
    for node in facts:
        if not HOST.fullmatch(node.host):
            yield _bad(
                f"node {node.rank}",
                f"host name {node.host!r}",
                "a name of at most 253 letters, digits, '.', '-' and '_'",
                "correct 'host'",
            )
        for port in node.ports:
            for field, limit in (("netdev", _MAX_NETDEV), ("rdma", MAX_RDMA)):
                value = getattr(port, field)
                if not DEVICE.fullmatch(value) or len(value) > limit:
                    expected = f"a device name of at most {limit} letters, digits, '.', '-' and '_'"
                    yield _bad(str(port), f"{field} {value!r}", expected, "copy the name from 'ip link' or 'rdma link'")
            if not PCI.fullmatch(port.pci):
                yield _bad(str(port), f"pci {port.pci!r}", "an address like 0000:01:00.0", "copy it from 'lspci -D'")
            for field in ("plane", "port"):
                if getattr(port, field) not in (0, 1):
                    expected = "0 or 1 (the two PCIe domains)" if field == "plane" else "0 or 1 (the two cages)"
                    yield _bad(str(port), f"{field} {getattr(port, field)}", expected, f"correct '{field}'")


def _addresses(facts: Facts) -> Iterator[Finding]:
    for port in ports(facts):
        try:
            network, address = interface(port).network, interface(port).ip
        except ValueError:
            yield _bad(
                str(port), f"ipv4 {port.ipv4!r}", "an address with its prefix, like 10.10.0.10/24", "correct 'ipv4'"
            )
            continue
        if "/" not in (port.ipv4 or ""):
            seen = f"ipv4 {port.ipv4} has no prefix length"
            yield _bad(str(port), seen, "an address with its prefix, like 10.10.0.10/24", "write its subnet's length")
        elif not 8 <= network.prefixlen <= 30:
            fix = "give each cable and plane its own subnet, customarily a /24"
            yield _bad(str(port), f"ipv4 {port.ipv4} has a /{network.prefixlen} prefix", "/8 to /30", fix)
        elif any(network.overlaps(block) for block in _NO_HOSTS):
            seen = f"ipv4 {port.ipv4}: {network} has no addresses for hosts"
            expected = "a subnet that is not multicast, loopback, reserved or 0.x"
            yield _bad(str(port), seen, expected, "give the cable another subnet, like 10.10.0.0/24")
        elif address in (network.network_address, network.broadcast_address):
            yield _bad(
                str(port),
                f"ipv4 {port.ipv4} is no host address",
                "one host's, not the network's own or its broadcast",
                "use another address of the subnet",
            )
        if port.mac is None:
            yield finding(
                "missing-field",
                str(port),
                "no MAC address is given",
                "the MAC of every addressed port",
                "add it under 'mac'",
            )
        elif not MAC.fullmatch(port.mac.lower()):
            yield _bad(
                str(port),
                f"mac {port.mac!r}",
                "six hexadecimal bytes, like 02:00:00:01:00:00",
                "copy it from 'ip link'",
            )
        elif int(port.mac[:2], 16) & 1 or not port.mac.strip("0:"):  # the first bit on the wire marks a group
            expected = "the address of one port: not zero, multicast or broadcast"
            yield _bad(str(port), f"mac {port.mac} is no port's", expected, "copy it from 'ip link'")


def _numbers(facts: Facts) -> Iterator[Finding]:
    for port in ports(facts):
        values = [(field, getattr(port, field), bounds) for field, bounds in _BOUNDS.items()]
        values += [("gids index", row.index, _GID_ROWS) for row in port.gids or ()]
        for field, value, (low, high, reason) in values:
            if value is not None and not low <= value <= high:
                fix = f"correct '{field.split()[0]}'"
                yield _bad(str(port), f"{field} {value}", f"{low} to {high} ({reason})", fix)


def _roce_mtus(facts: Facts) -> Iterator[Finding]:
    for port in ports(facts):
        mtu = port.roce_active_mtu
        if mtu is not None and 256 <= mtu <= 4096 and mtu not in _ROCE_MTUS:
            expected = f"one of {', '.join(map(str, _ROCE_MTUS))}"
            yield _bad(str(port), f"roce_active_mtu {mtu}", expected, "copy active_mtu from 'ibv_devinfo'")


def _duplicates(facts: Facts) -> Iterator[Finding]:
    by_host: dict[str, list[int]] = defaultdict(list)
    for node in facts:
        by_host[node.host.lower()].append(node.rank)  # host names that differ only in case are one name
        for field in ("netdev", "rdma", "pci"):
            yield from _twice(node.ports, field, "duplicate-function", "each function listed once")
        yield from _same_place(node.ports)
    for ranks in by_host.values():
        if len(ranks) > 1:
            where = " and ".join(f"node {rank}" for rank in ranks)
            names = " and ".join(dict.fromkeys(facts[rank].host for rank in ranks))
            yield finding(
                "duplicate-host",
                where,
                f"all are called {names}" + (", one name in another case" if " and " in names else ""),
                "one name per node",
                f"correct 'host' of node {ranks[-1]}",
            )
    addressed = tuple(ports(facts))
    yield from _twice(addressed, "ipv4", "duplicate-address", "one port per address")
    yield from _twice(addressed, "mac", "duplicate-mac", "one port per MAC")


def _twice(group: tuple[Port, ...], field: str, code: str, expected: str) -> Iterator[Finding]:
    holders: dict[str, list[Port]] = defaultdict(list)
    for port in group:
        value = getattr(port, field)
        if value is not None:
            holders[value.split("/")[0].lower()].append(port)
    for value, owners in holders.items():
        if len(owners) > 1:
            where = " and ".join(map(str, owners))
            yield finding(
                code,
                where,
                f"{len(owners)} ports hold {field} {value}" if len(owners) > 2 else f"both hold {field} {value}",
                expected,
                f"correct '{field}' of {owners[-1]}",
            )


def _same_place(group: tuple[Port, ...]) -> Iterator[Finding]:
    places: dict[tuple[int, int], Port] = {}
    for port in group:
        first = places.setdefault((port.plane, port.port), port)
        if first is not port:
            seen = f"both say plane {port.plane}, port {port.port}"
            fix = f"correct 'plane' or 'port' of {port.netdev} (phys_port_name p0/p1 in sysfs is the port)"
            yield finding(
                "duplicate-function",
                f"{first.host} {first.netdev} and {port.netdev}",
                seen,
                "one function per plane and port",
                fix,
            )


def _overlaps(facts: Facts) -> Iterator[Finding]:
    first: dict[ipaddress.IPv4Network, Port] = {}
    for port in ports(facts):
        with suppress(ValueError):  # reported by _addresses
            first.setdefault(interface(port).network, port)
    widest: ipaddress.IPv4Network | None = None
    for network in sorted(first):  # by address, the wider first: one that overlaps lies right behind its container
        if widest is not None and widest.overlaps(network):
            where = f"{first[widest]} and {first[network]}"
            fix = "use the same prefix length at both ends of a cable, and separate subnets for separate cables"
            seen = f"subnets {widest} and {network} overlap"
            yield finding("subnet-overlap", where, seen, "equal or separate subnets", fix)
        else:
            widest = network


def _inventory_problems(facts: Facts) -> Iterator[Finding]:
    for node in facts:
        for problem in node.problems:
            yield finding(
                "inventory-problem",
                node.host,
                problem,
                "every fact readable",
                "run 'roce-ring inventory' there and follow it",
            )


def _bad(where: str, seen: str, expected: str, fix: str) -> Finding:
    return finding("bad-value", where, seen, expected, fix)


CHECKS: tuple[Callable[[Facts], Iterator[Finding]], ...] = (
    _node_count,
    _names,
    _addresses,
    _numbers,
    _roce_mtus,
    _duplicates,
    _overlaps,
    _inventory_problems,
)
