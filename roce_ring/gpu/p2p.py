"""Does one GPU's access to another's memory work? Tried with real kernels: what drivers and tables say about it is no
proof. For a child process, since a failed try may hang for good (gpu/verdicts.py gives it up).

    python -m roce_ring.gpu.p2p FROM TO[=PRIMITIVE,...]...     # PCI bus ids; TO may be FROM itself

prints [] once CUDA has started, then a JSON list a try as it ends: TO, the primitive, and what went wrong, or "".
"""

from __future__ import annotations

import json
import os
import sys
from typing import Any

from .program import import_cupy

# Of a pair, in the order in which they are tried; `concurrent`: stores and flags of all pairs at once, both ways.
PRIMITIVES = ("access", "copy", "stores", "loads", "flags", "graph", "concurrent")
ALREADY_ENABLED = 704  # cudaErrorPeerAccessAlreadyEnabled
_UNITS = 1 << 16  # 16-byte units that are stored and loaded
_ROUNDS = 200
_NO_ACCESS = "the driver allows no peer access between them"

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


class _Side:
    """One GPU of a pair: memory that the other reaches, and a stream to run on."""

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


class Pair:
    """What `a` does to `b`. Every try takes another pattern and goes on counting rounds, so that nothing old passes."""

    def __init__(self, cupy: Any, a: str, b: str) -> None:
        self._cupy, self._a, self._b = cupy, _Side(cupy, a), _Side(cupy, b)
        self._units, self._seed, self._rounds = cupy.uint32(_UNITS), 0, 0

    def access(self) -> bool:
        return self._a.may_reach(self._b) and self._b.may_reach(self._a)

    def copy(self) -> int:
        """By the copy engine."""
        a, b = self._a, self._b
        a.run("fill", a.memory, self._units, self._fresh())
        runtime, size = self._cupy.cuda.runtime, _UNITS * 16
        with a.on():
            runtime.memcpyPeerAsync(b.memory.data.ptr, b.device, a.memory.data.ptr, a.device, size, a.stream.ptr)
        return self._owner_sees()

    def stores(self) -> int:
        self._a.run("fill", self._b.memory, self._units, self._fresh())
        return self._owner_sees()

    def loads(self) -> int:
        a, b = self._a, self._b
        b.run("fill", b.memory, self._units, self._fresh())
        b.stream.synchronize()
        a.run("check", b.memory, self._units, self._cupy.uint32(self._seed), a.wrong)
        return a.count_wrong()

    def flags(self) -> int:
        self._play(self._a, self._b)
        self._play(self._b, self._a)
        return self._played()

    def graph(self) -> int:
        """Stores and flags out of a captured graph, replayed by itself."""
        a = self._a
        with a.on(), a.stream:
            a.stream.begin_capture()
            a.run("fill", self._b.memory, self._units, self._fresh())
            self._play(a, self._b)
            a.stream.end_capture().launch(a.stream)
        self._play(self._b, a)
        return self._played() + self._owner_sees()

    def begin(self) -> None:
        """Of `concurrent`; no waiting."""
        seed = self._fresh()
        for one, other in ((self._a, self._b), (self._b, self._a)):
            one.run("fill", other.memory, self._units, seed)
            self._play(one, other)

    def end(self) -> int:
        return self._played() + self._owner_sees()

    def _fresh(self) -> Any:
        self._seed += 1
        return self._cupy.uint32(self._seed)

    def _owner_sees(self) -> int:
        """Through its own memory."""
        self._a.stream.synchronize()
        self._b.run("check", self._b.memory, self._units, self._cupy.uint32(self._seed), self._b.wrong)
        return self._b.count_wrong()

    def _play(self, one: _Side, other: _Side) -> None:
        first, rounds = self._cupy.uint64(self._rounds), self._cupy.uint32(_ROUNDS)
        one.run("ping_pong", other.flags, one.flags, first, rounds, one.wrong, blocks=1)

    def _played(self) -> int:
        self._rounds += _ROUNDS
        return self._a.count_wrong() + self._b.count_wrong()


def main() -> int:
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)  # whatever a library prints is not an answer
    cupy, mine, pairs = import_cupy(), sys.argv[1], {}
    cupy.cuda.Device(cupy.cuda.runtime.deviceGetByPCIBusId(mine)).synchronize()
    print("[]", file=answers)

    def say(to: str, primitive: str, wrong: str | int) -> None:
        sentence = f"{wrong} values were wrong or did not come" if wrong and isinstance(wrong, int) else wrong or ""
        print(json.dumps([to, primitive, sentence]), file=answers)

    for wanted in sys.argv[2:]:
        to, _, listed = wanted.partition("=")
        primitives = listed.split(",") if listed else PRIMITIVES
        pair = Pair(cupy, mine, to)
        reaches = pair.access()
        if reaches and "concurrent" in primitives:
            pairs[to] = pair
        for primitive in primitives:
            if not reaches:
                say(to, primitive, _NO_ACCESS)
            elif primitive != "concurrent":
                say(to, primitive, 0 if primitive == "access" else getattr(pair, primitive)())
    for pair in pairs.values():
        pair.begin()
    for to, pair in pairs.items():
        say(to, "concurrent", pair.end())
    return 0


if __name__ == "__main__":
    sys.exit(main())
