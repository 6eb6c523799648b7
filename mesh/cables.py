"""Which ports are cabled together, told from their subnets and never from their names.

One subnet per cable and plane holds exactly the two ports at the cable's ends. One cable carries every plane in use,
so both planes of a cage must lead to the same far cage.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from .finding import Finding, finding

Cage = tuple[int, int]  # (rank, port number of the cage)


class Plug(NamedTuple):
    """One function: where it sits and which subnet it is in (empty: it has no address)."""

    rank: int
    port: int
    plane: int
    network: str
    label: str
    host: str

    @property
    def cage(self) -> Cage:
        return self.rank, self.port


class Cable(NamedTuple):
    """A cable between two cages; ``networks`` has one subnet per plane in use, in plane order."""

    a: Cage
    b: Cage
    networks: tuple[str, ...]


def find_cables(plugs: Iterable[Plug]) -> tuple[tuple[Cable, ...], tuple[Finding, ...]]:
    """The cables that the subnets describe, and a finding for every subnet or cage that makes no sense."""
    groups: dict[str, list[Plug]] = defaultdict(list)
    for plug in plugs:
        if plug.network:
            groups[plug.network].append(plug)
    problems: list[Finding] = []
    links: list[tuple[Plug, Plug]] = []
    for network, members in groups.items():
        found = tuple(_subnet_problems(network, members))
        problems += found
        if not found:
            links.append((members[0], members[1]))
    if not problems:  # planes can only be compared once every subnet is a link
        problems = list(_plane_problems(links))
    return (() if problems else _join_planes(links)), tuple(problems)


def _subnet_problems(network: str, members: list[Plug]) -> Iterator[Finding]:
    names = " and ".join(plug.label for plug in members)
    if len(members) == 1:
        seen = f"it is alone in subnet {network}"
        fix = "address the port at the cable's other end in that subnet, or remove this address if no cable is there"
        yield finding("port-alone", names, seen, "one port of another node in the same subnet", fix)
        return
    for host in sorted({plug.host for plug in members}):
        own = [plug.label for plug in members if plug.host == host]
        if len(own) > 1:
            seen = f"{len(own)} functions of {host} share subnet {network}"
            fix = "give each the subnet of its own cable (two functions of one node never face each other)"
            yield finding("same-node-subnet", " and ".join(own), seen, "at most one port of each node in a subnet", fix)
    if len(members) > 2:
        seen, expected = f"{len(members)} ports share subnet {network}", "two, the ends of one cable"
        fix = "keep the two ends of one cable there and give the others their own cable's subnet"
        yield finding("subnet-crowded", names, seen, expected, fix)
        return
    a, b = members
    if a.plane != b.plane:
        seen = f"plane {a.plane} shares subnet {network} with plane {b.plane}"
        fix = f"swap the two planes' addresses of port {b.port} on {b.host}"
        yield finding("crossed-planes", names, seen, "the same plane at both ends of a cable", fix)


def _plane_problems(links: list[tuple[Plug, Plug]]) -> Iterator[Finding]:
    far: dict[Cage, dict[int, tuple[Plug, Plug]]] = defaultdict(dict)
    for a, b in links:
        far[a.cage][a.plane] = (a, b)
        far[b.cage][b.plane] = (b, a)
    planes = sorted({a.plane for a, _ in links})
    for by_plane in far.values():
        near, first = next(iter(by_plane.values()))
        where = f"{near.host} port {near.port}"
        missing = [plane for plane in planes if plane not in by_plane]
        if missing:
            seen = f"{near.label} leads to {first.label}, plane {missing[0]} leads nowhere"
            fix = f"give plane {missing[0]} an address at both ends of that cable, or use one plane only on every node"
            yield finding("planes-disagree", where, seen, "every plane in use on every cable", fix)
        elif len({b.cage for _, b in by_plane.values()}) > 1:
            ends = [f"{a.label} leads to {b.label}" for _, (a, b) in sorted(by_plane.items())]
            code, fix = "planes-disagree", "correct the addresses of the plane that contradicts the cable"
            odd = [(a, b) for a, b in by_plane.values() if a.port == b.port]
            if len({b.rank for _, b in by_plane.values()}) == 1 and len(odd) == 1:
                code = "same-index-cable"
                a, b = odd[0]
                fix = (
                    f"on {b.host} swap the plane {b.plane} addresses of ports 0 and 1, if plane {1 - b.plane} is right"
                )
            yield finding(code, where, ", ".join(ends), "both planes of one cage on one cable", fix)


def _join_planes(links: list[tuple[Plug, Plug]]) -> tuple[Cable, ...]:
    networks: dict[tuple[Cage, Cage], dict[int, str]] = defaultdict(dict)
    for a, b in links:
        low, high = sorted((a.cage, b.cage))
        networks[low, high][a.plane] = a.network
    return tuple(
        Cable(low, high, tuple(name for _, name in sorted(by_plane.items())))
        for (low, high), by_plane in sorted(networks.items())
    )
