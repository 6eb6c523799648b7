"""Find the smallest change of cables or addresses that turns a wrong wiring into a ring, by trying them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import combinations

from .cables import Plug
from .ring import derive

Change = tuple[str, tuple[Plug, ...]]  # what to tell the operator, and the plugs after it


def smallest_change(hosts: Sequence[str], plugs: Sequence[Plug], complete: bool) -> str | None:
    """The first change, cheapest kind first, after which the wiring is a ring (or a chain unless ``complete``).

    Among changes of one kind the one that leaves the fewest equal-numbered cables wins: port 0 to port 1 is the custom.
    If two are equally good both are named, as only the operator knows which end is right. None: no single change helps.
    """
    for kind in (_swap_ports_of_a_node, _swap_planes_of_a_cage, _move_one_port, _exchange_cable_ends, _exchange_ports):
        good: dict[int, list[str]] = {}
        for text, changed in kind(plugs):
            ring, cables, _ = derive(hosts, changed)
            if ring is not None and (ring.closed or not complete):
                good.setdefault(sum(cable.a[1] == cable.b[1] for cable in cables), []).append(text)
        if good:
            best = good[min(good)]
            return ", or else ".join(best) if len(best) == 2 else best[0]
    return None


def _exchange(plugs: Sequence[Plug], pairs: Iterable[tuple[Plug, Plug]]) -> tuple[Plug, ...]:
    networks = {}
    for a, b in pairs:
        networks[a], networks[b] = b.network, a.network
    return tuple(plug._replace(network=networks.get(plug, plug.network)) for plug in plugs)


def _swap_ports_of_a_node(plugs: Sequence[Plug]) -> Iterator[Change]:
    for a, b in combinations(plugs, 2):
        if a.rank == b.rank and a.plane == b.plane:
            yield f"on {a.host} swap the plane {a.plane} addresses of ports 0 and 1", _exchange(plugs, [(a, b)])


def _swap_planes_of_a_cage(plugs: Sequence[Plug]) -> Iterator[Change]:
    for a, b in combinations(plugs, 2):
        if a.cage == b.cage:
            yield f"on {a.host} swap the addresses of plane 0 and plane 1 of port {a.port}", _exchange(plugs, [(a, b)])


def _move_one_port(plugs: Sequence[Plug]) -> Iterator[Change]:
    """Put a port that is in the wrong subnet, or in none, into one where a port is alone."""
    members: dict[str, list[Plug]] = {}
    for plug in plugs:
        members.setdefault(plug.network, []).append(plug)
    lonely = [network for network, inside in members.items() if network and len(inside) == 1]
    for plug in plugs:
        inside = members[plug.network]
        if plug.network and len(inside) == 2 and len({p.rank for p in inside}) == 2:
            continue  # it has its partner
        for network in lonely:
            if network != plug.network:
                now = f"instead of the one in {plug.network}" if plug.network else "(it has none)"
                moved = tuple(p._replace(network=network) if p is plug else p for p in plugs)
                yield f"give {plug.label} a free address in {network} {now}", moved


def _exchange_cable_ends(plugs: Sequence[Plug]) -> Iterator[Change]:
    cages: dict[tuple[int, int], list[Plug]] = {}
    for plug in plugs:
        if plug.network:
            cages.setdefault(plug.cage, []).append(plug)
    for a, b in combinations(cages.values(), 2):
        if a[0].rank != b[0].rank and [p.plane for p in a] == [p.plane for p in b]:
            where = f"{a[0].host} port {a[0].port} and {b[0].host} port {b[0].port}"
            yield f"exchange the cable ends at {where}, or their addresses", _exchange(plugs, zip(a, b, strict=True))


def _exchange_ports(plugs: Sequence[Plug]) -> Iterator[Change]:
    for a, b in combinations(plugs, 2):
        if a.plane == b.plane and a.rank != b.rank and a.network != b.network:
            yield f"exchange the addresses' subnets of {a.label} and {b.label}", _exchange(plugs, [(a, b)])
