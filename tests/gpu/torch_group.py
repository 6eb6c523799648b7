"""torch.distributed's backend roce_ring on one GPU: two processes under MPS, `cpu:gloo,cuda:roce_ring`.

    python tests/gpu/torch_group.py [--device cpu]

Exact sums, gathers and scatters; wait() from another stream; a captured graph; DDP; CPU tensors with gloo; host time of
a call; and at the end a rank that goes without a word, whom the other must name. With --device cpu what needs no GPU.
NCCL takes no two ranks on one GPU, so nothing here may go to the fallback: a warning that it does is a failure.
"""

from __future__ import annotations

import argparse
import contextlib
import logging
import multiprocessing
import os
import statistics
import sys
import tempfile
import time
import traceback
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

WORLD, LIMIT_S, DEAD_S = 2, 80.0, 3.0


def numbers(rank: int, count: int, dtype: Any, device: Any) -> Any:
    """Small whole numbers, whose sums are exact in every dtype."""
    import torch

    return ((torch.arange(count, device=device) * 7 + rank * 3) % 11 - 5).to(dtype)


def exact(rank: int, device: Any) -> str:
    import torch
    import torch.distributed as dist

    for dtype in (torch.float32, torch.float16, torch.bfloat16):
        for count in (1, 7, 2048, 30720, 65536 - 6):
            parts = [numbers(r, count, dtype, device) for r in range(WORLD)]
            x = parts[rank].clone()
            dist.all_reduce(x)
            assert torch.equal(x, sum(parts)), f"all_reduce {dtype} {count}"
            x = parts[rank].clone()
            dist.all_reduce(x, op=dist.ReduceOp.AVG)
            assert torch.equal(x, sum(parts) / WORLD), f"all_reduce AVG {dtype} {count}"
            if count % WORLD == 0:
                out = torch.empty(count // WORLD, dtype=dtype, device=device)
                dist.reduce_scatter_tensor(out, parts[rank])
                assert torch.equal(out, sum(parts).view(WORLD, -1)[rank]), f"reduce_scatter {dtype} {count}"
    for dtype in (torch.bfloat16, torch.int64, torch.bool):
        parts = [numbers(r, 1001, dtype, device) for r in range(WORLD)]
        flat, outs = parts[0].new_empty(WORLD * 1001), [torch.empty_like(one) for one in parts]
        dist.all_gather_into_tensor(flat, parts[rank])
        dist.all_gather(outs, parts[rank])
        assert torch.equal(flat, torch.cat(parts)) and torch.equal(torch.cat(outs), flat), f"all_gather {dtype}"
        for root in range(WORLD):
            x = parts[rank].clone()
            dist.broadcast(x, root)
            assert torch.equal(x, parts[root]), f"broadcast {dtype} from {root}"
    turned = numbers(rank, 600, torch.float32, device).view(20, 30).t()
    dist.all_reduce(turned)
    assert torch.equal(turned, sum(numbers(r, 600, torch.float32, device) for r in range(WORLD)).view(20, 30).t())
    gaps = numbers(rank, 40, torch.float32, device)[::2]
    dist.all_reduce(gaps)
    assert torch.equal(gaps, sum(numbers(r, 40, torch.float32, device)[::2] for r in range(WORLD)))
    for count in (33, 16384):  # an output that is a part of the input, and the other way round
        parts = [numbers(r, WORLD * count, torch.bfloat16, device) for r in range(WORLD)]
        mine, x = slice(rank * count, (rank + 1) * count), parts[rank].clone()
        dist.reduce_scatter_tensor(x[mine], x)
        assert torch.equal(x[mine], sum(parts)[mine]), f"reduce_scatter in place {count}"
        x = torch.zeros_like(x)
        x[mine] = parts[rank][mine]
        dist.all_gather_into_tensor(x, x[mine])
        assert torch.equal(x, torch.cat([parts[r][r * count : (r + 1) * count] for r in range(WORLD)]))
    dist.barrier()
    objects: list[Any] = [None] * WORLD
    dist.all_gather_object(objects, rank)
    assert objects == list(range(WORLD))
    return "sums, gathers, scatters, broadcasts, objects"


def streams(rank: int, device: Any) -> str:
    """The host does not wait for an asynchronous call, and whoever waits on another stream reads the sum."""
    import torch
    import torch.distributed as dist

    side, x = torch.cuda.Stream(), torch.zeros(4096, device=device)
    side.wait_stream(torch.cuda.current_stream())
    for round_ in range(1, 6):
        with torch.cuda.stream(side):
            torch.cuda._sleep(40_000_000)  # about 20 ms
            x.fill_(float(round_ * (rank + 1)))
            work = dist.all_reduce(x, async_op=True)
        assert not side.query(), "the call waited for the GPU"
        work.wait()
        assert not side.query(), "wait() waited for the GPU"
        seen = x.clone()  # on the current stream, which now waits for the side stream's all-reduce
        side.wait_stream(torch.cuda.current_stream())
        assert (seen == 3.0 * round_).all(), f"round {round_}: {seen[:4]}"
    return "wait() orders streams and holds up nobody"


def graph(rank: int, device: Any) -> str:
    import torch
    import torch.distributed as dist

    x, side = torch.zeros(2048, device=device, dtype=torch.bfloat16), torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(3):
            dist.all_reduce(x)
    torch.cuda.current_stream().wait_stream(side)
    captured = torch.cuda.CUDAGraph()
    dist.barrier()
    with torch.cuda.graph(captured):
        for _ in range(4):
            dist.all_reduce(x)
    for replay in range(200):
        x.fill_(float(replay % 8 + rank))
        captured.replay()
        expected = (2.0 * (replay % 8) + 1) * 8  # three more sums double it thrice
        assert (x.float() == expected).all(), f"replay {replay}: {x[:4].tolist()}, expected {expected}"
    return "200 replays of four all-reduces"


def ddp(rank: int, device: Any) -> str:
    import torch
    from torch import nn
    from torch.nn.parallel import DistributedDataParallel

    torch.manual_seed(rank)
    model = DistributedDataParallel(nn.Sequential(nn.Linear(8, 64), nn.Tanh(), nn.Linear(64, 1)).to(device))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    losses = []
    for step in range(30):
        x = torch.randn(64, 8, generator=torch.Generator().manual_seed(100 * step + rank)).to(device)
        optimizer.zero_grad()
        loss = nn.functional.mse_loss(model(x), x.norm(dim=1, keepdim=True))
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    mine = torch.cat([one.detach().flatten() for one in model.parameters()])
    outs = [torch.empty_like(mine) for _ in range(WORLD)]
    torch.distributed.all_gather(outs, mine)
    assert all(torch.equal(one, mine) for one in outs), "ranks have different weights"
    assert losses[-1] < losses[0] / 2, losses
    return f"DDP: loss {losses[0]:.4f} -> {losses[-1]:.4f}, the same weights on all ranks"


def cpu_beside(rank: int, device: Any) -> str:
    import torch
    import torch.distributed as dist

    x = torch.ones(5, dtype=torch.float64)
    dist.all_reduce(x)
    assert (x == WORLD).all()
    return "CPU tensors with gloo"


def host_time(rank: int, device: Any) -> str:
    import torch
    import torch.distributed as dist

    x, told = torch.zeros(30720, device=device, dtype=torch.bfloat16), []
    for what, asynchronous in (("all_reduce", False), ("all_reduce(async_op=True)", True)):
        times = []
        for _ in range(50):
            began = time.perf_counter()
            for _ in range(20):
                work = dist.all_reduce(x, async_op=asynchronous)
                if asynchronous:
                    work.wait()
            times.append((time.perf_counter() - began) / 20 * 1e6)
            dist.barrier()
        told.append(f"{what} {statistics.median(times):.1f} us")
    return f"host time of a call, 60 KiB: {', '.join(told)}"


def gone(rank: int, device: Any) -> str:
    """Rank 1 ends without a word, while it has nothing on the GPU."""
    import torch
    import torch.distributed as dist

    dist.barrier()
    if rank == 1:
        os._exit(0)
    began, x, said = time.monotonic(), torch.ones(16, device=device), ""
    while not said and time.monotonic() - began < 4 * DEAD_S:
        try:
            dist.all_reduce(x)
            if x.is_cuda:
                torch.cuda.synchronize()
        except dist.DistBackendError as error:
            said = str(error)
    took = time.monotonic() - began
    assert "rank 1" in said and took < DEAD_S + 2, f"{took:.1f} s: {said}"
    return f"rank 1 named after {took:.1f} s"


def steps(on_gpu: bool) -> list[Callable[[int, Any], str]]:
    return [exact, *([streams, graph, cpu_beside] if on_gpu else []), ddp, host_time, gone]


class _Warnings(logging.Handler):
    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.seen: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.seen.append(record.getMessage())


def body(rank: int, folder: str, device_name: str, pipe: Any) -> None:
    os.environ |= {
        "ROCE_RING_RUN_DIR": folder, "ROCE_RING_NAME": "torch-group", "ROCE_RING_DEAD_PEER_S": f"{DEAD_S:g}",
    }  # fmt: skip
    warnings = _Warnings()
    logging.getLogger().addHandler(warnings)
    try:
        import torch
        import torch.distributed as dist

        import roce_ring.engines.torch_backend  # noqa: F401

        on_gpu, device = device_name != "cpu", torch.device(device_name)
        if on_gpu:
            torch.cuda.set_device(device)
        dist.init_process_group(
            "cpu:gloo,cuda:roce_ring" if on_gpu else "roce_ring",
            init_method=f"file://{folder}/store", rank=rank, world_size=WORLD, timeout=timedelta(seconds=60),
        )  # fmt: skip
        for step in steps(on_gpu):
            pipe.send((step.__name__, step(rank, device)))
            assert step is gone or not warnings.seen, warnings.seen
        dist.destroy_process_group()
        pipe.send(("end", "ok"))
    except BaseException:
        pipe.send(("failed", f"rank {rank}: {traceback.format_exc()}"))


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--device", default="cuda:0", help="cuda:N or cpu")
    device = parser.parse_args().device
    spawn, deadline = multiprocessing.get_context("spawn"), time.monotonic() + LIMIT_S
    said: dict[int, dict[str, str]] = {rank: {} for rank in range(WORLD)}
    with contextlib.ExitStack() as stack:
        folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="roce-ring-torch-"))
        if device != "cpu":
            from roce_ring.bench.mps import mps

            stack.enter_context(mps())
        pipes = [spawn.Pipe(duplex=False) for _ in range(WORLD)]
        ranks = [spawn.Process(target=body, args=(r, folder, device, pipes[r][1])) for r in range(WORLD)]
        for one in ranks:
            one.start()
        for rank, (ours, theirs) in enumerate(pipes):
            theirs.close()
            with contextlib.suppress(EOFError):
                while ours.poll(max(0.0, deadline - time.monotonic())):
                    step, what = ours.recv()
                    said[rank][step] = what
                    if rank == 0 or step == "failed":
                        print(f"torch_group: {step}: {what}", flush=True)
        for one in ranks:
            one.join(5.0)
            if one.is_alive():
                one.kill()
                one.join()
    names = [step.__name__ for step in steps(device != "cpu")]
    missing = [f"rank {r}: {name}" for r in range(WORLD) for name in names if name not in said[r]]
    passed = "end" in said[0] and missing == ["rank 1: gone"]
    print(f"torch_group: {'passed' if passed else 'FAILED, without ' + ', '.join(missing)}")
    return 0 if passed else 1


if __name__ == "__main__":
    sys.exit(main())
