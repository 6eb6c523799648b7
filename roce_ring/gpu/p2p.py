"""Do stores, loads and flags of one GPU reach another's memory? Tried with real kernels, in a child process that is
given up after a time: what drivers and tables say about peer access is no proof, and a failed try may hang for good.

    python -m roce_ring.gpu.p2p BUS_ID BUS_ID        # prints a JSON object: primitive -> what went wrong, or ""
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import Any

from .program import import_cupy

PRIMITIVES = ("stores", "loads", "flags", "graph")
LIMIT_S = 60.0
_UNITS = 1 << 16  # 16-byte units that are stored and loaded
_ROUNDS = 200

# One kernel a primitive. Patterns are a function of the unit's number, so that an old or a lost one shows.
_SOURCE = r"""
typedef unsigned long long u64;
__device__ uint4 pattern(unsigned i, unsigned seed) { return make_uint4(i, i ^ seed, i * 2654435761u, seed); }
extern "C" __global__ void fill(uint4 *to, unsigned units, unsigned seed) {
    for (unsigned i = blockIdx.x * blockDim.x + threadIdx.x; i < units; i += gridDim.x * blockDim.x)
        asm volatile("st.global.v4.u32 [%0], {%1,%2,%3,%4};" ::"l"(to + i), "r"(pattern(i, seed).x),
                     "r"(pattern(i, seed).y), "r"(pattern(i, seed).z), "r"(pattern(i, seed).w) : "memory");
    __threadfence_system();
}
extern "C" __global__ void check(const uint4 *from, unsigned units, unsigned seed, unsigned *wrong) {
    for (unsigned i = blockIdx.x * blockDim.x + threadIdx.x; i < units; i += gridDim.x * blockDim.x) {
        uint4 v, p = pattern(i, seed);
        asm volatile("ld.relaxed.sys.global.v4.u32 {%0,%1,%2,%3}, [%4];"
                     : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w) : "l"(from + i) : "memory");
        if (v.x != p.x || v.y != p.y || v.z != p.z || v.w != p.w) atomicAdd(wrong, 1u);
    }
}
/* Stores a payload word and behind it a flag at the other side, waits for the other's, and looks at the payload. */
extern "C" __global__ void ping_pong(u64 *theirs, u64 *mine, u64 first, unsigned rounds, unsigned *wrong) {
    u64 began, now, seen;
    asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(began));
    for (u64 r = first + 1; r <= first + rounds; r++) {
        asm volatile("st.relaxed.sys.global.u64 [%0], %1;" ::"l"(theirs + 16), "l"(r * 3) : "memory");
        __threadfence_system();
        asm volatile("st.relaxed.sys.global.u64 [%0], %1;" ::"l"(theirs), "l"(r) : "memory");
        do {
            asm volatile("ld.acquire.sys.global.u64 %0, [%1];" : "=l"(seen) : "l"(mine) : "memory");
            asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(now));
            if (now - began > 5000000000ull) { atomicAdd(wrong, 1000000u); return; }
        } while (seen < r);
        asm volatile("ld.relaxed.sys.global.u64 %0, [%1];" : "=l"(seen) : "l"(mine + 16) : "memory");
        if (seen < r * 3) atomicAdd(wrong, 1u);
    }
}
"""


def verdict(mine: str, theirs: str) -> dict[str, str]:
    """Of accesses from GPU `mine` to memory of GPU `theirs`, by PCI bus id: what went wrong with each of PRIMITIVES,
    "" for nothing."""
    # The child looks devices up by bus id, so it has to see all of them.
    environment = {name: value for name, value in os.environ.items() if name != "CUDA_VISIBLE_DEVICES"}
    command = [sys.executable, "-m", "roce_ring.gpu.p2p", mine, theirs]
    try:
        ran = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=LIMIT_S, check=False)
    except subprocess.TimeoutExpired:
        return dict.fromkeys(PRIMITIVES, f"hung for {LIMIT_S:g} s")
    try:
        found = json.loads(ran.stdout.splitlines()[-1])
        return {one: str(found[one]) for one in PRIMITIVES}
    except (IndexError, ValueError, KeyError, TypeError):
        last = (ran.stderr.strip().splitlines() or ["no word"])[-1]
        return dict.fromkeys(PRIMITIVES, f"the test ended with status {ran.returncode}: {last[:200]}")


class _Side:
    """One GPU of the pair: memory that the other reaches, and streams to run on."""

    def __init__(self, cupy: Any, device: int, other: int) -> None:
        self._cupy, self.device = cupy, device
        with self.on():
            if device != other:
                cupy.cuda.runtime.deviceEnablePeerAccess(other)
            self.stream = cupy.cuda.Stream(non_blocking=True)
            self.memory, self.flags = cupy.zeros(_UNITS * 16, cupy.uint8), cupy.zeros(32, cupy.uint64)
            self.wrong = cupy.zeros(1, cupy.uint32)
            module = cupy.RawModule(code=_SOURCE, options=("-std=c++17",))
            self.kernels = {name: module.get_function(name) for name in ("fill", "check", "ping_pong")}
            cupy.cuda.runtime.deviceSynchronize()

    def on(self) -> Any:
        return self._cupy.cuda.Device(self.device)

    def run(self, name: str, *arguments: object, blocks: int = 8) -> None:
        # Addresses, not arrays: CuPy looks where an array lives.
        plain = tuple(
            self._cupy.uint64(one.data.ptr) if isinstance(one, self._cupy.ndarray) else one for one in arguments
        )
        with self.on(), self.stream:
            self.kernels[name]((blocks,), (256 if blocks > 1 else 1,), plain)

    def count_wrong(self) -> int:
        with self.on():
            self.stream.synchronize()
            found = int(self.wrong.get()[0])
            self.wrong.fill(0)
            self._cupy.cuda.runtime.deviceSynchronize()
        return found


def _said(wrong: int) -> str:
    return f"{wrong} of the values were wrong or did not come" if wrong else ""


def _try_all(cupy: Any, a: _Side, b: _Side) -> dict[str, str]:
    u32, u64 = cupy.uint32, cupy.uint64
    units = u32(_UNITS)
    found = {}

    def stores(seed: int) -> None:
        a.run("fill", b.memory, units, u32(seed))

    stores(1)
    a.stream.synchronize()
    b.run("check", b.memory, units, u32(1), b.wrong)  # the owner looks, through its own memory
    found["stores"] = _said(b.count_wrong())

    b.run("fill", b.memory, units, u32(2))
    b.stream.synchronize()
    a.run("check", b.memory, units, u32(2), a.wrong)
    found["loads"] = _said(a.count_wrong())

    a.run("ping_pong", b.flags, a.flags, u64(0), u32(_ROUNDS), a.wrong, blocks=1)
    b.run("ping_pong", a.flags, b.flags, u64(0), u32(_ROUNDS), b.wrong, blocks=1)
    found["flags"] = _said(a.count_wrong() + b.count_wrong())

    with a.on(), a.stream:
        a.stream.begin_capture()
        stores(3)
        a.run("ping_pong", b.flags, a.flags, u64(_ROUNDS), u32(_ROUNDS), a.wrong, blocks=1)
        graph = a.stream.end_capture()
        graph.launch(a.stream)
    b.run("ping_pong", a.flags, b.flags, u64(_ROUNDS), u32(_ROUNDS), b.wrong, blocks=1)
    b.run("check", b.memory, units, u32(3), b.wrong)
    found["graph"] = _said(a.count_wrong() + b.count_wrong())
    return found


def main() -> int:
    cupy = import_cupy()
    a, b = (cupy.cuda.runtime.deviceGetByPCIBusId(bus) for bus in sys.argv[1:3])
    if a != b and not cupy.cuda.runtime.deviceCanAccessPeer(a, b):
        print(json.dumps(dict.fromkeys(PRIMITIVES, "the driver allows no peer access between them")))
        return 0
    print(json.dumps(_try_all(cupy, _Side(cupy, a, b), _Side(cupy, b, a))))
    return 0


if __name__ == "__main__":
    sys.exit(main())
