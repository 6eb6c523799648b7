"""One rank of SGLang's own distributed code on a CPU: sglang_rank.py RANK WORLD PORT SCENARIO. Prints one JSON line.

SGLang leaves CPU tensors to torch.distributed before it looks for a custom all-reduce, so ours say they are elsewhere;
its operators have a kernel for CUDA only, so the same function is registered for the CPU. Everything else is SGLang's.
"""

from __future__ import annotations

import json
import logging
import os
import sys
import time

import torch
import torch.distributed as dist

RANK, WORLD, PORT = map(int, sys.argv[1:4])
SCENARIO = sys.argv[4]


class Elsewhere(torch.Tensor):
    """A CPU tensor that SGLang takes for one of a GPU."""

    @property
    def is_cpu(self) -> bool:  # type: ignore[override]
        return False


def mine(*shape: int, dtype: torch.dtype = torch.bfloat16, seed: int = 0) -> torch.Tensor:
    """Small whole numbers: their sum is exact in any order."""
    generator = torch.Generator().manual_seed(1000 * seed + RANK)
    return torch.randint(-8, 9, shape, generator=generator).to(dtype).as_subclass(Elsewhere)


def sum_of_all(*shape: int, dtype: torch.dtype = torch.bfloat16, seed: int = 0) -> torch.Tensor:
    parts = [
        torch.randint(-8, 9, shape, generator=torch.Generator().manual_seed(1000 * seed + rank)) for rank in range(WORLD)
    ]
    return sum(parts).to(dtype)


def group() -> object:
    import sglang.srt.distributed.parallel_state as ps

    kernels = torch.library.Library("sglang", "IMPL")
    for name in ("outplace_all_reduce", "inplace_all_reduce", "reg_all_gather_into_tensor"):
        if hasattr(getattr(ps, name), "__wrapped__"):
            kernels.impl(name, getattr(ps, name).__wrapped__, "CPU")
    ps.init_distributed_environment(
        world_size=WORLD, rank=RANK, distributed_init_method=f"tcp://127.0.0.1:{PORT}", local_rank=RANK, backend="gloo"
    )
    ps.set_custom_all_reduce(True)
    coordinator = ps.init_model_parallel_group([list(range(WORLD))], RANK, "gloo", group_name="tp")
    coordinator.kernels = kernels  # as long as the group
    return coordinator


def main() -> None:
    logging.basicConfig(level=logging.INFO, format="%(levelname)s %(name)s %(message)s")
    from sglang.srt.plugins import load_plugins

    load_plugins()
    tp = group()
    said: dict[str, object] = {"routed": type(tp.ca_comm).__module__ + "." + type(tp.ca_comm).__name__}
    if SCENARIO in ("exact", "declined"):
        import roce_ring.communicator as used

        calls: list[str] = []
        for name in ("all_reduce", "all_gather"):
            original = getattr(used.AllReduce, name)

            def counted(self: object, *args: object, _name: str = name, _original: object = original, **kw: object):
                calls.append(_name)
                return _original(self, *args, **kw)

            setattr(used.AllReduce, name, counted)
        wrong = []
        for seed, (shape, dtype, ours) in enumerate(
            [
                ((1, 7168), torch.bfloat16, 1),
                ((4, 7168), torch.bfloat16, 1),
                ((3, 1023), torch.float32, 1),
                ((17,), torch.float16, 1),
                ((64, 7168), torch.bfloat16, 0),  # larger than the plan's cap
                ((8, 16), torch.float64, 0),
                ((8, 16), torch.int32, 0),
            ]
        ):
            calls.clear()
            x = mine(*shape, dtype=dtype, seed=seed)
            y = tp.all_reduce(x)
            if not torch.equal(y.as_subclass(torch.Tensor), sum_of_all(*shape, dtype=dtype, seed=seed)):
                wrong.append(f"sum of {shape} {dtype}")
            if SCENARIO == "exact" and len(calls) != ours:
                wrong.append(f"{shape} {dtype} went here {len(calls)} times")
        for shape, dim in (((2, 128), 0), ((2, 128), -1), ((1, 1), 0), ((70, 4096), 0)):
            calls.clear()
            y = tp.all_gather(mine(*shape, seed=50), dim=dim)
            parts = []
            for rank in range(WORLD):
                generator = torch.Generator().manual_seed(50_000 + rank)
                parts.append(torch.randint(-8, 9, shape, generator=generator).to(torch.bfloat16))
            if not torch.equal(y.as_subclass(torch.Tensor), torch.cat(parts, dim)):
                wrong.append(f"gather of {shape} along {dim}")
            if SCENARIO == "exact" and len(calls) != (shape != (70, 4096)):
                wrong.append(f"gather of {shape} went here {len(calls)} times")
        said["wrong"] = wrong
    if SCENARIO == "exact":
        compiled = torch.compile(
            lambda t: torch.ops.sglang.outplace_all_reduce(t * 2, tp.unique_name, "auto") + 1,
            fullgraph=True,
            backend="aot_eager",
        )
        x = mine(2, 64, seed=60).as_subclass(torch.Tensor)
        if not torch.equal(compiled(x), sum_of_all(2, 64, seed=60) * 2 + 1):
            wrong.append("torch.compile")
    if SCENARIO == "time":
        x = mine(1, 7168)
        times = {}
        for what, call in (("engine", lambda: tp.all_reduce(x)), ("ours", lambda: tp.ca_comm._ours.all_reduce(x))):
            for _ in range(50):
                call()
            samples = []
            for _ in range(400):
                began = time.perf_counter_ns()
                call()
                samples.append(time.perf_counter_ns() - began)
            times[what] = sorted(samples)[len(samples) // 2] / 1000
        said["us"] = times
    dist.barrier()
    print(json.dumps(said), flush=True)
    if tp.ca_comm is not None and hasattr(tp.ca_comm, "close"):
        tp.ca_comm.close()
    dist.barrier()
    os._exit(0)  # SGLang's own way down imports torchvision


main()
