"""Find the smallest change of cables or addresses that turns a wrong wiring into a ring, by trying them."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import combinations

from .cables import Cage, Plug
from .ring import derive

Change = tuple[str, tuple[Plug, ...]]  # what to tell the operator, and the plugs after it
Kind = Callable[[Sequence[Plug]], Iterator[Change]]
MOST_CHANGES = 3  # somebody with more mistakes than this had better look at the cabling plan again


def smallest_changes(hosts: Sequence[str], plugs: Sequence[Plug], complete: bool) -> tuple[str, ...]:
    """Changes, cheapest kind first, after which the wiring is a ring (or a chain unless ``complete``); () if not found.

    One change if one is enough, else the one that leaves the least disorder and then the next.
    """
    texts: list[str] = []
    for _ in range(MOST_CHANGES):
        last = _last_change(hosts, plugs, complete)
        if last is not None:
            return (*texts, last)
        step = min(_candidates(plugs), key=lambda change: _disorder(change[1]), default=None)
        if step is None or _disorder(step[1]) >= _disorder(plugs):
            return ()
        texts.append(step[0])
        plugs = step[1]
    return ()


def _last_change(hosts: Sequence[str], plugs: Sequence[Plug], complete: bool) -> str | None:
    """The one change that mends everything.

    Among several the one that leaves the fewest equal-numbered cables wins: port 0 to port 1 is the custom. If two are
    equally good both are named, as only the operator knows which end is right.
    """
    for kind in _kinds(plugs):
        good: dict[int, list[str]] = defaultdict(list)
        for text, changed in kind(plugs):
            if _disorder(changed):
                continue
            ring, cables, _ = derive(hosts, changed)
            if ring is not None and (ring.closed or not complete):
                good[sum(cable.a[1] == cable.b[1] for cable in cables)].append(text)
        if good:
            best = good[min(good)]
            return ", or else ".join(best) if len(best) == 2 else best[0]
    return None


def _kinds(plugs: Sequence[Plug]) -> tuple[Kind, ...]:
    """Kinds of change worth trying: exchanges keep the number of ports per subnet, so a wrong number needs a move."""
    if all(len(members) == 2 for members in _subnets(plugs).values()):
        return _swap_ports_of_a_node, _swap_planes_of_a_cage, _exchange_cable_ends, _exchange_ports
    return (_move_one_port,)


def _candidates(plugs: Sequence[Plug]) -> Iterator[Change]:
    for kind in _kinds(plugs):
        yield from kind(plugs)


def _subnets(plugs: Sequence[Plug]) -> dict[str, list[Plug]]:
    subnets: dict[str, list[Plug]] = defaultdict(list)
    for plug in plugs:
        if plug.network:
            subnets[plug.network].append(plug)
    return subnets


def _disorder(plugs: Sequence[Plug]) -> int:
    """How far the wiring is from making sense: ports too many or too few, impossible links, cages with two far ends."""
    disorder = 0
    far: dict[Cage, set[Cage]] = defaultdict(set)
    for members in _subnets(plugs).values():
        if len(members) != 2:
            disorder += abs(len(members) - 2)
            continue
        a, b = members
        if a.rank == b.rank or a.plane != b.plane:
            disorder += 1
        else:
            far[a.rank, a.port].add((b.rank, b.port))
            far[b.rank, b.port].add((a.rank, a.port))
    return disorder + sum(len(ends) - 1 for ends in far.values())


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
    subnets = _subnets(plugs)
    lonely = [network for network, members in subnets.items() if len(members) == 1]
    for plug in plugs:
        members = subnets.get(plug.network, [])
        if len(members) == 2 and members[0].rank != members[1].rank:
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
