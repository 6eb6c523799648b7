"""How large an operation the hairpin queues can take.

A forwarded frame waits in its relay's hairpin queue; a full queue drops silently. The queue has 64 bytes of memory per
packet of its size: 8192 packets, the maximum, are 512 KiB. What meets in one queue depends only on geometry: each
forwarded stripe counts with its share of the payload (half of it on two planes), summed over the busiest queue.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence

from .model import Limits, Path

HAIRPIN_MAX = 8192  # packets; mlx5 accepts powers of two up to this
HAIRPIN_STRIDE = 64  # bytes of queue per packet
FILL = (
    0.75  # share of a queue that an operation may fill; the rule that gives 131072 bytes on an 8-ring at 8192 packets
)

# Measured on the four-Spark ring: no drops up to 480 KiB at 8192 packets (256 KiB is the recipe's setting), none up to
# 80 KiB at 1024 packets and drops from 100 KiB. Sizes between are not measured and count as 1024.
CAP_FULL_QUEUE = 262144
CAP_SMALL_QUEUE = 81920
CAP_NOTHING_FORWARDED = 524288  # SGLANG_ROCE_MAX_SIZE where neighbours only talk directly

WINDOW = 131072  # bytes unacknowledged per forwarded queue pair; measured without drops at 8192 packets
CHUNK = 32768  # bytes per write inside a window
MIN_WINDOW = 1024  # bytes; smaller writes would cost more than the drops they avoid


def busiest_load(paths: Iterable[Path], ring: Sequence[int]) -> float:
    """Whole payloads that meet in the busiest hairpin queue: one queue per relay, plane and direction of travel."""
    paths = tuple(paths)
    share: Mapping[tuple[int, int], float] = _shares(paths)
    position = {rank: place for place, rank in enumerate(ring)}
    load: dict[tuple[int, int, int], float] = defaultdict(float)
    for path in paths:
        before = path.source
        for relay in path.via:
            direction = (position[relay] - position[before]) % len(ring)
            load[relay, path.plane, direction] += share[path.source, path.target]
            before = relay
    return max(load.values(), default=0.0)


def _shares(paths: Iterable[Path]) -> dict[tuple[int, int], float]:
    count: dict[tuple[int, int], int] = defaultdict(int)
    for path in paths:
        count[path.source, path.target] += 1
    return {pair: 1 / paths for pair, paths in count.items()}


def limits(load: float, hairpin_packets: int | None, planes: int) -> Limits:
    """Size cap and forward window for ``load`` in queues of ``hairpin_packets`` (load 0: nothing is forwarded)."""
    if not load or hairpin_packets is None:
        return Limits(CAP_NOTHING_FORWARDED, None, 0.0, 0, 0)
    usable = FILL * hairpin_packets * HAIRPIN_STRIDE
    measured = CAP_FULL_QUEUE if hairpin_packets >= HAIRPIN_MAX else CAP_SMALL_QUEUE
    cap = min(measured, int(usable / load) // 4096 * 4096 or int(usable / load) // 16 * 16)
    streams = max(1, round(load * planes))  # queue pairs that may have a full window in the same queue
    window = max(MIN_WINDOW, min(WINDOW, _power_of_two(usable / streams)))
    return Limits(cap, hairpin_packets, load, window, min(CHUNK, window))


def _power_of_two(value: float) -> int:
    return 1 << (max(1, int(value)).bit_length() - 1)
