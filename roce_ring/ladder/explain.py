"""Which mode a payload takes, why, and what else there was."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise

from ..modes import modes
from .classes import CLASSES
from .model import Ladder


@dataclass(frozen=True, slots=True)
class Considered:
    """`why`: what speaks for the chosen mode, or against another. `median_us`: of the bucket's sweep, if known."""

    mode: str
    chosen: bool
    why: str
    median_us: float | None = None


def explain(ladder: Ladder, size_bytes: int, world: int | None) -> tuple[tuple[int, int], list[Considered]]:
    """((smallest, largest payload of the bucket), every mode, the chosen one first). `world`: None if any."""
    first, bucket = ladder.bucket(size_bytes)
    chosen = bucket.profiles[0].mode
    best = bucket.median_us.get(chosen)
    out = [Considered(chosen, True, bucket.note or "the ladder says so", best)]
    rest = []
    for mode in modes().values():
        if mode.name == chosen:
            continue
        us = bucket.median_us.get(mode.name)
        why = next(filter(None, (CLASSES[name].refusal(mode, world) for name in ladder.file.fabrics)), None)
        if why is None:
            why = "possible; no figure for this size" if us is None else "possible; slower"
            if us is not None and best is not None and us <= best:
                why = "possible; no slower by its median, but by its mean or its tail"
        rest.append(Considered(mode.name, False, why, us))
    return (first, bucket.upto), out + sorted(rest, key=lambda one: (one.median_us is None, one.median_us or 0.0))


def differences(a: Ladder, b: Ladder) -> Iterator[tuple[int, int, str, str]]:
    """(smallest payload, largest, mode in `a`, mode in `b`) where they differ, up to the lower capacity."""
    most = min(a.capacity, b.capacity)
    edges = sorted({0, most} | {upto for one in (a, b) for _, upto, _ in one.bands() if upto <= most})
    for below, upto in pairwise(edges):
        ours, theirs = a.profile(upto).mode, b.profile(upto).mode
        if ours != theirs:
            yield below + 1, upto, ours, theirs
