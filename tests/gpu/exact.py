"""Every mode, dtype, size, alignment and world on one GPU, eager, against the exact answer.

    python tests/gpu/exact.py [--quick]

Ranks are processes under MPS, and for a world of 4 also threads of one process. Raw modes: bit for bit what fp32 sums
in rank order with one rounding give. Modes that pass partial sums on: whole numbers bit for bit, and any numbers with
the same bits on all ranks. Grids change from call to call and differ between ranks.
"""

from __future__ import annotations

import argparse
import hashlib
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
from roce_ring.bench.mps import mps
from tests.gpu.sample import BYTES, Room, expected, inputs, warm_up
from tests.gpu.world import Rank, run

CAPACITY = 1 << 20
COUNTS = (1, 3, 8, 17, 1000, 4096, 4099, 15360, 100_003, 262_144)


def _grid(rank: Rank, case: int) -> None:
    from roce_ring.gpu import executor

    if not rank.as_threads:  # threads share the module: there the grid stays what the size says
        blocks = (1, 2, 3, 4, 8)[(case + rank.rank) % 5]
        executor.blocks_for = lambda size, direct: blocks


Case = tuple[int, str, int, int, int, bool]  # seed, dtype, count, skews in elements, in place


def _cases(quick: bool) -> Iterator[Case]:
    seed = 0
    for count in COUNTS[:: 3 if quick else 1]:
        for dtype in BYTES:
            if count * BYTES[dtype] > CAPACITY:
                continue
            for skew_in, skew_out, in_place in ((0, 0, False), (1, 3, False), (0, 0, True), (1, 1, True)):
                seed += 1
                yield seed, dtype, count, skew_in, skew_out, in_place


def _reduced(rank: Rank, x: Room, out: Room, mode: str, raw: bool, case: Case, whole: bool) -> tuple[int, str]:
    """How many values are not what they must be, and a digest for the comparison of ranks."""
    seed, dtype, count, skew_in, skew_out, in_place = case
    x.use(count, dtype, skew_in)
    x.put(inputs(seed, rank.world, count, dtype, whole)[rank.rank])
    if in_place:
        out = x
    else:
        out.use(count, dtype, skew_out)
        out.poison()
    rank.comm.all_reduce(x.tensor(), out.tensor(), mode=mode)
    bits = out.bits()
    wrong = int((bits != expected(seed, rank.world, count, dtype, whole)).sum()) if raw or whole else 0
    return wrong, hashlib.sha256(bits.tobytes()).hexdigest()


def scenario(rank: Rank) -> tuple[Counter[str], list[str]]:
    from roce_ring.modes import modes

    counts: Counter[str] = Counter()
    digests = []
    x, out = Room(CAPACITY), Room(CAPACITY)
    warm_up(x, out)
    rank.meet()
    number = 0
    for mode in modes().values():
        if mode.refusal(rank.world, access=rank.comm.session.access):
            continue
        for case in _cases(rank.data):
            for whole in (True, False):
                number += 1
                _grid(rank, number)
                wrong, digest = _reduced(rank, x, out, mode.name, mode.raw, case, whole)
                counts[mode.name] += 1
                counts["wrong"] += wrong
                digests.append(digest)
                if wrong:
                    counts[f"wrong in {mode.name} {case} whole {whole}"] += wrong
    shapes = [(dtype, rows, columns) for dtype in BYTES for rows in (1, 3, 24) for columns in (1, 8, 37, 1024)]
    for number, shape in enumerate(shapes):
        _grid(rank, number)
        for name, wrong in _gathered(rank, x, out, *shape, seed=10_000 + 10 * number).items():
            counts[name] += 1
            counts["wrong"] += wrong
            if wrong:
                counts[f"wrong in {name} {shape}"] += wrong
    return counts, digests


def _gathered(rank: Rank, x: Room, out: Room, dtype: str, rows: int, columns: int, seed: int) -> dict[str, int]:
    """All-gather along both dimensions, with unequal columns, and reduce-scatter; wrong values of each."""
    world, me, count, wrong = rank.world, rank.rank, rows * columns, {}

    def load(bits: np.ndarray[Any, Any], results: int, skew: int) -> None:
        x.use(bits.size, dtype, skew)
        x.put(bits)
        out.use(results, dtype, 1 - skew)
        out.poison()

    every = inputs(seed, world, count, dtype, False)
    load(every[me], count * world, 0)
    rank.comm.all_gather(x.tensor(rows, columns), 0, out.tensor(world * rows, columns))
    wrong["gather rows"] = int((out.bits() != np.concatenate(every)).sum())

    widths = [columns + p for p in range(world)]
    parts = inputs(seed + 1, world, rows * max(widths), dtype, False)
    shards = [parts[p][: rows * widths[p]].reshape(rows, widths[p]) for p in range(world)]
    load(shards[me].reshape(-1), rows * sum(widths), 1)
    rank.comm.all_gather(x.tensor(rows, widths[me]), -1, out.tensor(rows, sum(widths)), sizes=widths)
    wrong["gather columns"] = int((out.bits() != np.concatenate(shards, axis=1).reshape(-1)).sum())

    load(inputs(seed + 2, world, world * count, dtype, False)[me], count, 0)
    rank.comm.reduce_scatter(x.tensor(world * rows, columns), out.tensor(rows, columns))
    total = expected(seed + 2, world, world * count, dtype, False)
    wrong["reduce-scatter"] = int((out.bits() != total[me * count : (me + 1) * count]).sum())
    return wrong


def check(world: int, as_threads: bool, quick: bool, provider: str) -> int:
    settings = {"provider": provider, "max_bytes": CAPACITY, "peer_timeout_s": 20.0}
    found = run(scenario, world, as_threads=as_threads, data=quick, **settings)
    how = "threads of one process" if as_threads else "processes under MPS"
    wrong = sum(counts["wrong"] for counts, _ in found)
    unequal = sum(len(set(column)) > 1 for column in zip(*(digests for _, digests in found), strict=True))
    calls = sum(n for name, n in found[0][0].items() if not name.startswith("wrong"))
    print(
        f"{provider}, world {world}, {how}: {calls} operations, {wrong} wrong values, {unequal} differ between ranks",
        flush=True,
    )
    for name, n in found[0][0].items():
        if name.startswith("wrong in"):
            print(f"  {name}: {n}", flush=True)
    return wrong + unequal


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--quick", action="store_true", help="a third of the sizes, worlds of 2, 4 and 8")
    parser.add_argument("--provider", default="shm", help="shm or pcie")
    given = parser.parse_args()
    quick, provider = given.quick, given.provider
    wrong = 0
    with mps():
        for world in (2, 4, 8) if quick else (2, 3, 4, 8):
            wrong += check(world, False, quick, provider)
    wrong += check(4, True, quick, provider)
    print(f"exact: {'FAILED' if wrong else 'passed'}")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
