"""Checks of every function on the way once the cables are known: link, MTU, GID, offload, steering, hairpin queues."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from ipaddress import IPv4Address

from .cables import Cable
from .facts import Gid, Port, interface
from .finding import Finding, finding
from .limits import HAIRPIN_MAX

ROCE_MTU = 4096  # bytes; the largest RoCE MTU there is
MIN_MTU = 4200  # bytes; NVIDIA's figure for an Ethernet MTU that carries 4096-byte RoCE packets
GOOD_MTU = 9000
ROCE_V2 = "RoCE v2"


def check_functions(
    ports: Iterable[Port], cables: Sequence[Cable], forwards: bool, relays: Collection[int]
) -> Iterator[Finding]:
    """Findings about the addressed ``ports``; what only forwarding needs is asked only where it happens.

    ``forwards``: some pair is joined over relays, so senders mark frames. ``relays``: the ranks that pass them on.
    """
    ports = tuple(ports)
    for port in ports:
        for check in CHECKS:
            yield from check(port)
        if forwards:
            yield from steering(port)
        if port.rank in relays:
            for check in RELAY_CHECKS:
                yield from check(port)
    yield from mtu_ends({(p.rank, p.port, p.plane): p for p in ports}, cables)


def matching_gid(port: Port) -> Gid | None:
    """The table row that RoCE v2 traffic from this port's own IPv4 address must use."""
    wanted = ipv4_gid(port)
    rows = (row for row in port.gids or () if row.gid == wanted and row.type == ROCE_V2 and row.netdev == port.netdev)
    return next(rows, None)


def ipv4_gid(port: Port) -> str:
    """The IPv4-mapped GID of the port's address, spelt as sysfs spells it."""
    return mapped_gid(interface(port).ip)


def mapped_gid(address: IPv4Address) -> str:
    """The IPv4-mapped GID of an address, spelt as sysfs spells it."""
    packed = int(address)
    return f"0000:0000:0000:0000:0000:ffff:{packed >> 16:04x}:{packed & 0xFFFF:04x}"


def _link(port: Port) -> Iterator[Finding]:
    if port.link_up is False:
        fix = f"seat the cable at both ends, then 'ip link set dev {port.netdev} up'"
        yield finding("link-down", str(port), "the link is down", "link up", fix)


def _mtu(port: Port) -> Iterator[Finding]:
    persist = f"'ip link set dev {port.netdev} mtu {GOOD_MTU}' and the same in netplan, so that a reboot keeps it"
    if port.mtu is None:
        yield finding(
            "missing-field", str(port), "'mtu' is not given", f"{GOOD_MTU}", "add 'mtu' to the node or to 'common'"
        )
    elif port.mtu < MIN_MTU:
        yield finding("mtu-small", str(port), f"MTU {port.mtu}", f"{GOOD_MTU} (at least {MIN_MTU})", persist)
    elif port.roce_active_mtu is not None and port.roce_active_mtu != ROCE_MTU:
        check = f"check active_mtu in 'ibv_devinfo -d {port.rdma}'"
        again = f"the port's MTU is right: {check}; if it is still so, set the port down and up while nothing uses it"
        fix = again if port.mtu >= GOOD_MTU else f"{persist}; then {check}"
        yield finding(
            "mtu-small",
            str(port),
            f"RoCE active MTU {port.roce_active_mtu} although the MTU is {port.mtu}",
            f"{ROCE_MTU}",
            fix,
        )


def mtu_ends(by_place: Mapping[tuple[int, int, int], Port], cables: Sequence[Cable]) -> Iterator[Finding]:
    for cable in cables:
        for plane in (0, 1):
            a, b = by_place.get((*cable.a, plane)), by_place.get((*cable.b, plane))
            if a is None or b is None or a.mtu is None or b.mtu is None or a.mtu == b.mtu:
                continue
            low = a if a.mtu < b.mtu else b
            if low.mtu is not None and low.mtu < MIN_MTU:
                continue  # already reported as too small
            fix = f"on {low.host} 'ip link set dev {low.netdev} mtu {max(a.mtu, b.mtu)}', and the same in netplan"
            yield finding(
                "mtu-mismatch",
                f"{a} and {b}",
                f"MTU {a.mtu} at one end of the cable, {b.mtu} at the other",
                "equal MTUs",
                fix,
            )


def _gid(port: Port) -> Iterator[Finding]:
    if port.gids is None:
        if port.gid_index is None:
            fix = "add 'gid_index' or the 'gids' table ('roce-ring inventory' writes it)"
            yield finding("gid-missing", str(port), "no GID is given", f"a {ROCE_V2} GID for {port.ipv4}", fix)
        return
    right = matching_gid(port)
    if right is not None:
        if port.gid_index is not None and port.gid_index != right.index:
            seen = f"gid_index says {port.gid_index}, the table has the {ROCE_V2} IPv4 GID at {right.index}"
            yield finding(
                "gid-index-wrong",
                str(port),
                seen,
                f"gid_index {right.index}",
                "remove 'gid_index': the table is enough",
            )
        return
    mine = [row for row in port.gids if row.gid == ipv4_gid(port)]
    readd = f"stop RDMA programs on {port.host}, delete and re-add {port.ipv4} on {port.netdev}, and wait 10 s"
    if not mine:
        have = ", ".join(f"{row.index} {row.gid} ({row.type})" for row in port.gids) or "an empty table"
        yield finding(
            "gid-missing", str(port), f"{port.rdma} has no GID for {port.ipv4}, only {have}", ipv4_gid(port), readd
        )
    elif all(row.type != ROCE_V2 for row in mine):
        kinds = ", ".join(f"index {row.index} is {row.type}" for row in mine)
        yield finding("gid-wrong-type", str(port), f"the GID for {port.ipv4} exists, but {kinds}", ROCE_V2, readd)
    else:
        owner = next(row.netdev for row in mine if row.type == ROCE_V2)
        seen = f"the GID for {port.ipv4} belongs to netdev {owner or 'none'}"
        fix = f"hold {port.ipv4} on {port.netdev} only; then {readd}"
        yield finding("gid-wrong-netdev", str(port), seen, port.netdev, fix)


def _offload(port: Port) -> Iterator[Finding]:
    if port.hw_tc_offload is not True:
        seen = "hw-tc-offload is off" if port.hw_tc_offload is False else "'hw_tc_offload' is not given"
        fix = (
            f"'ethtool -K {port.netdev} hw-tc-offload on'; if ethtool shows 'off [fixed]' this function cannot forward"
        )
        yield finding("offload-off", str(port), seen, "on, because the ring forwards through this function", fix)


def steering(port: Port) -> Iterator[Finding]:
    if port.flow_steering_mode != "hmfs":
        seen = (
            f"flow_steering_mode is {port.flow_steering_mode}"
            if port.flow_steering_mode
            else "'flow_steering_mode' is not given"
        )
        command = f"devlink dev param set pci/{port.pci} name flow_steering_mode value hmfs cmode runtime"
        fix = f"'{command}' while nothing uses the function"
        yield finding(
            "steering-mode", str(port), seen, "hmfs (markers and relay rules are only known to work there)", fix
        )


def _hairpin(port: Port) -> Iterator[Finding]:
    size = port.hairpin_queue_size
    if size is None:
        fix = "add 'hairpin_queue_size' ('roce-ring inventory' reads the size in effect)"
        yield finding(
            "hairpin-unknown", str(port), "'hairpin_queue_size' is not given", "the queue size in effect", fix
        )
    elif size & (size - 1):
        yield finding(
            "bad-value", str(port), f"hairpin_queue_size {size}", f"a power of two up to {HAIRPIN_MAX}", "correct it"
        )
    elif port.hairpin_configured not in (None, size):
        seen = f"{port.hairpin_configured} is configured, {size} is in effect"
        fix = (
            f"'devlink dev reload pci/{port.pci} action driver_reinit' while nothing uses the function, then plan again"
        )
        yield finding("hairpin-pending", str(port), seen, "the configured size in effect", fix)


CHECKS: tuple[Callable[[Port], Iterator[Finding]], ...] = (_link, _mtu, _gid)
RELAY_CHECKS: tuple[Callable[[Port], Iterator[Finding]], ...] = (_offload, _hairpin)
