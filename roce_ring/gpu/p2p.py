"""Do stores, loads and flags of one GPU reach another's memory? Tried with real kernels, in a child process that is
given up after a time: what drivers and tables say about peer access is no proof, and a failed try may hang for good.

    python -m roce_ring.gpu.p2p BUS_ID BUS_ID...     # all ordered pairs; one alone is tried with itself

prints a JSON object a pair: "from", "to", and for each primitive what went wrong, or "".
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from typing import Any

from .program import import_cupy

PRIMITIVES = ("stores", "loads", "flags", "graph")
LIMIT_S = 60.0
ALREADY_ENABLED = 704  # cudaErrorPeerAccessAlreadyEnabled
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


def verdicts(buses: list[str]) -> list[dict[str, str]]:
    """Of every ordered pair of these GPUs, by PCI bus id: what main() prints."""
    # The child looks devices up by bus id, so it has to see all of them.
    environment = {name: value for name, value in os.environ.items() if name != "CUDA_VISIBLE_DEVICES"}
    command = [sys.executable, "-m", "roce_ring.gpu.p2p", *buses]
    with tempfile.TemporaryFile("w+") as said, tempfile.TemporaryFile("w+") as errors:
        try:
            status = subprocess.run(
                command,
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=said,
                stderr=errors,
                timeout=LIMIT_S,
                check=False,
            ).returncode
            why = f"the test ended with status {status}"
        except subprocess.TimeoutExpired:
            why = f"it, or a pair before it, hung for {LIMIT_S:g} s"
        for file in (said, errors):
            file.seek(0)
        found = [json.loads(line) for line in said if line.startswith("{") and line.endswith("}\n")]
        last = errors.read().strip().splitlines()[-1:]
    told = {(one["from"], one["to"]) for one in found}
    why += "".join(f": {line[:200]}" for line in last)
    missing = [pair for pair in pairs(buses) if pair not in told]
    return found + [{"from": a, "to": b, **dict.fromkeys(PRIMITIVES, why)} for a, b in missing]


def pairs(buses: list[str]) -> list[tuple[str, str]]:
    return [(a, b) for a in buses for b in buses if a != b or len(buses) == 1]


class _Side:
    """One GPU: memory that others reach, and a stream to run on."""

    def __init__(self, cupy: Any, bus: str) -> None:
        self._cupy, self.device = cupy, cupy.cuda.runtime.deviceGetByPCIBusId(bus)
        with self.on():
            self.stream = cupy.cuda.Stream(non_blocking=True)
            self.memory, self.flags = cupy.zeros(_UNITS * 16, cupy.uint8), cupy.zeros(32, cupy.uint64)
            self.wrong = cupy.zeros(1, cupy.uint32)
            module = cupy.RawModule(code=_SOURCE, options=("-std=c++17",))
            self.kernels = {name: module.get_function(name) for name in ("fill", "check", "ping_pong")}
            cupy.cuda.runtime.deviceSynchronize()

    def may_reach(self, other: _Side) -> bool:
        """By the driver's word; only then is the rest tried."""
        if self.device == other.device:
            return True
        runtime = self._cupy.cuda.runtime
        if not runtime.deviceCanAccessPeer(self.device, other.device):
            return False
        with self.on():
            try:
                runtime.deviceEnablePeerAccess(other.device)
            except runtime.CUDARuntimeError as error:
                return int(error.status) == ALREADY_ENABLED
        return True

    def reset(self) -> None:
        with self.on():
            self.flags.fill(0)
            self._cupy.cuda.runtime.deviceSynchronize()

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
    if not (a.may_reach(b) and b.may_reach(a)):
        return dict.fromkeys(PRIMITIVES, "the driver allows no peer access between them")
    a.reset()
    b.reset()
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
    cupy, buses = import_cupy(), sys.argv[1:]
    sides = {bus: _Side(cupy, bus) for bus in buses}
    for a, b in pairs(buses):
        print(json.dumps({"from": a, "to": b, **_try_all(cupy, sides[a], sides[b])}), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
