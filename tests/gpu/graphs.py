"""Graphs over one communicator: several of different sizes and modes, replayed in any order, between eager operations;
what a capture may not do; torch's own captures.

    python tests/gpu/graphs.py [--replays N]

Ranks are processes under MPS. Every replay gets new inputs over poisoned outputs and is compared bit for bit.
"""

from __future__ import annotations

import argparse
import random
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
from tests.gpu.sample import Room, expected, inputs
from tests.gpu.world import Rank, mps, run

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
    order = random.Random(1)
    wrong = 0
    for step in range(rank.data):
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
    return {"wrong": wrong, "replays and eager operations": rank.data}


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
    return {"wrong": wrong, "refusals": 6}


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


def launch_cost(rank: Rank) -> dict[str, float]:
    """Host time of one eager call, in bursts of 20."""
    import time

    import torch

    took = {}
    x = torch.zeros(2048, device="cuda", dtype=torch.bfloat16)
    out = torch.empty_like(x)
    for what, call in (
        ("us a call, torch, out given", lambda: rank.comm.all_reduce(x, out)),
        ("us a call, torch, new output", lambda: rank.comm.all_reduce(x)),
    ):
        times = []
        for _ in range(50):
            began = time.perf_counter()
            for _ in range(20):
                call()
            times.append((time.perf_counter() - began) / 20)
            rank.stream.synchronize()
        took[what] = round(sorted(times)[25] * 1e6, 1)
    return {"wrong": 0, **took}


def tried(scenario: Callable[[Rank], dict[str, Any]], world: int, replays: int, provider: str) -> bool:
    """Whether something was wrong; says what."""
    try:
        settings = {"provider": provider, "max_bytes": CAPACITY, "peer_timeout_s": 20.0}
        found = run(scenario, world, as_threads=False, data=replays, **settings)
    except RuntimeError as error:
        print(f"graphs: {scenario.__name__}: {error}", flush=True)
        return True
    wrong = sum(one["wrong"] for one in found)
    rest = ", ".join(f"{value} {name}" for name, value in found[0].items() if name != "wrong")
    print(f"graphs: {scenario.__name__}, {world} ranks: {wrong} wrong; {rest}", flush=True)
    return wrong > 0


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--replays", type=int, default=10_000)
    parser.add_argument("--provider", default="shm", help="shm or pcie")
    given = parser.parse_args()
    replays, provider = given.replays, given.provider
    with mps():
        bad = sum(tried(one, WORLD, replays, provider) for one in (refusals, torch_step, launch_cost, any_order))
    bad += tried(launch_cost, 2, replays, provider)  # without the MPS server behind every call
    print(f"graphs: {'FAILED' if bad else 'passed'}")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
