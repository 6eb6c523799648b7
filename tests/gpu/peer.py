"""How long a collective takes over peers' memory: four ranks as four streams of one process, flags and slots in device
memory, captured 40 to a graph, replayed; every replay checked.

    python tests/gpu/peer.py [--blocks 1,4,8,16,32] [--quick] [--report FILE]

In the same run: the barrier alone (a kernel that raises a flag at every peer and waits for theirs, one a round, 40 a
graph), what a device copy of the bytes that an operation sends takes (40 a graph), and the verdict of gpu/p2p.py
from the device to itself. One GPU: what is stored goes through its memory, never over a bus.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import cupy as cp
import numpy as np

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))
from roce_ring.gpu import p2p  # noqa: E402
from roce_ring.gpu.verdicts import verdicts  # noqa: E402
from roce_ring.modes import modes  # noqa: E402
from tests.gpu.latency import GATHER, OPS, WORLD, Case, Side  # noqa: E402

SIZES = (4, 4096, 16384, 65536, 262144, 1048576)

BARRIER = r"""
extern "C" __global__ void barrier(unsigned long long *count, unsigned long long *flags, int me, int world) {
    unsigned long long mine = *count + 1, seen;
    if (threadIdx.x < world) {
        asm volatile("st.release.sys.global.u64 [%0], %1;" ::"l"(flags + (threadIdx.x * world + me) * 16), "l"(mine));
        do asm volatile("ld.acquire.sys.global.u64 %0, [%1];" : "=l"(seen)
                        : "l"(flags + (me * world + threadIdx.x) * 16) : "memory");
        while (seen < mine);
    }
    __syncthreads();
    if (!threadIdx.x) *count = mine;
}
"""


def replayed(capture: Callable[[int], None], streams: list[Any], replays: int) -> float:
    """Median us of one of the OPS steps that capture(rank) puts into each rank's graph."""
    graphs = []
    for rank, stream in enumerate(streams):
        with stream:
            stream.begin_capture()
            for _ in range(OPS):
                capture(rank)
            graphs.append(stream.end_capture())
    times = []
    for _ in range(replays + 3):
        began = time.perf_counter()
        for stream, graph in zip(streams, graphs, strict=True):
            graph.launch(stream)
        for stream in streams:
            stream.synchronize()
        times.append((time.perf_counter() - began) / OPS * 1e6)
    return statistics.median(times[3:])


def barrier_us(replays: int) -> float:
    streams = [cp.cuda.Stream(non_blocking=True) for _ in range(WORLD)]
    kernel = cp.RawModule(code=BARRIER, options=("-std=c++17",)).get_function("barrier")
    counts, flags = cp.zeros((WORLD, 16), cp.uint64), cp.zeros(WORLD * WORLD * 16, cp.uint64)
    cp.cuda.runtime.deviceSynchronize()

    def capture(rank: int) -> None:
        kernel((1,), (32,), (counts[rank], flags, np.int32(rank), np.int32(WORLD)))

    return replayed(capture, streams, replays)


def copy_us(size: int, replays: int) -> float:
    """One device-to-device copy of `size` bytes."""
    stream, x, y = cp.cuda.Stream(non_blocking=True), cp.empty(size, cp.uint8), cp.empty(size, cp.uint8)
    return replayed(lambda _: y.data.copy_from_device_async(x.data, size, stream), [stream], replays)


def sent(case: Case) -> int:
    """Bytes that all ranks send, or read from others, together."""
    if case.mode.startswith("full") or case.mode in ("pull", GATHER):
        return WORLD * (WORLD - 1) * case.bytes
    return 2 * (WORLD - 1) * case.bytes


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--blocks", default="1,4,8,16,32")
    parser.add_argument("--replays", type=int, default=50)
    parser.add_argument("--quick", action="store_true", help="full and payload_rsag only")
    parser.add_argument("--kernels", type=Path, default=ROOT / "kernels", help="another kernels/ folder")
    parser.add_argument("--report", type=Path)
    given = parser.parse_args()
    bus = cp.cuda.runtime.deviceGetPCIBusId(0)
    (verdict,) = verdicts(bus, [bus])
    barrier = barrier_us(given.replays)
    big = 1 << 28
    lines = [
        f"device: {cp.cuda.runtime.getDeviceProperties(0)['name'].decode()}",
        f"p2p from {bus} to itself: " + ", ".join(f"{name} {verdict[name] or 'works'}" for name in p2p.PRIMITIVES),
        f"barrier in a graph: {barrier:.2f} us; device copies {big / copy_us(big, 3) / 1e3:.0f} GB/s (bytes copied)",
    ]
    lines.append(f"{'mode':<20} {'bytes':>8} {'blocks':>6} {'us':>8} {'p99':>8} {'/barrier':>8} {'copy us':>8} wrong")
    print("\n".join(lines), flush=True)
    wrong = sum(bool(verdict[name]) for name in p2p.PRIMITIVES)
    names = ["full", "payload_rsag"] if given.quick else [*modes(), GATHER]
    blocks = [int(b) for b in given.blocks.split(",")]
    fastest: dict[tuple[str, int], tuple[float, float]] = {}  # us, and of a copy of its bytes
    side, rng = Side("direct", given.kernels, direct=True), np.random.default_rng(7)
    for case in [Case(name, "float32", size, b) for name in names for size in SIZES for b in blocks]:
        if case.bytes < 65536 and case.blocks > 8:
            continue
        side.prepare(case)
        for replay in range(given.replays + 3):
            side.replay(case, rng, replay >= 3)
        median, p99 = side.median_and_p99()
        wrong += side.wrong
        copy = copy_us(sent(case), 5) if case.bytes > 4 else 0.0
        fastest[case.mode, case.bytes] = min((median, copy), fastest.get((case.mode, case.bytes), (median, copy)))
        lines.append(
            f"{case.mode:<20} {case.bytes:>8} {case.blocks:>6} {median:>8.2f} {p99:>8.2f} {median / barrier:>8.2f} "
            f"{copy:>8.2f} {side.wrong}"
        )
        print(lines[-1], flush=True)
        if given.report:
            given.report.write_text("\n".join(lines) + "\n")
    small, (large, copied) = fastest["full", 16384][0], fastest["payload_rsag", 1 << 20]
    print(f"figure: full over peers' memory, 16 KiB, over the barrier ({barrier:.2f} us) | 4 | {small / barrier:.2f}")
    print(f"figure: payload_rsag over peers' memory, 1 MiB, over a copy ({copied:.1f} us) | 1.5 | {large / copied:.2f}")
    print(f"peer: {'FAILED' if wrong else 'passed'}: {wrong} wrong")
    side.stop()
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
