"""Checks of what carries forwarded frames: routes, neighbours, rules, marks, and that the kernel keeps out of it."""

from __future__ import annotations

import ipaddress
import re

from ..nodeplan import SINGLE_BASE
from ..things import (
    ROUTE_PROTOCOL,
    Address,
    HostRoute,
    MarkerProgram,
    PermanentNeighbour,
    Rule,
    SoftMark,
    in_hardware,
    in_software,
)
from .view import Found, View

# What a plan sets up for forwarding. A qdisc is not asked for: no rule is there without it. Links and hairpin queues
# have checks of their own.
_FORWARDING = (HostRoute, MarkerProgram, PermanentNeighbour, Rule, SoftMark)
# Counters that only move when frames were lost; the last four are Soft-RoCE's.
_DROPS = ("rx_out_of_buffer", "out_of_buffer")  # of the netdev (hairpin queues too), of RDMA receives
_RESENT = (
    *("out_of_sequence", "packet_seq_err", "local_ack_timeout_err"),
    *("out_of_seq_request", "rcvd_seq_err", "completer_retry_err", "retry_exceeded_err"),
)


def objects(view: View) -> Found:
    """Everything the plan sets up, as `roce-ring up` makes it."""
    planned = (in_software if view.soft else in_hardware)(view.planned)
    unseen = (MarkerProgram,) if "markers" in view.node.unknown else ()
    mine = [
        (thing, thing.sight(view.now))
        for thing in planned
        if isinstance(thing, (Address, *_FORWARDING)) and not isinstance(thing, unseen)
    ]
    forwarding = [sight.state for thing, sight in mine if isinstance(thing, _FORWARDING)]
    nothing = bool(forwarding) and set(forwarding) == {"absent"}
    if nothing:
        seen = f"none of the plan's {len(forwarding)} routes, neighbours, rules and marks is there"
        fix = "'roce-ring up' sets the plan up; after a reboot or a driver reload it has to be set up again"
        yield view.find("plan-not-applied", "", seen, "the plan set up", fix)
    for thing, sight in mine:
        if sight.state == "absent" and not (nothing and isinstance(thing, _FORWARDING)):
            fix = "'roce-ring up' adds what is missing (a link that went down took its routes and neighbours with it)"
            yield view.find("object-missing", thing.key, "it is not there", "as planned", fix)
        elif sight.code == "rule-not-in-hardware":
            fix = "see that hw-tc-offload is on and flow_steering_mode hmfs on both ports, then 'roce-ring up'"
            yield view.find(sight.code, thing.key, "tc does not say in_hw", "in_hw, with skip_sw", fix)
        elif sight.state == "other":
            fix = "remove what is in its place if nothing else needs it, then 'roce-ring up'"
            yield view.find("object-differs", thing.key, f"in its place is {sight.seen}", "as planned", fix)
    if not view.soft and view.planned.markers:
        view.need("markers")


def strays(view: View) -> Found:
    """What an older plan or another program left on the ports."""
    part, now = view.planned, view.now
    places = {(rule.device, "ingress", rule.preference) for rule in part.rules}
    if view.soft:
        marks = {
            hca.netdev: len(marker.marks) for marker in part.markers for hca in part.hcas if hca.rdma == marker.rdma
        }
        places |= {(netdev, "egress", SINGLE_BASE + at) for netdev, count in marks.items() for at in range(count)}
    for (device, hook), filters in now.filters.items():
        for item in filters:
            if device in view.fabric and (device, hook, item.preference) not in places:
                seen = f"a tc {item.kind} filter at {hook}, preference {item.preference}, that is not in the plan"
                fix = f"'tc filter del dev {device} {hook} pref {item.preference}' if nothing else needs it"
                yield view.find("object-foreign", device, seen, "the plan's filters only", fix)
    planned = {route.destination for route in part.routes}
    for destination, routes in now.routes.items():
        for route in routes:
            if route.protocol == ROUTE_PROTOCOL and destination not in planned:
                seen = f"a route of ours to {destination} that is not in the plan"
                fix = f"'ip route del {destination} dev {route.device} proto {ROUTE_PROTOCOL}'"
                yield view.find("object-foreign", route.device, seen, "the plan's routes only", fix)
    near = {(item.address, item.device) for item in part.neighbours}
    for (address, device), (mac, permanent) in now.neighbours.items():
        if permanent and device in view.fabric and (address, device) not in near:
            seen = f"a permanent neighbour {address} ({mac}) that is not in the plan"
            fix = f"'ip neigh del {address} dev {device}'"
            yield view.find("object-foreign", device, seen, "the plan's neighbours only", fix)


def kernel(view: View) -> Found:
    """Forwarded RDMA frames never pass the kernel; if its counter moves, they go a slow way or are somebody else's."""
    if not view.planned.rules:
        return
    view.need("forwarded", "growth")
    grown = view.node.forwarded_growth or 0
    if grown and view.node.others_forward:
        names = ", ".join(view.node.others_forward[:3])
        view.unknown(f"the kernel forwarded {grown} datagrams, but this host also forwards for {names}")
    if grown:
        seen = f"the kernel forwarded {grown} datagrams in {view.node.interval_s:g} s"
        fix = "look for routes to far ports that name a gateway ('ip route'), and for marks or rules that are missing"
        yield view.find("kernel-forwards", "", seen, "none: the card forwards", fix)


def routed(view: View) -> Found:
    """A ring over which NCCL is routed by the kernel: every node must forward, both ways."""
    fabric = set(view.fabric)
    if not any(route.gateway and route.device in fabric for routes in view.now.routes.values() for route in routes):
        return
    if view.node.ip_forward is False:
        fix = "'sysctl -w net.ipv4.ip_forward=1', and the same in /etc/sysctl.d"
        yield view.find("ip-forward-off", "", "ports have routes with a gateway, ip_forward is 0", "1", fix)
    closed = [] if "-P FORWARD DROP" not in view.node.firewall else list(_closed(view))
    if closed:
        a, b = closed[0]
        fix = (
            f"'iptables -I DOCKER-USER -i {a} -o {b} -j ACCEPT', each way, kept over reboots; the cable is not to blame"
        )
        seen = "the FORWARD policy is DROP, and nothing accepts " + ", ".join(f"{a} -> {b}" for a, b in closed)
        yield view.find("forward-dropped", "", seen, "both directions accepted", fix)
    view.need("firewall")


def _closed(view: View) -> list[tuple[str, str]]:
    names = view.fabric
    rules = [line for line in view.node.firewall if "-j ACCEPT" in line and "state" not in line]
    planes = {item.netdev: hca.plane if (hca := view.hca(item)) else item.plane for item in view.functions}
    pairs = [(a, b) for a in names for b in names if a != b and planes[a] == planes[b]]
    return [(a, b) for a, b in pairs if not any(_named(rule, "-i", a) and _named(rule, "-o", b) for rule in rules)]


def _named(rule: str, option: str, netdev: str) -> bool:
    """Whether a rule covers a netdev: it names it, or none. Addresses in rules are taken to be the ring's."""
    given = re.search(rf"(!\s*)?{option} (\S+)", rule)
    if given is None:
        return True
    matches = netdev.startswith(given[2][:-1]) if given[2].endswith("+") else netdev == given[2]
    return matches != bool(given[1])


def default_route(view: View) -> Found:
    for route in view.now.routes.get("default", ()):
        if route.device in view.fabric:
            fix = f"'ip route del default dev {route.device}', and no gateway for it in netplan"
            seen = f"the default route leaves by {route.device}, which leads to one node only"
            yield view.find("default-route", route.device, seen, "the management network", fix)
    address = view.node.ssh_address
    if address and any(ipaddress.IPv4Interface(own).ip == _ip(address) for item in view.functions for own in item.ipv4):
        fix = "log in over the management network: a driver reload cuts this session"
        yield view.find(
            "admin-on-fabric", "", f"this ssh session came in over {address}, a port of the ring", "management", fix
        )


def _ip(text: str) -> ipaddress.IPv4Address | None:
    try:
        return ipaddress.IPv4Address(text)
    except ValueError:
        return None


def counters(view: View) -> Found:
    for item in view.functions:
        drops = {name: item.growth[name] for name in _DROPS if item.growth.get(name, 0) > 0}
        resent = {name: item.growth[name] for name in _RESENT if item.growth.get(name, 0) > 0}
        if drops:
            fix = "lower the size cap or the forward window, or set the hairpin queues of the relays to 8192"
            yield view.find("rdma-errors", item.rdma, _grown(view, drops), "no growth", fix)
        if resent:
            fix = "look for drops on the way; else reseat the cable, and reboot both ends if a bandwidth test is slow"
            yield view.find("rdma-errors", item.rdma, _grown(view, resent), "no growth", fix)
    view.need("counters", "growth", "drops")


def _grown(view: View, values: dict[str, int]) -> str:
    return ", ".join(f"{name} +{value}" for name, value in values.items()) + f" in {view.node.interval_s:g} s"
