"""One rank of vLLM's own distributed code on a CPU: vllm_rank.py RANK WORLD PORT SCENARIO. Its last line is JSON.

vLLM's platform here is its CPU; only which communicator that platform names is changed, to the one of a GPU.

Scenarios: `routed CAP` (many collectives, checked; up to CAP bytes they must come to us), `declined` (the same, none
may), `lost` (the last rank dies), `targets` (no group at all: what is hooked), `no target` (an engine without
CustomAllreduce), `no group` (a step of an engine that has asked for no all-reduce).
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from typing import Any

import torch
import torch.distributed as dist
import vllm.distributed.device_communicators.cuda_communicator as cuda
import vllm.distributed.device_communicators.custom_all_reduce as custom
import vllm.distributed.parallel_state as ps
import vllm.logger
import vllm.plugins
import vllm.v1.worker.worker_base as worker_base
from vllm.config.logging import LoggingConfig
from vllm.platforms import current_platform
from vllm.v1.outputs import AsyncModelRunnerOutput

RANK, WORLD, PORT = map(int, sys.argv[1:4])
SCENARIO = sys.argv[4]
BF16, FP16, FP32 = torch.bfloat16, torch.float16, torch.float32


def of(rank: int, shape: tuple[int, ...], dtype: torch.dtype, seed: int) -> torch.Tensor:
    """Small whole numbers, whose sum is exact in any order."""
    return torch.randint(-8, 9, shape, generator=torch.Generator().manual_seed(1000 * seed + rank)).to(dtype)


def everybody(shape: tuple[int, ...], dtype: torch.dtype, seed: int) -> list[torch.Tensor]:
    return [of(rank, shape, dtype, seed) for rank in range(WORLD)]


class Group:
    """vLLM's tensor-parallel group, and how often a collective of it came to us."""

    def __init__(self) -> None:
        current_platform.get_device_communicator_cls = lambda: f"{cuda.__name__}.CudaCommunicator"
        where = f"tcp://127.0.0.1:{PORT}"
        ps.init_distributed_environment(
            world_size=WORLD, rank=RANK, distributed_init_method=where, local_rank=RANK, backend="gloo"
        )
        self.tp = ps.init_model_parallel_group([list(range(WORLD))], RANK, "gloo", group_name="tp")
        self.came = 0
        ours = self.tp.device_communicator.ca_comm
        self.kind = f"{type(ours).__module__}.{type(ours).__name__}"
        if self.kind.startswith("roce_ring"):
            for name in ("custom_all_reduce", "gathered"):
                setattr(ours, name, self._counted(getattr(ours, name)))

    def _counted(self, call: Any) -> Any:
        def counted(*args: Any) -> Any:
            result = call(*args)
            self.came += result is not None
            return result

        return counted

    def reduce(self, shape: tuple[int, ...], dtype: torch.dtype, seed: int) -> bool:
        """Whether the sum is right to the bit, and new."""
        x = of(RANK, shape, dtype, seed)
        y = self.tp.all_reduce(x)
        unchanged = torch.equal(x, of(RANK, shape, dtype, seed))
        return unchanged and torch.equal(y, sum(everybody(shape, dtype, seed)))  # type: ignore[arg-type]

    def gather(self, shape: tuple[int, ...], dim: int, seed: int) -> bool:
        y = self.tp.all_gather(of(RANK, shape, BF16, seed), dim=dim)
        return torch.equal(y, torch.cat(everybody(shape, BF16, seed), dim))


def collectives(group: Group, cap: int) -> list[str]:
    """What was wrong. `cap`: largest payload that must come to us, in bytes; 0: nothing may."""
    wrong = []
    sums = [((1, 7168), BF16), ((4, 7168), BF16), ((3, 1023), FP32), ((17,), FP16), ((9, 4096, 16), BF16)]
    sums += [((8, 16), torch.float64), ((8, 16), torch.int32)]  # dtypes that we do not sum
    for seed, (shape, dtype) in enumerate(sums):
        group.came = 0
        if not group.reduce(shape, dtype, seed):
            wrong.append(f"the sum of {shape} {dtype}")
        if group.came != (torch.Size(shape).numel() * dtype.itemsize <= cap and dtype in (BF16, FP16, FP32)):
            wrong.append(f"{shape} {dtype} came to us {group.came} times")
    gathers = [((2, 128), 0), ((2, 128), -1), ((2, 3, 64), 1), ((1, 1), 0), ((2, 3, 64), -3), ((9, 4096, 16), 0)]
    for seed, (shape, dim) in enumerate(gathers, 50):
        group.came = 0
        if not group.gather(shape, dim, seed):
            wrong.append(f"the gather of {shape} along {dim}")
        if group.came != (torch.Size(shape).numel() * 2 <= cap and dim != 1):
            wrong.append(f"the gather of {shape} along {dim} came to us {group.came} times")
    if cap:
        x = of(RANK, (2, 64), BF16, 70)
        communicator = group.tp.device_communicator
        if not torch.equal(communicator.custom_all_gather(x), torch.cat(everybody((2, 64), BF16, 70))):
            wrong.append("the gather that models ask for by name")
        if communicator.custom_reduce_scatter(x) is not None or communicator.ca_comm.fully_connected:
            wrong.append("models are promised what is not here")
    return wrong


class Late(AsyncModelRunnerOutput):  # type: ignore[misc]
    """Results that are still on their way when the worker returns them."""

    def get_output(self) -> str:
        return "tokens"

    def get_kv_connector_output(self) -> None: ...


class Worker:
    def init_device(self) -> None: ...

    def execute_model(self, batch: Any) -> None: ...

    def sample_tokens(self, grammar: Any) -> Late:
        return Late()


def a_worker() -> Any:
    """vLLM's wrapper around a worker, as its executors have it, with a worker that computes nothing."""
    wrapper = worker_base.WorkerWrapperBase(rpc_rank=0)
    wrapper.vllm_config, wrapper.mm_receiver_cache, wrapper._worker_extension_cls = worker_base.VllmConfig(), None, None
    wrapper.worker = Worker()
    wrapper.init_device()
    return wrapper


def lost(group: Group) -> dict[str, object]:
    """What the others hear when the last rank is killed: from a collective, from a step, and from a step's results."""
    worker = a_worker()
    assert group.reduce((1, 7168), BF16, 80)
    assert worker.execute_model(None) is None
    late = worker.sample_tokens(None)
    assert late.get_output() == "tokens"
    late = worker.sample_tokens(None)
    dist.barrier()
    if RANK == WORLD - 1:
        os.kill(os.getpid(), signal.SIGKILL)
    began, heard = time.monotonic(), {}
    calls = {
        "collective": lambda: group.reduce((1, 7168), BF16, 81),
        "step": lambda: worker.execute_model(None),
        "results": late.get_output,
    }
    for what, call in calls.items():
        try:
            call()
        except Exception as error:
            heard[what] = f"{type(error).__name__}: {error}"
    return {**heard, "s": time.monotonic() - began}


def table() -> dict[str, object]:
    return {
        "custom": getattr(custom, "CustomAllreduce", None),
        "gather": cuda.CudaCommunicator.all_gather,
        "worker": worker_base.WorkerWrapperBase.init_device,
    }


STOCK = table()


def targets() -> dict[str, object]:
    """Which of vLLM's names are not its own, how often each is wrapped, and what of ours is loaded."""
    depths = {name: depth(one, STOCK[name]) for name, one in table().items() if one is not None}
    return {
        "hooked": {name: times for name, times in depths.items() if times},
        "ours": sorted(name for name in sys.modules if name.startswith("roce_ring")),
    }


def depth(one: Any, stock: object) -> int:
    if one is stock:
        return 0
    return 1 + depth(one.__base__ if isinstance(one, type) else one.__wrapped__, stock)


def hook() -> None:
    """As vLLM does in its processes, in some of them twice."""
    for _ in range(2):
        vllm.plugins.plugins_loaded = False
        vllm.plugins.load_general_plugins()


def routed(group: Group, cap: int) -> dict[str, object]:
    said = {"wrong": collectives(group, cap)}
    a_worker().execute_model(None)
    dist.barrier()
    return said


def main() -> None:
    os.environ["VLLM_LOGGING_STREAM"] = "ext://sys.stderr"
    vllm.logger.configure_logging(LoggingConfig())  # as its workers do
    if SCENARIO == "no target":
        del custom.CustomAllreduce
    hook()
    if SCENARIO in ("no target", "targets"):
        said = targets()
    elif SCENARIO == "no group":
        a_worker().execute_model(None)
        said = {"went on": True}
    else:
        group = Group()
        said = {"communicator": group.kind}
        said |= lost(group) if SCENARIO == "lost" else routed(group, int(SCENARIO.partition(" ")[2] or 0))
    print(json.dumps(said), flush=True)
    os._exit(0)  # as an engine's ranks end: nothing is torn down


main()
