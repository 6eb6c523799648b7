"""What a node plan consists of: each thing knows how it looks in the kernel, and the commands that make and remove it.

One list drives everything: the commands that are printed, what the agent makes and takes back, and what it watches.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping
from typing import Literal, NamedTuple

import msgspec

from .marker import PROGRAM, argv
from .model import Hca, Mark, Marker, Neighbour, NodePlan, RelayRule, Route
from .nodeplan import IPV4, SINGLE_BASE
from .snapshot import Filter, Snapshot

ROUTE_PROTOCOL = "82"  # marks our routes in 'ip route', so that only ours are ever taken back
ROCE_PORT = 4791  # UDP destination port of RoCE v2

Saved = Mapping[str, int | bool]  # what was there before, as far as it has to come back


class Step(msgspec.Struct, frozen=True):
    """One command and why it is there. ``detached``: a program that stays, and is ready once the thing is to be seen.
    ``netdev``, ``rdma``: no command, but the time (at most ``timeout_s``) until both devices are there."""

    argv: tuple[str, ...]
    why: str
    detached: bool = False
    netdev: str = ""
    rdma: str = ""
    timeout_s: float = 10

    def __str__(self) -> str:
        return shlex.join(self.argv) if self.argv else f"# {self.why}"


class Sight(NamedTuple):
    """How a thing was found: as planned, not there, or something else in its place (``seen`` says what)."""

    state: Literal["same", "absent", "other"]
    seen: str = ""
    code: str = "object-differs"


SAME, ABSENT = Sight("same"), Sight("absent")


class Thing(msgspec.Struct, frozen=True):
    """``key`` names it within its node, in words a user reads."""

    @property
    def key(self) -> str:
        raise NotImplementedError

    @property
    def device(self) -> str:
        """The netdev that has to be up for it, or nothing."""
        return ""

    def sight(self, now: Snapshot) -> Sight:
        raise NotImplementedError

    def make(self) -> Iterator[Step]:
        raise NotImplementedError

    def unmake(self, saved: Saved) -> Iterator[Step]:
        """Take it back; ``saved`` is what :meth:`save` said before it was made."""
        raise NotImplementedError

    def save(self, now: Snapshot) -> Saved:
        return {}

    def interrupts(self, now: Snapshot) -> bool:
        """Making it now would break queue pairs that run, or undo what somebody did on purpose."""
        return False

    def in_use(self, now: Snapshot) -> str:
        """Why it may not be taken back yet, or nothing."""
        return ""

    def packets(self, now: Snapshot) -> tuple[int, int] | None:
        """(packets, bytes) that it counted, if it counts."""
        return None


class LinkUp(Thing, frozen=True):
    """The port is up, with its planned MTU."""

    hca: Hca

    @property
    def key(self) -> str:
        return f"link {self.hca.netdev} mtu {self.hca.mtu}"

    def sight(self, now: Snapshot) -> Sight:
        link = now.links.get(self.hca.netdev)
        if link is None:
            return Sight("other", "there is no such netdev", "device-missing")
        return SAME if link.up and link.mtu == self.hca.mtu else ABSENT

    def make(self) -> Iterator[Step]:
        yield step(f"ip link set dev {self.hca.netdev} mtu {self.hca.mtu} up", "link up with the planned MTU")

    def save(self, now: Snapshot) -> Saved:
        link = now.links[self.hca.netdev]
        return {"mtu": link.mtu, "up": link.up}

    def unmake(self, saved: Saved) -> Iterator[Step]:
        if not saved:
            return
        state = "up" if saved["up"] else "down"
        yield step(f"ip link set dev {self.hca.netdev} mtu {saved['mtu']} {state}", "the MTU it had before")

    def interrupts(self, now: Snapshot) -> bool:
        return True


class Queue(Thing, frozen=True):
    """The hairpin queue of one function has its planned size, in effect and not only configured."""

    hca: Hca
    seen: int  # when planned, in packets
    wanted: int

    @property
    def key(self) -> str:
        return f"hairpin queue {self.hca.pci} {self.wanted}"

    def sight(self, now: Snapshot) -> Sight:
        # looked at only where somebody asks: it changes with a reload or a new boot, and asking takes long
        return SAME if now.hairpins.get(self.hca.pci, self.wanted) == self.wanted else ABSENT

    def make(self) -> Iterator[Step]:
        target = f"pci/{self.hca.pci}"
        why = f"hairpin queue of {self.seen} -> {self.wanted} packets"
        yield step(f"devlink dev param set {target} name hairpin_queue_size value {self.wanted} cmode driverinit", why)
        reload = step(f"devlink dev reload {target} action driver_reinit", "put the queue size into effect")
        yield msgspec.structs.replace(reload, timeout_s=60)
        back = f"{self.hca.netdev} and {self.hca.rdma} are back"
        why = f"wait up to 60 s until {back}; the reload took MTU and address with it"
        yield Step((), why, netdev=self.hca.netdev, rdma=self.hca.rdma, timeout_s=60)
        yield from self.restore()

    def restore(self) -> Iterator[Step]:
        """What a reload takes away."""
        yield from LinkUp(self.hca).make()
        yield step(f"ip address replace {self.hca.address} dev {self.hca.netdev}", "the address the reload removed")

    def unmake(self, saved: Saved) -> Iterator[Step]:
        """A size stays until the next boot: taking it back would be one more reload, and helps nobody."""
        yield from ()

    def interrupts(self, now: Snapshot) -> bool:
        return True


class Address(Thing, frozen=True):
    """The port's own address, which its RoCE GID comes from."""

    hca: Hca

    @property
    def key(self) -> str:
        return f"address {self.hca.address} dev {self.hca.netdev}"

    @property
    def device(self) -> str:
        return self.hca.netdev

    def sight(self, now: Snapshot) -> Sight:
        holders = [name for name, link in now.links.items() if self.hca.address in link.addresses]
        if not holders:
            return ABSENT
        return SAME if holders == [self.hca.netdev] else Sight("other", f"it is on {' and '.join(holders)}")

    def make(self) -> Iterator[Step]:
        yield step(f"ip address add {self.hca.address} dev {self.hca.netdev}", "the port's own address")

    def unmake(self, saved: Saved) -> Iterator[Step]:
        yield step(f"ip address del {self.hca.address} dev {self.hca.netdev}", "remove the address")


class PermanentNeighbour(Thing, frozen=True):
    """Frames for the far port's address go to the next node's MAC."""

    near: Neighbour

    @property
    def key(self) -> str:
        return f"neighbour {self.near.address} dev {self.near.device}"

    @property
    def device(self) -> str:
        return self.near.device

    def sight(self, now: Snapshot) -> Sight:
        mac, permanent = now.neighbours.get((self.near.address, self.near.device), ("", False))
        if not permanent:
            return ABSENT  # what the kernel learnt or failed to learn by itself may be replaced
        return SAME if mac == self.near.mac else Sight("other", f"a permanent entry with {mac}")

    def make(self) -> Iterator[Step]:
        entry = f"{self.near.address} lladdr {self.near.mac} dev {self.near.device} nud permanent"
        yield step(f"ip neigh replace {entry}", "send frames for the far port to the next node")

    def unmake(self, saved: Saved) -> Iterator[Step]:
        yield step(f"ip neigh del {self.near.address} dev {self.near.device}", "remove the neighbour entry")


class HostRoute(Thing, frozen=True):
    """The far port is reached through the planned port."""

    route: Route

    @property
    def key(self) -> str:
        return f"route {self.route.destination} dev {self.route.device}"

    @property
    def device(self) -> str:
        return self.route.device

    def sight(self, now: Snapshot) -> Sight:
        there = now.routes.get(self.route.destination, ())
        for found in there:
            if (found.device, found.source, found.scope, found.protocol, found.gateway) == (
                *(self.route.device, self.route.source, "link", ROUTE_PROTOCOL),
                "",
            ):
                return SAME
        if not there:
            return ABSENT
        via = f" via {there[0].gateway}" if there[0].gateway else ""
        return Sight("other", f"a route{via} dev {there[0].device} proto {there[0].protocol}")

    def make(self) -> Iterator[Step]:
        where = f"{self.route.destination}/32 dev {self.route.device}"
        yield step(
            f"ip route add {where} src {self.route.source} scope link proto {ROUTE_PROTOCOL}",
            "leave by the planned port",
        )

    def unmake(self, saved: Saved) -> Iterator[Step]:
        where = f"{self.route.destination}/32 dev {self.route.device}"
        yield step(f"ip route del {where} proto {ROUTE_PROTOCOL}", "remove the route")


class Clsact(Thing, frozen=True):
    """The qdisc that filters hang on."""

    device: str

    @property
    def key(self) -> str:
        return f"qdisc clsact dev {self.device}"

    def sight(self, now: Snapshot) -> Sight:
        if self.device in now.ingress:
            return Sight("other", "an ingress qdisc, which takes the place of clsact")
        return SAME if self.device in now.clsact else ABSENT

    def make(self) -> Iterator[Step]:
        yield step(f"tc qdisc add dev {self.device} clsact", "a place for the relay rule")

    def unmake(self, saved: Saved) -> Iterator[Step]:
        yield step(f"tc qdisc del dev {self.device} clsact", "remove the empty qdisc")

    def in_use(self, now: Snapshot) -> str:
        left = sum(len(now.filters.get((self.device, hook), ())) for hook in ("ingress", "egress"))
        return f"{left} filter(s) of somebody else hang on it" if left else ""


class Rule(Thing, frozen=True):
    """A relay rule. ``hardware``: it must be in the card (skip_sw), else software forwards."""

    rule: RelayRule
    hardware: bool

    @property
    def key(self) -> str:
        return f"rule {self.rule.ethertype:#06x} pref {self.rule.preference} dev {self.rule.device}"

    @property
    def device(self) -> str:
        return self.rule.device

    def sight(self, now: Snapshot) -> Sight:
        match = {"src_mac": self.rule.match_source_mac, "dst_mac": self.rule.match_target_mac}
        rewrite = {**_ethertype_bytes(self.rule.set_ethertype), **_target_bytes(self.rule.set_target_mac)}
        place = _place(now, self.rule.device, "ingress", self.rule.preference)
        if not isinstance(place, Filter):
            return place
        wanted = {name: mac for name, mac in match.items() if mac is not None}
        kind = self.rule.ethertype, self.rule.handle
        differs = _difference(place, kind, wanted, rewrite, f"egress {self.rule.output}")
        if differs:
            return Sight("other", differs)
        if self.hardware and not (place.skip_sw and place.in_hw):
            return Sight("other", "the rule is there, but not in hardware", "rule-not-in-hardware")
        return SAME

    def make(self) -> Iterator[Step]:
        yield Step((*self._filter("add"), *self._flower()), f"pass tagged frames on to {self.rule.output}")

    def unmake(self, saved: Saved) -> Iterator[Step]:
        yield Step((*self._filter("del"), "flower"), "remove the relay rule")

    def packets(self, now: Snapshot) -> tuple[int, int] | None:
        place = _place(now, self.rule.device, "ingress", self.rule.preference)
        return (place.packets, place.bytes) if isinstance(place, Filter) else None

    def _filter(self, verb: str) -> tuple[str, ...]:
        where = f"dev {self.rule.device} ingress protocol {self.rule.ethertype:#06x}"
        return _filter(verb, where, self.rule.preference, self.rule.handle)

    def _flower(self) -> Iterator[str]:
        yield "flower"
        if self.hardware:
            yield "skip_sw"
        if self.rule.match_source_mac is not None:
            yield from ("src_mac", self.rule.match_source_mac)
        if self.rule.match_target_mac is not None:
            yield from ("dst_mac", self.rule.match_target_mac)
        yield from _set_ethertype(self.rule.set_ethertype)
        yield from ("pipe", "action", "pedit", "ex", "munge", "eth", "dst", "set", self.rule.set_target_mac, "pipe")
        yield from ("action", "mirred", "egress", "redirect", "dev", self.rule.output)


class SoftMark(Thing, frozen=True):
    """Outgoing RoCE frames get their EtherType from a tc rule, where no card can do it (Soft-RoCE)."""

    device: str
    mark: Mark
    ordinal: int

    @property
    def key(self) -> str:
        return f"mark {describe(self.mark)} dev {self.device}"

    def sight(self, now: Snapshot) -> Sight:
        place = _place(now, self.device, "egress", self._preference)
        if not isinstance(place, Filter):
            return place
        kind = IPV4, self._preference
        differs = _difference(place, kind, self._match(), _ethertype_bytes(self.mark.ethertype), "")
        return Sight("other", differs) if differs else SAME

    def make(self) -> Iterator[Step]:
        words = [word for pair in self._match().items() for word in pair]
        argv = (*self._filter("add"), "flower", *words, *_set_ethertype(self.mark.ethertype))
        yield Step(argv, f"mark RoCE frames: {describe(self.mark)}")

    def unmake(self, saved: Saved) -> Iterator[Step]:
        yield Step((*self._filter("del"), "flower"), "stop marking")

    def packets(self, now: Snapshot) -> tuple[int, int] | None:
        place = _place(now, self.device, "egress", self._preference)
        return (place.packets, place.bytes) if isinstance(place, Filter) else None

    @property
    def _preference(self) -> int:
        return SINGLE_BASE + self.ordinal

    def _match(self) -> dict[str, str]:
        which = (
            {"src_port": str(self.mark.udp_source_port)}
            if self.mark.destination is None
            else {"dst_ip": self.mark.destination}
        )
        return {"ip_proto": "udp", "dst_port": str(ROCE_PORT), **which}

    def _filter(self, verb: str) -> tuple[str, ...]:
        return _filter(verb, f"dev {self.device} egress protocol ip", self._preference, self._preference)


class MarkerProgram(Thing, frozen=True):
    """The card marks outgoing frames for as long as this program runs."""

    marker: Marker

    @property
    def key(self) -> str:
        return f"marker {self.marker.rdma}"

    def sight(self, now: Snapshot) -> Sight:
        if self.marker.rdma not in now.marked:
            return ABSENT
        held = now.marked[self.marker.rdma]
        if set(held) == set(self.marker.marks):  # their order has no meaning
            return SAME
        return Sight("other", "a marker that holds " + ("; ".join(map(describe, held)) or "nothing yet"))

    def make(self) -> Iterator[Step]:
        yield Step(tuple(argv(self.marker)), "; ".join(map(describe, self.marker.marks)), detached=True)

    def unmake(self, saved: Saved) -> Iterator[Step]:
        yield Step((PROGRAM, "--device", self.marker.rdma, "--stop"), f"stop the marker on {self.marker.rdma}")


def in_hardware(node: NodePlan) -> tuple[Thing, ...]:
    """Everything a node of ConnectX-7 cards sets up, in order; markers last, as they start forwarded traffic."""
    queues = {hairpin.pci: hairpin for hairpin in node.hairpins}
    return (
        *map(LinkUp, node.hcas),
        # one function at a time: each is down for seconds, with nothing running on it
        *(Queue(hca, queues[hca.pci].seen, queues[hca.pci].wanted) for hca in node.hcas if hca.pci in queues),
        *_reach(node),
        *map(Clsact, node.clsact),
        *(Rule(rule, hardware=True) for rule in node.rules),
        *map(MarkerProgram, node.markers),
    )


def in_software(node: NodePlan) -> tuple[Thing, ...]:
    """The same for Soft-RoCE: the kernel forwards what the rules match, and marks at egress what a card would."""
    netdevs = {hca.rdma: hca.netdev for hca in node.hcas}
    marks = [
        (netdevs[marker.rdma], number, mark) for marker in node.markers for number, mark in enumerate(marker.marks)
    ]
    return (
        *map(LinkUp, node.hcas),
        *_reach(node),
        *map(Clsact, dict.fromkeys((*node.clsact, *(device for device, _, _ in marks)))),
        *(Rule(rule, hardware=False) for rule in node.rules),
        *(SoftMark(device, mark, number) for device, number, mark in marks),
    )


def _reach(node: NodePlan) -> Iterator[Thing]:
    yield from map(Address, node.hcas)
    yield from map(PermanentNeighbour, node.neighbours)
    yield from map(HostRoute, node.routes)


def describe(mark: Mark) -> str:
    """A mark in words."""
    if mark.destination is None:
        return f"UDP source port {mark.udp_source_port} -> EtherType {mark.ethertype:#06x}"
    return f"destination {mark.destination} -> EtherType {mark.ethertype:#06x}"


def step(command: str, why: str) -> Step:
    return Step(tuple(command.split()), why)  # every word is a checked name, address or number: no blanks inside


def _filter(verb: str, where: str, preference: int, handle: int) -> tuple[str, ...]:
    # tc reads a handle without 0x as decimal and prints it in hexadecimal; 0x both ways keeps them comparable.
    return tuple(f"tc filter {verb} {where} pref {preference} handle {handle:#x}".split())


def _set_ethertype(ethertype: int) -> tuple[str, ...]:
    return ("action", "pedit", "ex", "munge", "eth", "type", "set", f"{ethertype:#06x}")


def _place(now: Snapshot, device: str, hook: str, preference: int) -> Filter | Sight:
    """The filter at our preference, or what the place looks like without it."""
    here = [item for item in now.filters.get((device, hook), ()) if item.preference == preference]
    if len(here) == 1:
        return here[0]
    if here:
        return Sight("other", f"{len(here)} filters at preference {preference}")
    return ABSENT


def _difference(
    found: Filter, kind: tuple[int, int], match: dict[str, str], rewrite: dict[int, int], output: str
) -> str:
    """What is not as wanted about a filter in our place, or nothing. ``kind``: EtherType and handle."""
    if found.kind != "flower":
        return f"a {found.kind} filter"
    if (found.ethertype, found.handle) != kind:
        return f"a rule for EtherType {found.ethertype:#06x} with handle {found.handle:#x}"
    if found.match != match:
        return f"a rule that matches {found.match or 'everything'}"
    if found.rewrite != rewrite or found.output != output or found.other:
        return "a rule with other actions"
    return ""


def _ethertype_bytes(ethertype: int) -> dict[int, int]:
    return dict(enumerate(ethertype.to_bytes(2, "big"), start=12))  # where an Ethernet frame has its type


def _target_bytes(mac: str) -> dict[int, int]:
    return dict(enumerate(bytes.fromhex(mac.replace(":", "")), start=0))  # a frame begins with its target
