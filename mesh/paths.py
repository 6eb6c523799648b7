"""The ways between every two ranks, from the ring's geometry alone."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from .ring import Ring


class Way(NamedTuple):
    """One way from the node at the lower ring position to the other, with the cages where it leaves and arrives."""

    plane: int
    ranks: tuple[int, ...]
    leaves: int
    arrives: int


def ways(ring: Ring, planes: Sequence[int]) -> Iterator[tuple[Way, ...]]:
    """For every pair of ranks its ways, in path order; both directions of a pair use the same ones.

    Neighbours use every plane of their cable (and of both cables, in a pair with two). The opposite of an even ring is
    reached on the first plane through the position after the lower one, on the second plane the other way round. Every
    other pair takes the short way on every plane.
    """
    size = len(ring.order)
    for low in range(size):
        for high in range(low + 1, size):
            yield tuple(_way(ring, low, high, plane, forward) for plane, forward in _choices(ring, high - low, planes))


def _choices(ring: Ring, distance: int, planes: Sequence[int]) -> list[tuple[int, bool]]:
    size = len(ring.order)
    if not ring.closed or 2 * distance < size:
        return [(plane, True) for plane in planes]
    if 2 * distance > size:
        return [(plane, False) for plane in planes]
    if size == 2:
        return [(plane, forward) for forward in (True, False) for plane in planes]
    return list(zip(planes, (True, False), strict=False))


def _way(ring: Ring, low: int, high: int, plane: int, forward: bool) -> Way:
    size = len(ring.order)
    places = range(low, high + 1) if forward else range(low, high - size - 1, -1)
    leaves, arrives = (ring.ahead[low], ring.back[high]) if forward else (ring.back[low], ring.ahead[high])
    assert leaves is not None and arrives is not None  # only a chain has None, and only outside its ends
    return Way(plane, tuple(ring.order[place % size] for place in places), leaves, arrives)
