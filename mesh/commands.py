"""The exact commands that set a node up and take it down again, as argument lists (never a shell line)."""

from __future__ import annotations

import shlex
from collections.abc import Iterator

import msgspec

from .model import Hairpin, Hca, Mark, NodePlan, RelayRule

ROUTE_PROTOCOL = "82"  # marks our routes in 'ip route', so that only ours are ever taken back


class Step(msgspec.Struct, frozen=True):
    """One command (``argv``), or something the node agent holds itself (``argv`` empty), and why it is there."""

    argv: tuple[str, ...]
    why: str

    def __str__(self) -> str:
        return shlex.join(self.argv) if self.argv else f"# {self.why}"


def up(node: NodePlan) -> Iterator[Step]:
    """Links, hairpin queues, neighbours, routes, rules in this order; markers last, as they start forwarded traffic."""
    for hca in node.hcas:
        yield _link_up(hca)
    hairpins = {hairpin.pci: hairpin for hairpin in node.hairpins}
    for hca in node.hcas:  # one function at a time: each is down for seconds, with nothing running on it
        if hca.pci in hairpins and hairpins[hca.pci].seen != hairpins[hca.pci].wanted:
            yield from _resize(hca, hairpins[hca.pci])
    for near in node.neighbours:
        entry = f"{near.address} lladdr {near.mac} dev {near.device} nud permanent"
        yield _step(f"ip neigh add {entry}", "send frames for the far port to the next node")
    for route in node.routes:
        where = f"{route.destination}/32 dev {route.device}"
        yield _step(
            f"ip route add {where} src {route.source} scope link proto {ROUTE_PROTOCOL}", "leave by the planned port"
        )
    for device in node.clsact:
        yield _step(f"tc qdisc add dev {device} clsact", "a place for the relay rule")
    for rule in node.rules:
        yield Step((*_filter("add", rule), *_flower(rule)), f"pass tagged frames on to {rule.output}")
    for marker in node.markers:
        for mark in marker.marks:
            yield Step(
                (),
                f"marker on {marker.rdma} (needs a marker program, not in this version): {describe(mark)}",
            )


def _link_up(hca: Hca) -> Step:
    return _step(f"ip link set dev {hca.netdev} mtu {hca.mtu} up", "link up with the planned MTU")


def _resize(hca: Hca, hairpin: Hairpin) -> Iterator[Step]:
    target = f"pci/{hairpin.pci}"
    why = f"hairpin queue of {hairpin.seen} -> {hairpin.wanted} packets"
    yield _step(f"devlink dev param set {target} name hairpin_queue_size value {hairpin.wanted} cmode driverinit", why)
    yield _step(f"devlink dev reload {target} action driver_reinit", "put the queue size into effect")
    yield Step((), f"wait up to 60 s until {hca.netdev} is back; the reload took its MTU and address with it")
    yield _link_up(hca)
    yield _step(f"ip address replace {hca.address} dev {hca.netdev}", "the address the reload removed")


def down(node: NodePlan) -> Iterator[Step]:
    """The reverse: markers, rules, the qdiscs if nothing else uses them, neighbours, routes. Sizes and MTUs stay."""
    for marker in node.markers:
        yield Step((), f"stop the marker on {marker.rdma}")
    for rule in node.rules:
        yield Step((*_filter("del", rule), "flower"), "remove the relay rule")
    for device in node.clsact:
        yield Step((), f"only if 'tc filter show dev {device} ingress' and '... egress' list nothing:")
        yield _step(f"tc qdisc del dev {device} clsact", "remove the empty qdisc")
    for near in node.neighbours:
        yield _step(f"ip neigh del {near.address} dev {near.device}", "remove the neighbour entry")
    for route in node.routes:
        yield _step(
            f"ip route del {route.destination}/32 dev {route.device} proto {ROUTE_PROTOCOL}", "remove the route"
        )


def describe(mark: Mark) -> str:
    """A mark in words."""
    if mark.destination is None:
        return f"UDP source port {mark.udp_source_port} -> EtherType {mark.ethertype:#06x}"
    return f"destination {mark.destination} -> EtherType {mark.ethertype:#06x}"


def _filter(verb: str, rule: RelayRule) -> tuple[str, ...]:
    # tc reads a handle without 0x as decimal and prints it in hexadecimal; 0x both ways keeps them comparable.
    return tuple(
        f"tc filter {verb} dev {rule.device} ingress protocol {rule.ethertype:#06x} "
        f"pref {rule.preference} handle {rule.handle:#x}".split()
    )


def _flower(rule: RelayRule) -> Iterator[str]:
    yield from ("flower", "skip_sw")
    if rule.match_source_mac is not None:
        yield from ("src_mac", rule.match_source_mac)
    if rule.match_target_mac is not None:
        yield from ("dst_mac", rule.match_target_mac)
    kind = f"{rule.set_ethertype:#06x}"
    yield from ("action", "pedit", "ex", "munge", "eth", "type", "set", kind, "pipe")
    yield from ("action", "pedit", "ex", "munge", "eth", "dst", "set", rule.set_target_mac, "pipe")
    yield from ("action", "mirred", "egress", "redirect", "dev", rule.output)


def _step(command: str, why: str) -> Step:
    return Step(tuple(command.split()), why)  # every word is a checked name, address or number: no blanks inside
