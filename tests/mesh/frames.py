"""A fabric that forwards frames by a plan's own rules, one node at a time, the way the cards would."""

from __future__ import annotations

from dataclasses import dataclass, replace

from mesh.model import Hca, Path, Plan

IPV4 = 0x0800


@dataclass(frozen=True)
class Frame:
    source_mac: str
    target_mac: str
    ethertype: int
    target_address: str


@dataclass(frozen=True)
class Arrival:
    """Where a frame's RDMA engine took it in, and the ranks that relayed it."""

    rank: int
    address: str
    relays: tuple[int, ...]


class Fabric:
    """Cables and every node's rules, looked up from the plan alone (its paths are not consulted)."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.far: dict[tuple[int, str], tuple[int, Hca]] = {}
        for cable in plan.cables:
            for plane in plan.planes:
                (a, near), (b, far) = ((end.rank, self._at(end.rank, plane, end.port)) for end in cable.ends)
                self.far[a, near.netdev], self.far[b, far.netdev] = (b, far), (a, near)

    def _at(self, rank: int, plane: int, port: int) -> Hca:
        return next(h for h in self.plan.nodes[rank].hcas if (h.plane, h.port) == (plane, port))

    def send(self, path: Path) -> Arrival:
        """Send one RDMA frame along ``path``: route, neighbour entry and marker at the source, then rule by rule."""
        node = self.plan.nodes[path.source]
        out = node.hcas[path.source_hca]
        routes = {route.destination: route for route in node.routes}
        if path.target_address in routes:
            assert routes[path.target_address].device == out.netdev, "the route leaves by another port"
            assert routes[path.target_address].source == out.address.split("/")[0]
            (near,) = (n for n in node.neighbours if n.address == path.target_address and n.device == out.netdev)
            mac = near.mac
        else:  # a neighbour in the same subnet answers ARP itself
            _, far = self.far[path.source, out.netdev]
            assert far.address.split("/")[0] == path.target_address, "no route to a port that is not cabled here"
            mac = far.mac
        frame = Frame(out.mac, mac, self._mark(path, out), path.target_address)
        return self._travel(frame, *self.far[path.source, out.netdev], ())

    def _mark(self, path: Path, out: Hca) -> int:
        """The EtherType the device's marker gives: exact destination before source port, none without a match."""
        sport = 0xC000 | (path.flow_label & 0x3FFF) if path.flow_label else None
        marks = [m for marker in self.plan.nodes[path.source].markers if marker.rdma == out.rdma for m in marker.marks]
        for mark in sorted(marks, key=lambda m: m.destination is None):
            if mark.destination == path.target_address or (mark.destination is None and mark.udp_source_port == sport):
                return mark.ethertype
        return IPV4

    def _travel(self, frame: Frame, rank: int, port: Hca, relays: tuple[int, ...]) -> Arrival:
        assert len(relays) < len(self.plan.hosts), "the frame runs in circles"
        assert frame.target_mac == port.mac, "the card drops a frame for another MAC"
        if frame.ethertype == IPV4:  # RoCE: the RDMA engine takes it, and knows only its own addresses
            assert frame.target_address == port.address.split("/")[0], "this RDMA engine has no such GID"
            return Arrival(rank, frame.target_address, relays)
        hits = [
            rule
            for rule in self.plan.nodes[rank].rules
            if rule.device == port.netdev
            and rule.ethertype == frame.ethertype
            and rule.match_source_mac in (None, frame.source_mac)
            and rule.match_target_mac in (None, frame.target_mac)
        ]
        assert len(hits) == 1, f"{len(hits)} rules match, a tagged frame needs exactly one"
        rule = hits[0]
        frame = replace(frame, ethertype=rule.set_ethertype, target_mac=rule.set_target_mac)
        return self._travel(frame, *self.far[rank, rule.output], (*relays, rank))
