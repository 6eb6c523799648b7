"""One rank of SGLang's own distributed code on a CPU: sglang_rank.py RANK WORLD PORT SCENARIO. Its last line is JSON.

SGLang leaves CPU tensors to torch.distributed before it looks for a custom all-reduce, so ours say they are elsewhere;
its operators have a kernel for CUDA only, so the same functions are registered for the CPU. The rest is SGLang's.

Scenarios: `routed` and `declined` (many collectives, checked), `lost` (the last rank dies), `targets` (no group at all:
what is hooked), `hooked` (the same where an older SGLang needs packages that nobody needs here).
"""

from __future__ import annotations

import json
import logging
import os
import signal
import sys
import time
from typing import Any

import torch
import torch.distributed as dist

from tests.engines.stand_in import stand_in

RANK, WORLD, PORT = map(int, sys.argv[1:4])
SCENARIO = sys.argv[4]
BF16, FP16, FP32 = torch.bfloat16, torch.float16, torch.float32
HOOKED = ("roce_ring.communicator", "torch", "grpc", "cupy")


class Elsewhere(torch.Tensor):
    """A CPU tensor that SGLang takes for one of a GPU."""

    @property
    def is_cpu(self) -> bool:  # type: ignore[override]
        return False


def of(rank: int, shape: tuple[int, ...], dtype: torch.dtype, seed: int) -> torch.Tensor:
    """Small whole numbers, whose sum is exact in any order."""
    return torch.randint(-8, 9, shape, generator=torch.Generator().manual_seed(1000 * seed + rank)).to(dtype)


def everybody(shape: tuple[int, ...], dtype: torch.dtype, seed: int) -> list[torch.Tensor]:
    return [of(rank, shape, dtype, seed) for rank in range(WORLD)]


def plain(x: torch.Tensor) -> torch.Tensor:
    return x.as_subclass(torch.Tensor)


class Group:
    """SGLang's tensor-parallel group, and how often a collective of it came to us."""

    def __init__(self) -> None:
        import sglang.srt.distributed.parallel_state as ps

        self.kernels = torch.library.Library("sglang", "IMPL")
        for name in ("outplace_all_reduce", "inplace_all_reduce", "reg_all_gather_into_tensor"):
            self.kernels.impl(name, getattr(ps, name).__wrapped__, "CPU")
        where = f"tcp://127.0.0.1:{PORT}"
        ps.init_distributed_environment(
            world_size=WORLD, rank=RANK, distributed_init_method=where, local_rank=RANK, backend="gloo"
        )
        self.tp = ps.init_model_parallel_group([list(range(WORLD))], RANK, "gloo", group_name="tp")
        # A stock communicator that could not be made leaves NCCL as the way out, which a CPU has not.
        self.tp.pynccl_comm = None
        self.came = 0
        if type(self.tp.ca_comm).__module__.startswith("roce_ring"):
            for name in ("custom_all_reduce", "all_gather_into"):
                setattr(self.tp.ca_comm, name, self._counted(getattr(self.tp.ca_comm, name)))

    def _counted(self, call: Any) -> Any:
        def counted(*args: Any) -> Any:
            self.came += 1
            return call(*args)

        return counted

    def reduce(self, shape: tuple[int, ...], dtype: torch.dtype, seed: int) -> bool:
        """Whether the sum is right to the bit."""
        x = of(RANK, shape, dtype, seed).as_subclass(Elsewhere)
        return torch.equal(plain(self.tp.all_reduce(x)), sum(everybody(shape, dtype, seed)))  # type: ignore[arg-type]

    def reduce_view(self, shape: tuple[int, int], seed: int) -> bool:
        """The last rank's tensor has the same numbers in another order of memory."""
        x = of(RANK, shape, BF16, seed)
        x = x.t().contiguous().t() if RANK == WORLD - 1 else x
        y = self.tp.all_reduce(x.as_subclass(Elsewhere))
        return torch.equal(plain(y), sum(everybody(shape, BF16, seed)))  # type: ignore[arg-type]

    def gather(self, shape: tuple[int, ...], dim: int, seed: int) -> bool:
        x = of(RANK, shape, BF16, seed).as_subclass(Elsewhere)
        return torch.equal(plain(self.tp.all_gather(x, dim=dim)), torch.cat(everybody(shape, BF16, seed), dim))


def collectives(group: Group, cap: int) -> list[str]:
    """What was wrong. `cap`: largest payload that must come to us, in bytes; 0: nothing may."""
    wrong = []
    sums = [((1, 7168), BF16), ((4, 7168), BF16), ((3, 1023), FP32), ((17,), FP16), ((9, 4096, 16), BF16)]
    sums += [((8, 16), torch.float64), ((8, 16), torch.int32)]  # dtypes that we do not sum
    for seed, (shape, dtype) in enumerate(sums):
        group.came = 0
        size = torch.Size(shape).numel() * dtype.itemsize
        if not group.reduce(shape, dtype, seed):
            wrong.append(f"the sum of {shape} {dtype}")
        if group.came != (size <= cap and dtype in (BF16, FP16, FP32)):
            wrong.append(f"{shape} {dtype} came to us {group.came} times")
    group.came = 0
    if cap and not (group.reduce_view((32, 64), 40) and group.came == 1):  # gloo takes no views
        wrong.append(f"the sum of a view that one rank alone has, which came to us {group.came} times")
    for seed, (shape, dim) in enumerate([((2, 128), 0), ((2, 128), -1), ((1, 1), 0), ((9, 4096, 16), 0)], 50):
        group.came = 0
        if not group.gather(shape, dim, seed):
            wrong.append(f"the gather of {shape} along {dim}")
        if group.came != (torch.Size(shape).numel() * 2 <= cap):
            wrong.append(f"the gather of {shape} came to us {group.came} times")
    return wrong


def compiled(group: Group) -> bool:
    name = group.tp.unique_name
    step = torch.compile(
        lambda t: torch.ops.sglang.outplace_all_reduce(t * 2, name, "auto") + 1, fullgraph=True, backend="aot_eager"
    )
    got = step(of(RANK, (2, 64), BF16, 60))
    return torch.equal(got, sum(everybody((2, 64), BF16, 60)) * 2 + 1)


def added_us(group: Group) -> float:
    """Median host time that the way through our communicator adds to AllReduce.all_reduce, its part that needs no peer.
    Interleaved, because the machine is noisy."""
    ours = group.tp.ca_comm
    x = of(RANK, (1, 7168), BF16, 70)
    asked, inner = [], ours._ours.all_reduce
    ours._ours.all_reduce = lambda t: t
    shown = type(ours).custom_all_reduce
    try:
        for _ in range(2000):
            began = time.perf_counter_ns()
            assert ours.should_custom_ar(x)
            shown(ours, x)
            asked.append(time.perf_counter_ns() - began)
    finally:
        ours._ours.all_reduce = inner
    return sorted(asked)[len(asked) // 2] / 1000


class Step:
    """As the scheduler passes a step's result."""

    class copy_done:  # noqa: N801
        @staticmethod
        def synchronize() -> None: ...


def lost(group: Group) -> dict[str, object]:
    """What the others hear when the last rank is killed, from a collective and at the end of a step."""
    from roce_ring.engines.sglang import after_step

    assert group.reduce((1, 7168), BF16, 80)
    after_step(lambda *_: None, None, None, Step())
    dist.barrier()
    if RANK == WORLD - 1:
        os.kill(os.getpid(), signal.SIGKILL)
    began, heard = time.monotonic(), {}
    calls = {"collective": lambda: group.reduce((1, 7168), BF16, 81), "step": lambda: after_step(print, 0, 0, Step())}
    for what, call in calls.items():
        try:
            call()
        except Exception as error:
            heard[what] = f"{type(error).__name__}: {error}"
    return {**heard, "s": time.monotonic() - began}


def targets() -> dict[str, object]:
    """Which functions of SGLang are not its own."""
    import sglang.srt.distributed.device_communicators.custom_all_reduce as custom
    import sglang.srt.distributed.parallel_state as ps

    looked_at = {"dispatch": custom.dispatch_custom_allreduce, "gather": ps.GroupCoordinator._all_gather_into_tensor}
    return {
        "hooked": [name for name, one in looked_at.items() if hasattr(one, "__wrapped__")],
        "ours": sorted(name for name in sys.modules if name.startswith("roce_ring")),
    }


def main() -> None:
    logging.basicConfig(level=logging.INFO, format="%(levelname)s %(name)s: %(message)s")
    said: dict[str, object] = {}
    if SCENARIO == "hooked":
        stand_in()
    if SCENARIO == "no target":
        import sglang.srt.distributed.device_communicators.custom_all_reduce as custom

        del custom.dispatch_custom_allreduce
    from sglang.srt.plugins import load_plugins

    load_plugins()
    if SCENARIO == "no target":
        said = {"went on": True}
    elif SCENARIO in ("targets", "hooked"):
        said = targets()
    else:
        group = Group()
        said["communicator"] = f"{type(group.tp.ca_comm).__module__}.{type(group.tp.ca_comm).__name__}"
        if SCENARIO == "lost":
            print(json.dumps({**said, **lost(group)}), flush=True)
            os._exit(0)
        cap = int(SCENARIO.partition(" ")[2] or 0)
        said["wrong"] = collectives(group, cap)
        if cap:
            said |= {"compiled": compiled(group), "added_us": added_us(group)}
        dist.barrier()
    print(json.dumps(said), flush=True)
    os._exit(0)  # SGLang's own way down imports packages that are not here


main()
