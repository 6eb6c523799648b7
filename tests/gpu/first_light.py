"""First light on a GPU: four ranks as four streams of one process, the shm proxy, collectives captured in CUDA graphs.

    python tests/gpu/first_light.py [--report FILE]

Needs an NVIDIA GPU, CuPy, and the C libraries in roce_ring/_lib. Not part of CI, which has no GPU. Every rank has its
own region in shared memory, registered with the driver so that GPU and proxy see the same addresses, and its own
progress thread. Every replay is checked against an exact sum; outputs are poisoned first.
"""

from __future__ import annotations

import argparse
import ctypes as ct
import statistics
import sys
import time
from pathlib import Path

import cupy as cp
import numpy as np

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))
from roce_ring import native as rr  # noqa: E402

OPS_PER_GRAPH = 40
REPLAYS = 100
WORLD = 4
KERNEL_OF_MODE = {1: "full", 2: "full", 3: "payload_rsag", 4: "payload_rsag", 5: "lanes", 6: "lanes", 7: "lanes"}
# (dtype, bytes, blocks) that every mode runs; sizes without a round number of packs among them.
CASES = [
    ("float32", 4096, 1),
    ("float32", 4096, 4),
    ("float32", 61440, 4),
    ("float32", 61440, 8),
    ("float32", 262144, 8),
    ("float16", 61440, 8),
    ("float16", 34, 2),
    ("float32", 4, 1),
    ("float32", 16388, 3),
]

cuda = ct.CDLL("libcuda.so.1")


def must(code: int, what: str) -> None:
    if code:
        sys.exit(f"{what} failed with CUDA error {code}")


class Rank:
    """A proxy, its region as the GPU sees it, and kernel state in device memory."""

    def __init__(self, lib: rr.Native, rank: int, capacity: int, session: int) -> None:
        self.lib, self.rank = lib, rank
        self.layout = lib.layout(WORLD, capacity)
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
        portable_and_mapped = 3
        must(
            cuda.cuMemHostRegister_v2(
                ct.c_void_p(self.region), ct.c_size_t(self.layout.region_bytes), portable_and_mapped
            ),
            "cuMemHostRegister",
        )
        seen = ct.c_void_p()
        must(
            cuda.cuMemHostGetDevicePointer_v2(ct.byref(seen), ct.c_void_p(self.region), 0), "cuMemHostGetDevicePointer"
        )
        if seen.value != self.region:
            sys.exit(f"the GPU sees the region at {seen.value:#x}, the host at {self.region:#x}; they must be equal")
        self.state = cp.zeros(ct.sizeof(rr.DeviceState), cp.uint8)
        self.stream = cp.cuda.Stream(non_blocking=True)

    def hello(self) -> bytes:
        out = ct.create_string_buffer(rr.HELLO_BYTES)
        self.lib.proxy.rr_proxy_hello(self.proxy, out)
        return out.raw

    def op(self, mode: int, dtype: str, x: cp.ndarray, out: cp.ndarray) -> rr.Op:
        op = rr.Op(
            out=out.data.ptr, count=x.size, region=self.region, state=self.state.data.ptr, layout=self.layout,
            deadline_ns=7_000_000_000, report_ns=20_000_000, world=WORLD, rank=self.rank, kind=rr.ALL_REDUCE, mode=mode,
            dtype=rr.DTYPES[dtype],
        )  # fmt: skip
        setattr(op, "in", x.data.ptr)
        op.order[:WORLD] = range(WORLD)
        for peer in range(WORLD):
            op.paths[peer] = 1
        self.lib.kernels.rr_op_seal(ct.byref(op))
        return op


def launch(function: int, op: rr.Op, blocks: int, threads: int, stream: int) -> None:
    arguments = (ct.c_void_p * 1)(ct.cast(ct.byref(op), ct.c_void_p))
    must(
        cuda.cuLaunchKernel(
            ct.c_void_p(function), blocks, 1, 1, threads, 1, 1, 0, ct.c_void_p(stream), arguments, None
        ),
        "cuLaunchKernel",
    )


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--report", type=Path)
    parser.add_argument("--quick", action="store_true", help="few replays; for sanitizers")
    arguments = parser.parse_args()
    replays = 3 if arguments.quick else REPLAYS
    lib = rr.native()
    source = (ROOT / "kernels" / "roce_ring_kernels.cu").read_text()
    options = ("-std=c++17", f"-I{ROOT / 'kernels'}", f"-I{ROOT / 'proxy' / 'include'}")
    began = time.perf_counter()
    module = cp.RawModule(code=source, options=options, backend="nvrtc")
    module.compile()
    device = cp.cuda.runtime.getDeviceProperties(0)["name"].decode()
    lines = [f"device: {device}, CuPy {cp.__version__}, CUDA {cp.cuda.runtime.runtimeGetVersion()}"]
    lines.append(f"NVRTC compile: {time.perf_counter() - began:.1f} s")
    functions = {}
    for kind in ("full", "payload_rsag", "lanes"):
        for dtype in ("float32", "float16", "bfloat16"):
            functions[kind, dtype] = module.get_function(f"rr_{kind}_{dtype}").kernel.ptr
    session = time.time_ns()
    ranks = [Rank(lib, r, 1 << 20, session) for r in range(WORLD)]
    hellos = b"".join(r.hello() for r in ranks)
    for r in ranks:
        rr.call(lib.proxy.rr_proxy_connect, r.proxy, hellos)
    for r in ranks:
        rr.call(lib.proxy.rr_proxy_start, r.proxy)

    wrong_total = 0
    names = [line.split()[1].lower() for line in lib.kernels.rr_mode_table().decode().splitlines()]
    lines.append("mode                  dtype     bytes  blocks   us/op median     p99   wrong")
    rng = np.random.default_rng(7)
    for mode, name in enumerate(names, 1):
        cases = CASES.copy()
        if name == "full":
            cases += [("float32", 4096, 2), ("float32", 4096, 8), ("float32", 61440, 1), ("float32", 61440, 2)]
        for dtype, size, blocks in cases:
            count = size // np.dtype(dtype).itemsize
            xs = [cp.zeros(count, dtype) for _ in ranks]
            outs = [cp.full(count, np.nan, dtype) for _ in ranks]
            ops = [r.op(mode, dtype, x, out) for r, x, out in zip(ranks, xs, outs, strict=True)]
            function = functions[KERNEL_OF_MODE[mode], dtype]
            graphs = []
            for r, op in zip(ranks, ops, strict=True):
                with r.stream:
                    r.stream.begin_capture()
                    for _ in range(OPS_PER_GRAPH):
                        launch(function, op, blocks, 512, r.stream.ptr)
                    graphs.append(r.stream.end_capture())
            times, wrong = [], 0
            for replay in range(replays + 3):
                host = [rng.integers(-8, 9, count).astype(dtype) for _ in ranks]
                for x, out, h in zip(xs, outs, host, strict=True):
                    x.set(h)
                    out.fill(np.nan)
                cp.cuda.runtime.deviceSynchronize()
                began = time.perf_counter()
                for r, graph in zip(ranks, graphs, strict=True):
                    graph.launch(r.stream)
                for r in ranks:
                    r.stream.synchronize()
                if replay >= 3:
                    times.append((time.perf_counter() - began) / OPS_PER_GRAPH * 1e6)
                exact = sum(h.astype(np.float64) for h in host)
                wrong += sum(int((cp.asnumpy(out).astype(np.float64) != exact).sum()) for out in outs)
                words = [int(lib.proxy.rr_proxy_abort_word(r.proxy)) for r in ranks]
                if any(words):
                    sys.exit(
                        f"{name} {dtype} {size} blocks {blocks}: aborted with words {[hex(w) for w in words]}\n"
                        + "\n".join(lines)
                    )
            wrong_total += wrong
            p99 = sorted(times)[int(len(times) * 0.99)] if len(times) > 1 else times[0]
            median = statistics.median(times)
            lines.append(f"{name:<20}  {dtype:<8} {size:>7} {blocks:>6} {median:>12.1f} {p99:>12.1f} {wrong:>7}")
            print(lines[-1], flush=True)
    lines.append(f"wrong values: {wrong_total}")
    for r in ranks:
        stats = rr.Stats()
        lib.proxy.rr_proxy_stats(r.proxy, ct.byref(stats))
        lines.append(f"rank {r.rank}: {stats.commands} commands, {stats.commands_asleep} found the proxy asleep")
        lib.proxy.rr_proxy_stop(r.proxy, 1000)
    text = "\n".join(lines)
    print(text)
    if arguments.report:
        arguments.report.write_text(text + "\n")
    sys.exit(1 if wrong_total else 0)


if __name__ == "__main__":
    main()
