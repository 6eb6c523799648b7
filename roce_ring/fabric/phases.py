"""In which order GPUs stand on a ring, so that phases suit the switches above them.

In phase p of a phased mode position i sends to position i + 1 + p. One destination a GPU is not enough where GPUs share
an uplink: on a published host, writes of one switch to two host bridges at a time fell from 52 to 6 or 7 GB/s a pair.
So uplinks are scheduled first: they take turns along the ring, and every shift then leads from one uplink to one other.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence


def dealt(uplinks: Sequence[Hashable]) -> tuple[int, ...]:
    """`uplinks[r]`: what leads up from rank r's GPU. The rank at each position: each uplink's ranks as far apart as
    they can be. Where all uplinks have as many, no phase has a conflict."""
    members: dict[Hashable, list[int]] = {}
    for rank, uplink in enumerate(uplinks):
        members.setdefault(uplink, []).append(rank)
    placed = [
        ((2 * nth + 1) / len(ranks), number, rank)
        for number, ranks in enumerate(members.values())
        for nth, rank in enumerate(ranks)
    ]
    return tuple(rank for _, _, rank in sorted(placed))


def conflicts(order: Sequence[int], uplinks: Sequence[Hashable], roots: Sequence[str]) -> int:
    """Pairs of phase and uplink in which GPUs of one uplink send to several host bridges. `roots[r]`: rank r's."""
    world, found = len(order), 0
    for shift in range(1, world):
        targets: dict[Hashable, set[str]] = {}
        for at, rank in enumerate(order):
            to = order[(at + shift) % world]
            if uplinks[to] != uplinks[rank]:  # else it stays below the switch
                targets.setdefault(uplinks[rank], set()).add(roots[to])
        found += sum(len(one) > 1 for one in targets.values())
    return found
