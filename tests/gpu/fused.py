"""The residual add and RMSNorm behind an all-reduce, and the prefetch beside it, on one GPU.

    python tests/gpu/fused.py [--replays N] [--only exact|norm|prefetch] [--provider shm|pcie]

Ranks are four processes under MPS. Exactness: eager and in a graph, against numpy, to the bit. Times: graphs of many
steps, what is compared replayed in turns; median over replays of the slowest rank's time.
"""

from __future__ import annotations

import argparse
import hashlib
import statistics
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
from roce_ring.bench.mps import mps
from tests.gpu.sample import BYTES, Room, expected, from_bits, inputs, to_bits, warm_up
from tests.gpu.world import Rank, run
from tests.norm import normed

WORLD = 4
EPS = 1e-5
SHAPES = ((1, 4096), (3, 2880), (17, 129), (2, 9001), (5, 8192), (64, 2048))
STEPS = 100  # of one graph
RESIDUAL, WEIGHT = 1000, 2000  # added to a case's number: the seed of what all ranks have alike


def exact(rank: Rank) -> tuple[int, int, str]:
    """(wrong values, operations, digest of all results)."""
    from roce_ring.modes import modes

    rooms = [Room(1 << 19) for _ in range(4)]
    x, out, residual, weight = rooms
    warm_up(*rooms)
    rank.meet()
    wrong, done, digest = 0, 0, hashlib.sha256()
    for mode in modes().values():
        if not mode.raw or mode.refusal(WORLD, access=rank.comm.session.access):
            continue
        for case, (rows, hidden) in enumerate(SHAPES):
            for dtype in BYTES:
                skew, count = case % 2, rows * hidden
                x.use(count, dtype, skew)
                out.use(count, dtype, 0)
                residual.use(count, dtype, skew)
                weight.use(hidden, dtype, skew)
                same = [inputs(case + at, 1, n, dtype, False)[0] for at, n in ((RESIDUAL, count), (WEIGHT, hidden))]
                total = from_bits(expected(case, WORLD, count, dtype, False), dtype)
                result, h = normed(
                    total.reshape(rows, hidden),
                    from_bits(same[0], dtype).reshape(rows, hidden),
                    from_bits(same[1], dtype),
                    EPS,
                    16 // BYTES[dtype],
                    lambda values, dtype=dtype: from_bits(to_bits(values, dtype), dtype),  # type: ignore[misc]
                )

                tensors = x.tensor(rows, hidden), out.tensor(rows, hidden)
                norm = {"residual": residual.tensor(rows, hidden), "norm_weight": weight.tensor(hidden), "eps": EPS}

                def call(
                    mode: str = mode.name, tensors: tuple[Any, Any] = tensors, norm: dict[str, Any] = norm
                ) -> None:
                    rank.comm.all_reduce(*tensors, mode=mode, prefetch=[norm["norm_weight"]], **norm)

                rank.stream.begin_capture()
                call()
                graph = rank.stream.end_capture()
                for launch in (call, lambda graph=graph: graph.launch(rank.stream)):
                    rank.comm.all_reduce(*tensors, mode=mode.name)  # must not stand in for the call with a norm
                    x.put(inputs(case, WORLD, count, dtype, False)[rank.rank])
                    residual.put(same[0])
                    weight.put(same[1])
                    out.poison()
                    launch()
                    bits = out.bits(), residual.bits()
                    wrong += int((bits[0] != to_bits(result, dtype).reshape(-1)).sum())
                    wrong += int((bits[1] != to_bits(h, dtype).reshape(-1)).sum())
                    digest.update(bits[0].tobytes())
                    done += 1
                x.put(inputs(case, WORLD, count, dtype, False)[rank.rank])
                rank.comm.all_reduce(*tensors, mode=mode.name)  # nor the other way round
                wrong += int((out.bits() != expected(case, WORLD, count, dtype, False)).sum())
    return wrong, done, digest.hexdigest()


# A norm of one's own behind the all-reduce: one block of 512 threads a row.
NORM = r"""
#include <cuda_fp16.h>
extern "C" __global__ void add_norm(__half *out, __half *residual, const __half *weight, int hidden, float eps) {
    __shared__ float part[16];
    out += (size_t)blockIdx.x * hidden, residual += (size_t)blockIdx.x * hidden;
    float squares = 0;
    for (int i = threadIdx.x; i < hidden / 2; i += blockDim.x) {
        __half2 h = __hadd2(((__half2 *)out)[i], ((__half2 *)residual)[i]);
        ((__half2 *)residual)[i] = h;
        float2 v = __half22float2(h);
        squares += v.x * v.x + v.y * v.y;
    }
    for (int d = 16; d; d /= 2) squares += __shfl_xor_sync(~0u, squares, d);
    if (threadIdx.x % 32 == 0) part[threadIdx.x / 32] = squares;
    __syncthreads();
    squares = 0;
    for (int i = 0; i < 16; i++) squares += part[i];
    float scale = rsqrtf(squares / hidden + eps);
    for (int i = threadIdx.x; i < hidden / 2; i += blockDim.x) {
        float2 v = __half22float2(((__half2 *)residual)[i]), w = __half22float2(((const __half2 *)weight)[i]);
        ((__half2 *)out)[i] = __floats2half2_rn(v.x * scale * w.x, v.y * scale * w.y);
    }
}
"""

# Reads weights as a matrix-vector product does: every byte once, from all multiprocessors.
READ = r"""
extern "C" __global__ void read(const uint4 *weights, int packs, unsigned *sink) {
    unsigned sum = 0;
    for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < packs; i += gridDim.x * blockDim.x) {
        uint4 v = weights[i];
        sum += v.x ^ v.y ^ v.z ^ v.w;
    }
    if (sum == 0x12345678) *sink = sum;
}
extern "C" __global__ void pass_time(long long ns) {
    long long began, now;
    asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(began));
    do asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(now)); while (now - began < ns);
}
"""


def timed(rank: Rank, steps: dict[str, Callable[[int], None]]) -> dict[str, list[float]]:
    """Microseconds a step, replay by replay, from when all ranks are there. `steps`: each puts step number i into the
    current stream."""
    import cupy as cp

    graphs, begin, end = {}, cp.cuda.Event(), cp.cuda.Event()
    word = cp.zeros(1, cp.float32)
    for name, step in steps.items():
        step(0)
        rank.stream.begin_capture()
        for i in range(STEPS):
            step(i)
        graphs[name] = rank.stream.end_capture()
    rank.stream.synchronize()
    took: dict[str, list[float]] = {name: [] for name in steps}
    for _ in range(rank.data + 2):
        for name, graph in graphs.items():
            rank.comm.all_reduce(word, word)
            begin.record(rank.stream)
            graph.launch(rank.stream)
            end.record(rank.stream)
            rank.stream.synchronize()
            took[name].append(cp.cuda.get_elapsed_time(begin, end) / STEPS * 1e3)
    return {name: times[2:] for name, times in took.items()}


def norm_times(rank: Rank) -> dict[str, list[float]]:
    import cupy as cp

    kernel, took = cp.RawModule(code=NORM).get_function("add_norm"), {}
    for rows, hidden in ((1, 4096), (1, 8192), (8, 4096), (32, 4096)):
        x, out, residual = (cp.zeros((rows, hidden), cp.float16) for _ in range(3))
        weight = cp.ones(hidden, cp.float16)

        def alone(_: int, x: Any = x, out: Any = out) -> None:
            rank.comm.all_reduce(x, out, mode="full")

        def behind(_: int, x: Any = x, out: Any = out, residual: Any = residual, weight: Any = weight) -> None:
            rank.comm.all_reduce(x, out, mode="full")
            kernel((x.shape[0],), (512,), (out, residual, weight, np.int32(x.shape[1]), np.float32(EPS)))

        def fused(_: int, x: Any = x, out: Any = out, residual: Any = residual, weight: Any = weight) -> None:
            rank.comm.all_reduce(x, out, mode="full", residual=residual, norm_weight=weight, eps=EPS)

        found = timed(rank, {"all_reduce": alone, "+ norm kernel": behind, "fused": fused})
        took |= {f"norm, float16[{rows}, {hidden}], {name}": times for name, times in found.items()}
    return took


def prefetch_times(rank: Rank) -> dict[str, list[float]]:
    import cupy as cp

    module, took = cp.RawModule(code=READ), {}
    read, pass_time = module.get_function("read"), module.get_function("pass_time")
    sink = cp.zeros(1, cp.uint32)
    memory = cp.zeros(256 << 20, cp.uint8)  # far more than a cache, with four ranks
    for payload, weights, late_us in ((4096, 0, 0), (4096, 4, 0), (65536, 4, 0), (4096, 4, 15), (4096, 8, 15)):
        size = max(weights, 8) << 20
        layers = [memory[at : at + size] for at in range(0, memory.size, size)]
        x, out = (cp.zeros(payload // 4, cp.float32) for _ in range(2))

        def step(
            i: int,
            layer: Any,
            ahead: list[Any],
            x: Any = x,
            out: Any = out,
            late_us: int = late_us,
            packs: int = weights << 16,
        ) -> None:
            if late_us and rank.rank == i % WORLD:
                pass_time((1,), (1,), (np.int64(late_us * 1000),))
            rank.comm.all_reduce(x, out, mode="full", prefetch=ahead)
            if packs:
                read((132,), (512,), (layer, np.int32(packs), sink))

        def plain(i: int, layers: list[Any] = layers, step: Any = step) -> None:
            step(i, layers[i % len(layers)], [])

        def ahead(i: int, layers: list[Any] = layers, step: Any = step, size: int = (weights or 8) << 20) -> None:
            step(i, layers[i % len(layers)], [layers[i % len(layers)][:size]])

        def hot(i: int, layers: list[Any] = layers, step: Any = step) -> None:
            step(i, layers[0], [])

        found = timed(rank, {"plain": plain, "prefetch": ahead, "in the cache already": hot})
        what = f"prefetch, {payload} bytes, {weights} MiB read by a rank behind it, one in turn {late_us} us late"
        took |= {f"{what}, {name}": times for name, times in found.items()}
    return took


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--replays", type=int, default=40)
    parser.add_argument("--only", choices=("exact", "norm", "prefetch"))
    parser.add_argument("--provider", default="shm", help="shm or pcie")
    given = parser.parse_args()
    settings = {"provider": given.provider, "max_bytes": 1 << 20, "peer_timeout_s": 20.0}
    bad = False
    with mps():
        if given.only in (None, "exact"):
            found = run(exact, WORLD, as_threads=False, **settings)
            wrong, unequal = sum(one[0] for one in found), len({one[2] for one in found}) > 1
            bad = bool(wrong or unequal)
            agree = "differ" if unequal else "agree"
            print(f"fused, {given.provider}: {found[0][1]} operations, {wrong} wrong values, ranks {agree}")
        for scenario in (norm_times, prefetch_times):
            if given.only in (None, scenario.__name__.partition("_")[0]):
                times = run(scenario, WORLD, as_threads=False, data=given.replays, **settings)
                for name in times[0]:
                    slowest = [max(rank[name][i] for rank in times) for i in range(given.replays)]
                    print(f"{given.provider}, {name}: {statistics.median(slowest):.1f} us", flush=True)
    print(f"fused: {'FAILED' if bad else 'passed'}")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
