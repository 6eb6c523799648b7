"""Host time of an eager call, beside what the driver takes for the calls in it.

    python tests/gpu/eager.py

Four ranks as processes under MPS, then two without, which take turns on the GPU. Bursts of 20 calls, the median of 50
bursts; every burst is finished before the next, so that no launch waits for room in the stream. Beside it the first
call of a burst alone: the thread comes from a long wait there, and caches are cold.

The limit holds under MPS: ranks that share a GPU need it.
"""

from __future__ import annotations

import ctypes as ct
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
from roce_ring.bench.mps import mps
from tests.gpu.world import Rank, run

BURST, BURSTS = 20, 50
LIMIT_US = 12.0  # of a call with an output given


def _median_us(rank: Rank, burst: Callable[[], float]) -> float:
    """`burst`: one burst, returns us a call."""
    times = []
    for _ in range(BURSTS):
        times.append(burst())
        rank.stream.synchronize()
    return round(statistics.median(times), 2)


def _calls(rank: Rank, call: Callable[[], object]) -> tuple[float, float]:
    """us a call, and of a burst's first call."""
    firsts = []

    def burst() -> float:
        began = time.perf_counter()
        call()
        firsts.append((time.perf_counter() - began) * 1e6)
        for _ in range(BURST - 1):
            call()
        return (time.perf_counter() - began) / BURST * 1e6

    return _median_us(rank, burst), round(statistics.median(firsts), 2)


def _driver(rank: Rank, operation: Callable[[], object]) -> dict[str, tuple[float, ...]]:
    """Each call's own time: launches of the same kernel with an argument of the same size, which leaves at once; also
    into a stream where an operation runs or waits."""
    from roce_ring.gpu.driver import driver
    from roce_ring.gpu.program import key_of, program
    from roce_ring.native import ALL_REDUCE, DTYPES, DeviceState, Op

    with tempfile.TemporaryDirectory() as folder:
        library = f"{folder}/eager.so"
        source = Path(__file__).with_suffix(".c")
        subprocess.run(["cc", "-O2", "-shared", "-fPIC", "-o", library, str(source)], check=True)
        timers = ct.CDLL(library)
    for one in (timers.time_launches, timers.time_records, timers.time_questions):
        one.restype = ct.c_double
    import cupy as cp

    state = cp.zeros(ct.sizeof(DeviceState), cp.uint8)
    state[DeviceState.failed.offset] = 1
    rank.stream.synchronize()
    op, event = Op(state=state.data.ptr), driver().new_event()
    kernel = ct.c_void_p(program(0, False, False).functions[key_of(ALL_REDUCE, 1, DTYPES["bfloat16"])])
    queue, stream = driver().new_queue(event, 0), ct.c_void_p(rank.stream.ptr)

    def timed(function: Any, *arguments: Any) -> Callable[[], float]:
        return lambda: float(function(*arguments, BURST)) / 1000

    def behind() -> float:
        operation()
        return launches()

    at = {name: ct.c_void_p(getattr(queue, name)) for name in
          ("launch_kernel", "record_event", "is_capturing", "get_context")}  # fmt: skip
    launches = timed(timers.time_launches, at["launch_kernel"], kernel, 1, stream, ct.byref(op))
    bursts = {
        "launch": launches,
        "launch behind an operation": behind,
        "event record": timed(timers.time_records, at["record_event"], ct.c_void_p(event), stream),
        "capture and context asked": timed(timers.time_questions, at["is_capturing"], at["get_context"], stream),
    }
    return {f"driver: {name}": (_median_us(rank, burst),) for name, burst in bursts.items()}


def scenario(rank: Rank) -> dict[str, tuple[float, ...]]:
    import cupy as cp
    import torch

    x = torch.zeros(2048, device="cuda", dtype=torch.bfloat16)
    out = torch.empty_like(x)
    y = cp.zeros(2048, cp.float16)
    y_out = cp.empty_like(y)
    reduce, gathered = rank.comm.all_reduce, cp.empty(2048 * rank.world, cp.float16)
    calls: dict[str, Callable[[], object]] = {
        "torch, out given": lambda: reduce(x, out),
        "torch, in place": lambda: reduce(x, x),
        "torch, new output": lambda: reduce(x),
        "CuPy, out given": lambda: reduce(y, y_out),
        "CuPy, new output": lambda: reduce(y),
        "CuPy all_gather, out given": lambda: rank.comm.all_gather(y, 0, gathered),
    }
    found = _driver(rank, calls["torch, out given"])
    for name, call in calls.items():
        found[name] = _calls(rank, call)
        rank.meet()
    return found


def tell(what: str, found: list[dict[str, tuple[float, ...]]]) -> None:
    print(f"eager, {what}, median over the ranks: {'us a call':>20} {'the first':>10}", flush=True)
    for name, figures in found[0].items():
        columns = [f"{statistics.median(one[name][i] for one in found):>10.2f}" for i in range(len(figures))]
        print(f"  {name:<48} {' '.join(columns)}", flush=True)


def main() -> int:
    with mps():
        found = run(scenario, 4, as_threads=False)
    tell("4 ranks under MPS", found)
    turns = run(scenario, 2, as_threads=False)
    tell("2 ranks without MPS", turns)
    for what, ranks in (("4 ranks under MPS", found), ("2 ranks that take turns", turns)):
        took = statistics.median(one["torch, out given"][0] for one in ranks)
        print(f"figure: host time of an eager call, output given, {what} (us) | {LIMIT_US} | {took:.1f}")
    slow = statistics.median(one["torch, out given"][0] for one in found) > LIMIT_US
    print(f"eager: {'FAILED: above' if slow else 'passed: within'} {LIMIT_US} us with an output given, under MPS")
    return 1 if slow else 0


if __name__ == "__main__":
    sys.exit(main())
