"""From a sweep's figures to one mode per bucket."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

# Of those whose median is this near the best, the one with the lowest mean: the mean sees the tail. Source of 3 %: the
# published host-bridge sweep.
NEAR = 1.03
# A read whose mean is this much further from its median than the steadiest candidate's stalls: its median tells of the
# good moments only. Across quadrants 2.0; nothing else in that publication has more than 1.01. Writes never stall, and
# where their tails differ a busy machine is the cause.
STALLS = 1.25


@dataclass(frozen=True, slots=True)
class Measured:
    """Microseconds of one mode at one size, MAX over ranks; `wrong`: elements."""

    mode: str
    median: float
    mean: float
    wrong: int = 0

    @property
    def tail(self) -> float:
        return self.mean / self.median


@dataclass(frozen=True, slots=True)
class Selected:
    """`out`: mode -> why it was not to be had at any speed."""

    mode: str
    out: dict[str, str]


def select(measured: Sequence[Measured], barred: Mapping[str, str], reads: Collection[str]) -> Selected | None:
    """`barred`: mode -> why the fabric class has no place for it. `reads`: modes that read peers' memory. None if
    nothing is left."""
    out = {one.mode: f"{one.wrong} wrong elements" for one in measured if one.wrong}
    out |= {one.mode: barred[one.mode] for one in measured if one.mode in barred and one.mode not in out}
    left = [one for one in measured if one.mode not in out]
    if not left:
        return None
    steadiest = min(one.tail for one in left)
    stalling = {
        one.mode: f"stalls: mean {one.mean:.1f} us, median {one.median:.1f}"
        for one in left
        if one.mode in reads and one.tail > steadiest * STALLS
    }
    out |= stalling
    left = [one for one in left if one.mode not in stalling]
    if not left:
        return None
    best = min(one.median for one in left)
    return Selected(min((one for one in left if one.median <= best * NEAR), key=lambda one: one.mean).mode, out)


def race(measured: Sequence[Measured]) -> str:
    """What a race of medians picks; for comparison."""
    return min(measured, key=lambda one: one.median).mode
