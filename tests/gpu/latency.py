"""How long a collective takes on one GPU: four ranks as four streams of one process, captured 40 to a graph, replayed.

    python tests/gpu/latency.py [--kernels DIR] [--blocks 1,4,8] [--quick] [--report FILE]

`--kernels`: another kernels/ folder; both run in turns, replay by replay, so that what changes on the machine changes
for both. Every replay is checked against an exact sum over poisoned outputs. In the same run: the echo (one word from a
kernel to a host thread and back, one kernel a round, 40 a graph) and the host link's copy rate, which bound what a
collective over host memory can reach.
"""

from __future__ import annotations

import argparse
import ctypes as ct
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import cupy as cp
import numpy as np

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))
from roce_ring import native as rr  # noqa: E402
from roce_ring.gpu.driver import driver  # noqa: E402
from roce_ring.gpu.program import compile_kernels, key_of  # noqa: E402
from roce_ring.modes import modes  # noqa: E402

OPS = 40
WORLD = 4
CAPACITY = 1 << 20
GATHER = "all_gather"
SIZES = (4, 4096, 16384, 61440, 262144, 1048576)


class Rank:
    """A proxy, its region as the GPU sees it, and kernel state in device memory: below AllReduce, so that kernels of
    another version can be compared."""

    def __init__(self, rank: int, session: int) -> None:
        lib = rr.native()
        self.rank, self.layout = rank, lib.layout(WORLD, CAPACITY)
        config = rr.Config(
            struct_bytes=ct.sizeof(rr.Config), world=WORLD, rank=rank, provider=1, slot_bytes=self.layout.slot_bytes,
            late_ms=1000, peer_timeout_ms=5000, dead_ms=5000, idle_spins=20_000_000, nap_us=20, cpu=-1,
        )  # fmt: skip
        config.session[:] = [session, 1]
        config.order[:WORLD] = range(WORLD)
        for peer in range(WORLD):
            config.paths[peer] = 1
            config.hops[peer][0] = 1
        why = ct.create_string_buffer(1024)
        self.proxy = lib.proxy.rr_proxy_create(ct.byref(config), why, len(why))
        if not self.proxy:
            sys.exit(why.value.decode())
        self.region = lib.proxy.rr_proxy_region(self.proxy)
        driver().register(self.region, self.layout.region_bytes)
        self.state = cp.zeros(1024, cp.uint8)  # of any version
        self.queue = driver().new_queue(driver().new_event(), self.region + self.layout.abort)
        self.stream = cp.cuda.Stream(non_blocking=True)
        self.data: list[int] = []  # direct: of all ranks

    def hello(self) -> bytes:
        out = ct.create_string_buffer(rr.HELLO_BYTES)
        rr.native().proxy.rr_proxy_hello(self.proxy, out)
        return out.raw

    def op(self, case: Case, x: Any, out: Any) -> rr.Op:
        op = rr.Op(
            out=out.data.ptr, count=x.size, rows=1, region=self.region, state=self.state.data.ptr, layout=self.layout,
            deadline_ns=7_000_000_000, report_ns=20_000_000, world=WORLD, rank=self.rank, kind=rr.ALL_REDUCE,
            dtype=rr.DTYPES[case.dtype],
        )  # fmt: skip
        if case.mode == GATHER:
            op.kind = rr.ALL_GATHER
            op.width[:WORLD] = [x.nbytes] * WORLD
        else:
            op.mode, op.pieces = modes()[case.mode].value, case.pieces
        setattr(op, "in", x.data.ptr)
        op.data[: len(self.data)] = self.data
        op.order[:WORLD] = range(WORLD)
        op.paths[:WORLD] = [1] * WORLD
        rr.native().kernels.rr_op_seal(ct.byref(op))
        return op


@dataclass(frozen=True)
class Case:
    mode: str
    dtype: str
    bytes: int
    blocks: int
    pieces: int = 1


class Side:
    """One version of the kernels, with a session of its own. `direct`: flags and slots in device memory, which all
    ranks reach."""

    def __init__(self, name: str, kernels: Path, direct: bool = False) -> None:
        self.name = name
        began = time.perf_counter()
        self._kernels = compile_kernels(kernels, ROOT / "proxy" / "include", direct)
        print(f"{name}: {kernels}, NVRTC {time.perf_counter() - began:.1f} s", flush=True)
        lib, session = rr.native(), time.time_ns()
        self.ranks = [Rank(r, session) for r in range(WORLD)]
        hellos = b"".join(r.hello() for r in self.ranks)
        for r in self.ranks:
            rr.call(lib.proxy.rr_proxy_connect, r.proxy, hellos)
        for r in self.ranks:
            rr.call(lib.proxy.rr_proxy_start, r.proxy)
        if direct:
            layout = self.ranks[0].layout
            self._memory = [cp.zeros(layout.region_bytes - layout.flags, cp.uint8) for _ in self.ranks]
            for r in self.ranks:
                r.data = [one.data.ptr - layout.flags for one in self._memory]

    def prepare(self, case: Case) -> None:
        count = case.bytes // np.dtype(case.dtype).itemsize
        results = count * (WORLD if case.mode == GATHER else 1)
        self.xs = [cp.zeros(count, case.dtype) for _ in self.ranks]
        self.outs = [cp.zeros(results, case.dtype) for _ in self.ranks]
        self.ops = [r.op(case, x, out) for r, x, out in zip(self.ranks, self.xs, self.outs, strict=True)]
        self.graphs, self.times, self.wrong = [], [], 0
        for r, op in zip(self.ranks, self.ops, strict=True):
            function = self._kernels[key_of(op.kind, op.mode, op.dtype)][1]
            launch = rr.Launch(op, function, case.blocks, 512)
            setattr(r.queue, "in", getattr(op, "in"))  # a keyword
            r.queue.out, r.queue.to = op.out, r.stream.ptr
            with r.stream:
                r.stream.begin_capture()
                for _ in range(OPS):
                    if code := rr.native().kernels.rr_queue_launch(ct.byref(r.queue), ct.byref(launch)):
                        raise driver().queue_error(code)
                self.graphs.append(r.stream.end_capture())

    def replay(self, case: Case, rng: np.random.Generator, timed: bool) -> None:
        host = [rng.integers(-8, 9, x.size).astype(case.dtype) for x in self.xs]
        for x, out, h in zip(self.xs, self.outs, host, strict=True):
            x.set(h)
            out.fill(np.nan)
        cp.cuda.runtime.deviceSynchronize()
        began = time.perf_counter()
        for r, graph in zip(self.ranks, self.graphs, strict=True):
            graph.launch(r.stream)
        for r in self.ranks:
            r.stream.synchronize()
        if timed:
            self.times.append((time.perf_counter() - began) / OPS * 1e6)
        exact = np.concatenate(host) if case.mode == GATHER else sum(h.astype(np.float64) for h in host)
        self.wrong += sum(int((cp.asnumpy(out).astype(np.float64) != exact).sum()) for out in self.outs)
        words = [int(rr.native().proxy.rr_proxy_abort_word(r.proxy)) for r in self.ranks]
        if any(words):
            sys.exit(f"{self.name}: {case} aborted with words {[hex(w) for w in words]}")

    def stop(self) -> None:
        for r in self.ranks:
            rr.native().proxy.rr_proxy_stop(r.proxy, 1000)

    def median_and_p99(self) -> tuple[float, float]:
        ordered = sorted(self.times)
        return statistics.median(ordered), ordered[min(len(ordered) - 1, int(len(ordered) * 0.99))]


ECHO = r"""
extern "C" __global__ void echo(unsigned long long *count, unsigned long long *asked, unsigned long long *answered) {
    unsigned long long mine = *count + 1, seen;
    asm volatile("st.release.sys.global.u64 [%0], %1;" ::"l"(asked), "l"(mine) : "memory");
    do asm volatile("ld.acquire.sys.global.u64 %0, [%1];" : "=l"(seen) : "l"(answered) : "memory");
    while (seen != mine);
    *count = mine;
}
"""


def echo_us(replays: int) -> float:
    """Median of one round, one kernel a round, 40 a graph."""
    with tempfile.TemporaryDirectory() as folder:
        library = f"{folder}/echo.so"
        subprocess.run(
            ["cc", "-O2", "-shared", "-fPIC", "-o", library, str(Path(__file__).with_name("echo.c"))], check=True
        )
        lib = ct.CDLL(library)
    words = cp.cuda.alloc_pinned_memory(4096)
    ct.memset(words.ptr, 0, 4096)
    host = threading.Thread(target=lib.echo_run, args=(ct.c_void_p(words.ptr), ct.c_void_p(words.ptr + 128)))
    host.start()
    kernel = cp.RawModule(code=ECHO, options=("-std=c++17",)).get_function("echo")
    count, stream = cp.zeros(1, cp.uint64), cp.cuda.Stream(non_blocking=True)
    arguments = (count.data.ptr, words.ptr, words.ptr + 128)
    times = []
    with stream:
        stream.begin_capture()
        for _ in range(OPS):
            kernel((1,), (1,), tuple(np.uint64(a) for a in arguments))
        graph = stream.end_capture()
        for _ in range(replays + 3):
            began = time.perf_counter()
            graph.launch(stream)
            stream.synchronize()
            times.append((time.perf_counter() - began) / OPS * 1e6)
    lib.echo_stop()
    host.join()
    return statistics.median(times[3:])


def link_gb_per_s() -> tuple[float, float]:
    """Copy rate from host to device and back."""
    size = 256 << 20
    host, device = cp.cuda.alloc_pinned_memory(size), cp.empty(size, cp.uint8)
    stream, rates = cp.cuda.Stream(non_blocking=True), []
    for into in (True, False):
        best = 1e9
        for _ in range(5):
            began = time.perf_counter()
            if into:
                device.data.copy_from_host_async(ct.c_void_p(host.ptr), size, stream)
            else:
                device.data.copy_to_host_async(ct.c_void_p(host.ptr), size, stream)
            stream.synchronize()
            best = min(best, time.perf_counter() - began)
        rates.append(size / best / 1e9)
    return rates[0], rates[1]


def cases(blocks: list[int], quick: bool) -> list[Case]:
    out = [Case("full", "float32", size, b) for size in (*SIZES[:3], 32768, *SIZES[3:]) for b in blocks]
    out += [Case("full", "float32", size, b, 4) for size in (32768, *SIZES[3:]) for b in blocks]
    out += [Case("payload_rsag", "float32", size, b) for size in SIZES[1:] for b in blocks]
    out += [Case(GATHER, "float32", size, b) for size in (4096, 49152) for b in blocks]
    if not quick:
        rest = [name for name, mode in modes().items() if not mode.access and name not in ("full", "payload_rsag")]
        out += [Case(name, "float32", size, b) for name in rest for size in SIZES[1:] for b in blocks]
        out += [Case("full", "float16", size, 4) for size in SIZES[1:5]]
    return out


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--kernels", type=Path, help="another kernels/ folder to compare with")
    parser.add_argument("--blocks", default="1,2,4,8")
    parser.add_argument("--replays", type=int, default=100)
    parser.add_argument("--quick", action="store_true", help="full, payload_rsag and all_gather only")
    parser.add_argument("--report", type=Path)
    given = parser.parse_args()
    device = cp.cuda.runtime.getDeviceProperties(0)["name"].decode()
    echo, (down, up) = echo_us(given.replays), link_gb_per_s()
    lines = [
        f"device: {device}, CuPy {cp.__version__}, CUDA {cp.cuda.runtime.runtimeGetVersion()}",
        f"echo in a graph: {echo:.2f} us; host link: {down:.1f} GB/s to the device, {up:.1f} GB/s back",
    ]
    print("\n".join(lines), flush=True)
    sides = [Side("this", ROOT / "kernels")]
    if given.kernels:
        sides.append(Side("other", given.kernels))
    head = "".join(f"  {one.name + ' us':>10} {'p99':>7} {'/echo':>6}" for one in sides)
    lines.append(f"{'mode':<20} {'dtype':<8} {'bytes':>7} {'blocks':>6} {'pieces':>6}{head}   wrong")
    print(lines[-1], flush=True)
    rng, wrong = np.random.default_rng(7), 0
    fastest: dict[int, float] = {}  # full, by size
    for case in cases([int(b) for b in given.blocks.split(",")], given.quick):
        for side in sides:
            side.prepare(case)
        for replay in range(given.replays + 3):
            for side in sides if replay % 2 else sides[::-1]:
                side.replay(case, rng, replay >= 3)
        text = ""
        for side in sides:
            median, p99 = side.median_and_p99()
            if case.mode == "full" and side is sides[0]:
                fastest[case.bytes] = min(median, fastest.get(case.bytes, median))
            text += f"  {median:>10.1f} {p99:>7.1f} {median / echo:>6.2f}"
        found = sum(side.wrong for side in sides)
        wrong += found
        lines.append(
            f"{case.mode:<20} {case.dtype:<8} {case.bytes:>7} {case.blocks:>6} {case.pieces:>6}{text} {found:>7}"
        )
        print(lines[-1], flush=True)
    # A rank writes its own bytes and reads those of the others, all over one link, each way by itself.
    moved = echo + WORLD * 61440 * (1 / up + (WORLD - 1) / down) / 1e3
    lines += [
        f"figure: full 4 KiB over the echo in a graph ({echo:.2f} us) | 2.2 | {fastest[4096] / echo:.2f}",
        f"figure: full 60 KiB over echo and bytes at link rate ({moved:.1f} us) | 1.3 | {fastest[61440] / moved:.2f}",
        f"latency: wrong values {wrong}",
    ]
    print("\n".join(lines[-3:]))
    if given.report:
        given.report.write_text("\n".join(lines) + "\n")
    for side in sides:
        side.stop()
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
