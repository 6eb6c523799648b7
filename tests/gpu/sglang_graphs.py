"""SGLang's process group with our communicator inside, on one GPU: four processes under MPS, captured and replayed.

    python tests/gpu/sglang_graphs.py [--replays N]

SGLang and what its distributed code imports must be importable (tests/engines/requirements-sglang.txt). NCCL takes no
two ranks on one GPU, so the group is made without it: whatever does not come to us would fail.
"""

from __future__ import annotations

import argparse
import logging
import multiprocessing
import os
import random
import socket
import statistics
import sys
import time
import traceback
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

WORLD, HIDDEN, LIMIT_S = 4, 4096, 120.0
BATCHES = (24, 8, 3, 1)  # SGLang captures the largest first
# The planner's line for four Sparks, as SGLang's users export it (the HCAs are not opened: all ranks share a host).
LINE = {
    "DSV41_ROCE_RING": "1",
    "SGLANG_ROCE_ALLREDUCE": "1",
    "SGLANG_ROCE_MAX_SIZE": "262144",
    "DSV41_ROCE_GATHER": "262144",
    "B12X_ROCE_HCA": "rocep1s0f0,rocep1s0f1,roceP2p1s0f0,roceP2p1s0f1",
    "B12X_ROCE_PEER_HCA_MAPS": "1=1/3,2=0/3,3=0/2;0=0/2,2=1/3,3=1/2;0=1/2,1=0/2,3=1/3;0=1/3,1=0/3,2=0/2",
    "B12X_ROCE_TWO_WAVE_THRESHOLD_BYTES": "0",
}


def of(rank: int, batch: int, seed: int) -> Any:
    """Small whole numbers: sums are exact, whatever their order."""
    import torch

    generator = torch.Generator().manual_seed(100 * seed + rank)
    return torch.randint(-4, 5, (batch, HIDDEN), generator=generator).to(torch.bfloat16)


def group(rank: int, port: int) -> Any:
    import sglang.srt.distributed.parallel_state as ps
    from sglang.srt.plugins import load_plugins

    load_plugins()
    where = f"tcp://127.0.0.1:{port}"
    ps.init_distributed_environment(
        world_size=WORLD, rank=rank, distributed_init_method=where, local_rank=0, backend="gloo"
    )
    return ps.GroupCoordinator(
        group_ranks=[list(range(WORLD))],
        local_rank=0,
        torch_distributed_backend="gloo",
        use_pynccl=False,
        use_mscclpp=False,
        use_custom_allreduce=True,
        use_torch_symm_mem_all_reduce=False,
        use_hpu_communicator=False,
        use_xpu_communicator=False,
        group_name="tp",
    )


def body(rank: int, port: int, replays: int) -> dict[str, Any]:
    import torch
    import torch.distributed as dist

    torch.cuda.set_device(0)
    tp = group(rank, port)
    found: dict[str, Any] = {"communicator": type(tp.ca_comm).__module__}

    def step(x: Any) -> tuple[Any, Any]:
        """As a layer does: a sum, work on it, another sum, and the logits' gather at the end."""
        y = tp.all_reduce(x)
        z = tp.all_reduce(y * 0.5)
        return z, tp.all_gather(z[:, : HIDDEN // 4].contiguous(), dim=-1)

    graphs, inputs, outputs = {}, {}, {}
    with torch.no_grad(), tp.graph_capture() as context:
        for batch in BATCHES:
            inputs[batch] = torch.zeros(batch, HIDDEN, dtype=torch.bfloat16, device="cuda")
            for _ in range(2):  # SGLang's warm-up, inside its capture context
                torch.cuda.synchronize()
                dist.barrier()
                step(inputs[batch])
            graphs[batch] = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graphs[batch], stream=context.stream):
                outputs[batch] = step(inputs[batch])
    wrong, order = [], random.Random(7)
    for n in range(replays):
        batch = order.choice(BATCHES)
        inputs[batch].copy_(of(rank, batch, n))
        graphs[batch].replay()
        z, gathered = outputs[batch]
        if n % 10 == 0:
            total = sum(of(r, batch, n).float() for r in range(WORLD)).to(torch.bfloat16)  # type: ignore[attr-defined]
            right = total * 0.5 * WORLD
            eager = step(inputs[batch])
            if not torch.equal(z.cpu(), right):
                wrong.append(f"replay {n}, batch {batch}: the sum")
            if not torch.equal(gathered.cpu(), torch.cat([right[:, : HIDDEN // 4]] * WORLD, dim=-1)):
                wrong.append(f"replay {n}, batch {batch}: the gather")
            if not all(torch.equal(a, b) for a, b in zip(eager, (z, gathered), strict=True)):
                wrong.append(f"replay {n}, batch {batch}: eager and replay differ")
        tp.ca_comm.check()
    torch.cuda.synchronize()
    found |= {"replays": replays, "wrong": wrong, **times(tp, graphs[1])}
    dist.barrier()
    tp.ca_comm.close()
    return found


class Nothing:
    """What SGLang's own way to a communicator costs."""

    disabled = False

    def should_custom_ar(self, x: Any) -> bool:
        return True

    def custom_all_reduce(self, x: Any) -> Any:
        return x.new_empty(x.shape)


def times(tp: Any, graph: Any) -> dict[str, Any]:
    """Host time (us) of an eager call through SGLang, of the same with a communicator that does nothing, of the call to
    AllReduce itself, and of a replay."""
    import torch

    x = torch.zeros(1, HIDDEN, dtype=torch.bfloat16, device="cuda")
    ours, nothing = tp.ca_comm, Nothing()

    def engine_alone() -> None:
        tp.ca_comm = nothing
        tp.all_reduce(x)
        tp.ca_comm = ours

    calls = {
        "sglang": lambda: tp.all_reduce(x),
        "sglang_alone": engine_alone,
        "all_reduce": lambda: ours._ours.all_reduce(x),
        "replay": graph.replay,
    }
    samples: dict[str, list[float]] = {what: [] for what in calls}
    for _ in range(300):
        for what, call in calls.items():
            torch.cuda.synchronize()
            began = time.perf_counter_ns()
            call()
            samples[what].append((time.perf_counter_ns() - began) / 1000)
    return {f"{what}_us": round(statistics.median(values), 2) for what, values in samples.items()}


def process(rank: int, port: int, replays: int, pipe: Any) -> None:
    logging.basicConfig(level=logging.INFO, format=f"rank {rank} %(levelname)s %(name)s: %(message)s")
    os.environ.update(LINE)
    try:
        pipe.send(body(rank, port, replays))
    except BaseException:
        pipe.send({"error": traceback.format_exc()})
    os._exit(0)  # SGLang's own way down imports packages that are not here


def main() -> int:
    from roce_ring.bench.mps import mps

    parser = argparse.ArgumentParser()
    parser.add_argument("--replays", type=int, default=2000)
    given = parser.parse_args()
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        port = one.getsockname()[1]
    spawn = multiprocessing.get_context("spawn")
    with mps():
        pipes = [spawn.Pipe() for _ in range(WORLD)]
        ranks = [
            spawn.Process(target=process, args=(rank, port, given.replays, pipes[rank][1]), daemon=True)
            for rank in range(WORLD)
        ]
        for one_rank in ranks:
            one_rank.start()
        deadline = time.monotonic() + LIMIT_S
        found = [
            ours.recv() if ours.poll(max(0.1, deadline - time.monotonic())) else {"error": "no answer in time"}
            for ours, _ in pipes
        ]
        for one_rank in ranks:
            one_rank.join(10)
            one_rank.kill()
    for rank, one_found in enumerate(found):
        print(f"rank {rank}: {one_found}")
    fine = all(one.get("wrong") == [] and one["communicator"] == "roce_ring.engines.communicator" for one in found)
    print(f"sglang on a GPU: {'ok' if fine else 'FAILED'}")
    return 0 if fine else 1


if __name__ == "__main__":
    sys.exit(main())
