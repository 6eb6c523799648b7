"""Which host bridges share a quadrant of the IO die, by what their GPUs do to each other.

Below one quadrant reads never stall and writes to several at once do not collapse. Taken for apart by mistake costs 4
to 6 %, taken for one by mistake a collapse, so whatever speaks against it counts.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import combinations

import numpy as np

from .trace import Trace

# How much longer an operation takes that writes to all at once than one that writes to one after the other: published
# 6.9 across quadrants, below 1 within one.
COLLAPSE = 2.0
READ, FAN_OUT, PHASED = "read_pair", "push", "push_phased"
_AT_LEAST = 3  # ranks, for a rank to write to two others

# (host bridges, one for each rank, the pattern's name) -> a trace
Record = Callable[[Sequence[str], str], Trace]


def measured(gpus: dict[str, int], record: Record, most: int) -> dict[str, str]:
    """Host bridge -> the name of its quadrant. `gpus`: how many sit below each. `most`: ranks of a trace."""
    apart = {frozenset(pair) for pair in combinations(gpus, 2) if reads_stall(record(pair, READ))}
    quadrants: list[list[str]] = []
    for bridge in gpus:
        for members in quadrants:
            if not any(frozenset((bridge, one)) in apart for one in members):
                members.append(bridge)
                break
        else:
            quadrants.append([bridge])
    whole = [members for members in quadrants if len(members) == 1 or not _collapses(members, gpus, record, most)]
    split = [[one] for members in quadrants if members not in whole for one in members]
    return {one: f"q{number}" for number, members in enumerate(sorted(whole + split)) for one in members}


def reads_stall(trace: Trace) -> bool:
    """Rank 0 reads."""
    found = trace.summary(0)
    return bool(found.windows.at or found.over_1ms)


def _collapses(members: Sequence[str], gpus: dict[str, int], record: Record, most: int) -> bool:
    """Where there are too few GPUs to tell, nothing speaks against it."""
    ranks = [one for one in members for _ in range(gpus[one])][:most]
    if len(ranks) < _AT_LEAST:
        return False
    at_once, in_turn = (
        np.median([trace.summary(r).median for r in range(len(ranks))])
        for trace in (record(ranks, FAN_OUT), record(ranks, PHASED))
    )
    return bool(at_once > COLLAPSE * in_turn)
