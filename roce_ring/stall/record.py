"""Records traces, on a machine that lets all ranks run a pattern together."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from ..errors import RoceRingError
from ..native import STALL_STEPS, Stall, StallStep
from .clocks import aligned
from .patterns import PATTERNS, Step
from .trace import Trace

LIMIT_NS = 10_000_000_000  # a rank that others wait for so long is not coming
_FEW = 200  # operations that tell how long one takes
MOST_OPS = 1 << 22  # stamps of a rank then take 100 MB


class Machine(Protocol):
    """`run`: `ops` operations; index of `steps` = rank. Stamps as clocks.aligned() takes them. Raises RoceRingError."""

    world: int
    bytes: int

    def run(self, steps: Sequence[Sequence[Step]], ops: int) -> NDArray[np.int64]: ...


def record(machine: Machine, pattern: str, seconds: float) -> Trace:
    """About `seconds` of it: how many operations that is, is reckoned before. Raises RoceRingError."""
    steps = [PATTERNS[pattern].steps(rank, machine.world, machine.bytes) for rank in range(machine.world)]
    few = machine.run(steps, _FEW)
    each_ns = float(few[0, -1, 2] - few[0, _FEW // 2, 0]) / (_FEW // 2)
    stamps = machine.run(steps, min(max(int(seconds * 1e9 / each_ns), _FEW), MOST_OPS))
    return Trace(pattern, machine.bytes, aligned(stamps))


def order(
    rank: int, steps: Sequence[Step], ops: int, met: int, data: Sequence[int], flags: Sequence[int], slot_bytes: int
) -> Stall:
    """One rank's part, but for its own addresses. `met`: meetings that the flags have seen."""
    assert len(steps) <= STALL_STEPS
    s = Stall(rank=rank, world=len(data), ops=ops, steps=len(steps), met=met, slot_bytes=slot_bytes, limit_ns=LIMIT_NS)
    s.data[: len(data)], s.flags[: len(flags)] = list(data), list(flags)
    for number, one in enumerate(steps):
        peers = sum(1 << peer for peer in one.peers)
        s.step[number] = StallStep(kind=one.kind, peers=peers, bytes=one.bytes, meet=int(one.meet))
    return s


def meetings(steps: Sequence[Step]) -> int:
    """Of one operation."""
    return 1 + sum(one.meet for one in steps)


def came(lost: Sequence[int]) -> None:
    """`lost`: each rank's word. Raises RoceRingError if one waited in vain."""
    for rank, word in enumerate(lost):
        if word:
            raise RoceRingError("stall", f"rank {rank} waited {LIMIT_NS / 1e9:g} s for rank {word - 1}", "report this")
