"""DistributedDataParallel on a toy: torchrun --nproc-per-node 4 examples/ddp_toy.py --backend roce_ring

Prints the same losses with --backend gloo, to the last digit. That is not a matter of course: gloo adds the ranks up in
another order, and in floating point the order shows. Here it cannot: every rank rounds its gradients to multiples of
2^-12 first, so that sums of them are exact in any order. What would show is a wrong sum. (With a number of ranks that
is no power of two, the mean of DDP rounds, and last digits may differ.)
"""

import argparse

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

STEPS, ROWS, GRID = 40, 64, 2.0**12  # rows per rank and step


def rounded(gradient: torch.Tensor) -> torch.Tensor:
    return (gradient * GRID).round() / GRID


def batch(step: int, rank: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Points and what to learn of them: how far they are from the origin."""
    random = torch.Generator().manual_seed(1000 * step + rank)
    x = torch.rand(ROWS, 2, generator=random) * 2 - 1
    return x, x.norm(dim=1, keepdim=True)


def train() -> None:
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(rank)  # DDP gives all ranks the weights of rank 0
    model = DistributedDataParallel(nn.Sequential(nn.Linear(2, 64), nn.Tanh(), nn.Linear(64, 1)))
    for parameter in model.parameters():
        parameter.register_hook(rounded)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)

    for step in range(STEPS):
        x, y = batch(step, rank)
        optimizer.zero_grad()
        nn.functional.mse_loss(model(x), y).backward()
        optimizer.step()
        if rank == 0 and (step + 1) % 10 == 0:
            x, y = batch(STEPS, 0)
            with torch.no_grad():
                loss = nn.functional.mse_loss(model.module(x), y).item()
            print(f"step {step + 1}: loss {loss:.9g}", flush=True)  # nine digits tell any two float32 apart

    mine = torch.cat([parameter.detach().flatten() for parameter in model.parameters()])
    everybody = [torch.empty_like(mine) for _ in range(world)]
    dist.all_gather(everybody, mine)
    if rank == 0:
        same = all(torch.equal(mine, other) for other in everybody)
        print(f"{world} ranks, {mine.numel()} parameters: {'the same bits' if same else 'DIFFERENT'} on all ranks")


def main() -> None:
    parser = argparse.ArgumentParser(description="DistributedDataParallel on a toy model", allow_abbrev=False)
    parser.add_argument("--backend", default="roce_ring", help="of init_process_group: roce_ring, gloo, ...")
    backend = parser.parse_args().backend
    if "roce_ring" in backend:
        import roce_ring.engines.torch_backend  # noqa: F401  # registers the backend

    torch.set_num_threads(1)  # ranks share this machine's cores
    dist.init_process_group(backend)
    train()  # a function, so that the model is gone before its group: gloo's end can hang if a model refers to it
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
