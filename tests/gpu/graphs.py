"""Graphs over one communicator: several of different sizes and modes, replayed in any order, between eager operations;
what a capture may not do; torch's own captures.

    python tests/gpu/graphs.py [--replays N] [--provider pcie] [--soak SECONDS]

Ranks are processes under MPS. Every replay gets new inputs over poisoned outputs and is compared bit for bit.
"""

from __future__ import annotations

import argparse
import random
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
from roce_ring.bench.mps import mps
from tests.gpu.sample import Room, expected, inputs
from tests.gpu.world import Rank, run

CAPACITY = 1 << 20
WORLD = 4
# mode, dtype, elements, operations in the graph: odd numbers of them, so that replays alternate slots.
GRAPHS = (
    ("full", "float32", 1024, 3),
    ("payload_rsag", "float16", 40_000, 1),
    ("ring_bidir", "bfloat16", 5_001, 5),
    ("full_phased", "float32", 15_360, 2),
)
SEEDS = 8
SOAK_STEPS = 100_000


def _equal(room: Room, seed: int, mode: str) -> bool:
    """Whole numbers where partial sums travel."""
    return bool((room.bits() == expected(seed, WORLD, room.count, room.dtype, mode == "ring_bidir")).all())


def any_order(rank: Rank) -> dict[str, int]:
    """Four graphs and eager operations, in one random order that all ranks share."""
    import cupy as cp

    rooms, graphs = [], []
    for mode, dtype, count, operations in GRAPHS:
        x, out = Room(CAPACITY), Room(CAPACITY)
        x.use(count, dtype, 1)
        out.use(count, dtype, 3)
        rooms.append((x, out))
        x.put(inputs(0, WORLD, count, dtype, False)[rank.rank])
        x.bits()
        given, result = x.tensor(), out.tensor()
        rank.stream.begin_capture()
        for _ in range(operations):
            rank.comm.all_reduce(given, result, mode=mode)
        graphs.append(rank.stream.end_capture())
    rank.meet()
    order, own = random.Random(1), random.Random(100 + rank.rank)
    replays, limit_s = rank.data
    began, wrong, step = time.monotonic(), 0, 0
    for step in range(replays):
        if limit_s:
            time.sleep(own.choice((0, 0, 0, 0.0002 * own.random())))
            late = bytes([time.monotonic() - began > limit_s])
            if step % 1000 == 0 and b"\1" in rank.comm._exchange.all_gather(late, 60.0):  # all stop, or none
                break
        which, seed, eager = order.randrange(len(GRAPHS)), order.randrange(SEEDS), order.randrange(4) == 0
        mode, dtype, count, _ = GRAPHS[which]
        x, out = rooms[which]
        x.put(inputs(seed, WORLD, count, dtype, mode == "ring_bidir")[rank.rank])
        out.poison()
        if eager:
            rank.comm.all_reduce(x.tensor(), out.tensor(), mode=mode)
        else:
            graphs[which].launch(rank.stream)
        # Most replays only follow each other; now and then somebody looks.
        if step % 5 == 0 or eager:
            wrong += not _equal(out, seed, mode)
    rank.stream.synchronize()
    rank.comm.check()
    del graphs
    cp.cuda.runtime.deviceSynchronize()
    return {"wrong": wrong, "replays and eager operations": step + 1}


def refusals(rank: Rank) -> dict[str, int]:
    """What cannot be captured is one sentence on every rank, and the communicator goes on afterwards."""
    import cupy as cp

    from roce_ring.errors import RoceRingError, UnsupportedError

    wrong = 0
    x, out = Room(4096), Room(4096)
    x.use(64, "float32", 0)
    out.use(64, "float32", 0)
    x.put(inputs(1, WORLD, 64, "float32", False)[rank.rank])
    other, fork, join = cp.cuda.Stream(non_blocking=True), cp.cuda.Event(), cp.cuda.Event()
    rank.stream.begin_capture()
    rank.comm.all_reduce(x.tensor(), out.tensor())
    fork.record(rank.stream)
    other.wait_event(fork)
    with other:
        try:
            rank.comm.all_reduce(x.tensor(), out.tensor())
            wrong += 1
        except RoceRingError as error:
            wrong += "two streams of one graph capture" not in error.message
    try:
        rank.comm.all_reduce(x.tensor())
        wrong += 1
    except UnsupportedError as error:
        wrong += "inside a graph capture" not in error.message
    join.record(other)
    rank.stream.wait_event(join)
    graph = rank.stream.end_capture()
    rank.meet()
    graph.launch(rank.stream)
    wrong += not _equal(out, 1, "full")
    # Eager operations on two streams: the second waits for the first by an event.
    for turn in range(50):
        seed = turn % SEEDS
        with (rank.stream, other)[turn % 2] as now:
            x.put(inputs(seed, WORLD, 64, "float32", False)[rank.rank])
            rank.comm.all_reduce(x.tensor(), out.tensor())
            wrong += not _equal(out, seed, "full")
            now.synchronize()
    square = cp.ones((8, 8), cp.float32)  # what the short way knows, and then things that only look like it
    rank.comm.all_reduce(square, square)
    for given, into, words in (
        (square.T, square, "not contiguous"),
        (square, square.T, "non-contiguous"),
        (square, cp.ones((8, 8), cp.float16), "out is a float16"),
        (square, cp.ones((4, 16), cp.float32), "out is a float32[4, 16]"),
        (square, cp.asnumpy(square), "on cpu"),
    ):
        try:
            rank.comm.all_reduce(given, into)
            wrong += 1
        except UnsupportedError as error:
            wrong += words not in error.message
    for bad, words in (
        (cp.zeros((4, 4), cp.float32).T[:2], "not contiguous"),
        (cp.zeros(4, cp.int32), "dtype int32"),
        (cp.zeros(CAPACITY, cp.float32), "at most"),
        (cp.asnumpy(cp.zeros(4, cp.float32)), "expected cuda:0"),
    ):
        try:
            rank.comm.all_reduce(bad)
            wrong += 1
        except UnsupportedError as error:
            wrong += words not in error.message
    return {"wrong": wrong, "refusals": 11}


def torch_step(rank: Rank) -> dict[str, int]:
    """A row-parallel layer with its all-reduce, captured by torch.cuda.graph: replays give what eager gives."""
    import torch

    torch.manual_seed(rank.rank)
    weight = torch.randn(256, 512, device="cuda", dtype=torch.bfloat16) / 16
    x = torch.zeros(8, 256, device="cuda", dtype=torch.bfloat16)

    def step() -> Any:
        return torch.relu(rank.comm.all_reduce(x @ weight))

    batches = [torch.randn(8, 256, device="cuda", dtype=torch.bfloat16) for _ in range(10)]
    eager = []
    for batch in batches:
        x.copy_(batch)
        eager.append(step().clone())
    torch.cuda.current_stream().synchronize()
    graph = torch.cuda.CUDAGraph()
    with rank.comm.capture(), torch.cuda.graph(graph):
        result = step()
    rank.meet()
    wrong = 0
    for batch, before in zip(batches, eager, strict=True):
        x.copy_(batch)
        result.fill_(float("nan"))
        graph.replay()
        torch.cuda.current_stream().synchronize()
        wrong += not torch.equal(result, before)
    sums = rank.comm._exchange.all_gather(result.float().cpu().numpy().tobytes(), 60.0)
    wrong += len(set(sums)) != 1
    return {"wrong": wrong, "torch replays": len(batches)}


def tried(scenario: Callable[[Rank], dict[str, Any]], provider: str, replays: int, soak_s: float = 0.0) -> bool:
    """Whether something was wrong; says what. `soak_s`: ranks pause at random, and end after so many seconds."""
    try:
        settings = {"provider": provider, "max_bytes": CAPACITY, "peer_timeout_s": 20.0}
        data, limit_s = (replays, soak_s), max(300.0, soak_s + 60.0)
        found = run(scenario, WORLD, as_threads=False, data=data, timeout_s=limit_s, **settings)
    except RuntimeError as error:
        print(f"graphs: {scenario.__name__}: {error}", flush=True)
        return True
    wrong = sum(one["wrong"] for one in found)
    rest = ", ".join(f"{value} {name}" for name, value in found[0].items() if name != "wrong")
    print(f"graphs: {scenario.__name__}, {WORLD} ranks: {wrong} wrong; {rest}", flush=True)
    return wrong > 0


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--replays", type=int, default=10_000)
    parser.add_argument("--soak", type=float, default=0.0, help="only random order, 100,000 steps, ranks that pause")
    parser.add_argument("--provider", default="shm", help="shm or pcie")
    given = parser.parse_args()
    with mps():
        if given.soak:
            bad = int(tried(any_order, given.provider, SOAK_STEPS, given.soak))
        else:
            bad = sum(tried(one, given.provider, given.replays) for one in (refusals, torch_step, any_order))
    print(f"graphs: {'FAILED' if bad else 'passed'}")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
