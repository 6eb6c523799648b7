"""torch.distributed's backend roce_ring: real processes, the real proxy and kernels on the CPU, gloo beside them."""

from __future__ import annotations

import os
from collections.abc import Iterator
from datetime import timedelta
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.local.ranks import Rank, Starter

if TYPE_CHECKING:
    from roce_ring.engines.torch_backend import RingGroup

pytestmark = pytest.mark.skipif(find_spec("torch") is None, reason="torch is not installed; whoever uses it brings it")

ROOT = Path(__file__).resolve().parents[2]
MAX_BYTES = 65536


@pytest.fixture(scope="module")
def start() -> Iterator[Starter]:
    """start(scenario, world): see Starter. Fails if a process, a region or a socket is left."""
    starter = Starter()
    yield starter
    for path in starter.where.glob("*.store"):
        path.unlink()  # torch leaves it
    starter.close()


def join(rank: Rank, name: str, backend: str = "roce_ring", **environment: str) -> RingGroup:
    """init_process_group over a file called `name`, as torchrun's processes do over a TCPStore."""
    import warnings

    import torch.distributed as dist

    import roce_ring.engines.torch_backend

    warnings.simplefilter("ignore", FutureWarning)  # torch's own, about names that users of older versions have
    os.environ |= {
        "ROCE_RING_RUN_DIR": str(rank.where),
        "ROCE_RING_MAX_BYTES": str(MAX_BYTES),
        "ROCE_RING_NAME": name,
        "ROCE_RING_LATE_S": "10",
        "ROCE_RING_DEAD_PEER_S": "1",
    } | environment
    store = f"file://{rank.where}/{name}.store"
    dist.init_process_group(
        backend, init_method=store, rank=rank.rank, world_size=rank.world, timeout=timedelta(seconds=20)
    )
    group = dist.group.WORLD
    assert isinstance(group, roce_ring.engines.torch_backend.RingGroup)
    return group


def leave() -> None:
    import torch.distributed as dist

    dist.destroy_process_group()


def operations(group: RingGroup) -> int:
    """That the ring has done."""
    return sum(int(one.session.read_stats().ops) for one in group._open_communicators())


# ---- what gloo answers too ----


def numbers(rank: int, count: int, dtype: Any) -> Any:
    """Small whole numbers: their sums are exact in every order and dtype, so that gloo's answer is the answer."""
    import torch

    return ((torch.arange(count) * 7 + rank * 3) % 11 - 5).to(dtype)


class Against:
    """Makes every call on both groups, and keeps what differs."""

    def __init__(self, rank: Rank, ring: RingGroup) -> None:
        import torch.distributed as dist

        self.rank, self.ring, self.gloo = rank, ring, dist.new_group(backend="gloo")
        self.wrong: list[str] = []

    def same(self, what: str, call: Any) -> None:
        """`call(group)` returns the tensors it filled."""
        import torch

        for mine, theirs in zip(call(self.ring), call(self.gloo), strict=True):
            if not torch.equal(mine, theirs):
                self.wrong.append(f"{what}: {mine.flatten()[:8].tolist()}, gloo says {theirs.flatten()[:8].tolist()}")

    def equal(self, what: str, seen: Any, expected: Any) -> None:
        import torch

        if not (torch.equal(seen, expected) if isinstance(seen, torch.Tensor) else seen == expected):
            self.wrong.append(f"{what}: {seen}, expected {expected}")


def ours(rank: Rank) -> tuple[list[str], int, list[str]]:
    """Every call that the ring does: (what is wrong, operations of the ring, its sockets)."""
    import torch
    import torch.distributed as dist

    ring = join(rank, f"ours{rank.world}")
    me, world, sums = rank.rank, rank.world, (torch.float32, torch.float16, torch.bfloat16)
    against = Against(rank, ring)

    for dtype in sums:
        for count in (1, 3, 1000, MAX_BYTES // 4 - 3):

            def all_reduce(group: Any, dtype: Any = dtype, count: int = count) -> list[Any]:
                x = numbers(me, count, dtype)
                dist.all_reduce(x, group=group)
                return [x]

            against.same(f"all_reduce {dtype} {count}", all_reduce)

            def reduce_scatter(group: Any, dtype: Any = dtype, count: int = count // world) -> list[Any]:
                parts = [numbers(me + p, count, dtype) for p in range(world)]
                out, single = torch.empty(count, dtype=dtype), torch.empty(count, dtype=dtype)
                dist.reduce_scatter(out, parts, group=group)
                dist.reduce_scatter_tensor(single, torch.cat(parts), group=group)
                return [out, single]

            against.same(f"reduce_scatter {dtype} {count}", reduce_scatter)

    for dtype in (*sums, torch.int64, torch.uint8, torch.bool):
        for count in (1, 5, 1001):

            def gathers(group: Any, dtype: Any = dtype, count: int = count) -> list[Any]:
                x = numbers(me, count, dtype)
                outs = [torch.empty_like(x) for _ in range(world)]
                dist.all_gather(outs, x, group=group)
                flat = torch.empty(world * count, dtype=dtype)
                dist.all_gather_into_tensor(flat, x, group=group)
                return [*outs, flat]

            against.same(f"all_gather {dtype} {count}", gathers)

            def broadcast(group: Any, dtype: Any = dtype, count: int = count) -> list[Any]:
                from_each = [numbers(me, count, dtype) for _ in range(world)]
                for root, x in enumerate(from_each):
                    dist.broadcast(x, root, group=group)
                return from_each

            against.same(f"broadcast {dtype} {count}", broadcast)

    def not_in_one_piece(group: Any) -> list[Any]:
        x, y = numbers(me, 60, torch.float32).view(6, 10).t(), numbers(me, 20, torch.float32).view(4, 5).t()
        outs, single = [torch.empty(5, 4).t() for _ in range(world)], torch.empty(2, 10 * world).t()
        dense = group is ring
        for call, one in ((dist.all_reduce, x), (lambda t, group: dist.broadcast(t, world - 1, group), y)):
            room = one if dense else one.contiguous()  # gloo wants them in one piece
            call(room, group=group)
            one.copy_(room)
        shard = numbers(me, 20, torch.float32)
        if group is ring:
            dist.all_gather(outs, shard.view(5, 4).t())
            dist.all_gather_into_tensor(single, shard.view(2, 10).t())
        else:
            everybody = [numbers(r, 20, torch.float32) for r in range(world)]
            outs, single = [one.view(5, 4).t() for one in everybody], torch.cat([o.view(2, 10).t() for o in everybody])
        return [x, y, *outs, single]

    against.same("tensors that do not lie in one piece", not_in_one_piece)

    def in_place(group: Any) -> list[Any]:
        gathered, scattered = torch.zeros(world * 33), numbers(me, 33 * world, torch.float32)
        mine = slice(me * 33, (me + 1) * 33)
        gathered[mine] = numbers(me, 33, torch.float32)
        dist.all_gather_into_tensor(gathered, gathered[mine], group=group)
        dist.reduce_scatter_tensor(scattered[mine], scattered, group=group)
        return [gathered, scattered[mine]]

    against.same("outputs that are a part of the input, and the other way round", in_place)

    def odd_ones(group: Any) -> list[Any]:
        complexes, nothing = numbers(me, 8, torch.float32).view(4, 2), torch.empty(0)
        turned = torch.view_as_complex(complexes)
        dist.all_reduce(turned, group=group)
        dist.all_reduce(nothing, group=group)
        scalar = torch.tensor(float(me))
        dist.all_reduce(scalar, group=group)
        return [complexes, scalar]

    against.same("complex, empty and scalar tensors", odd_ones)

    def many_at_once(group: Any) -> list[Any]:
        xs = [numbers(me, 100 + i, torch.float32) for i in range(8)]
        works = [dist.all_reduce(x, group=group, async_op=True) for x in xs]
        last = numbers(me, 50, torch.float32)
        dist.all_reduce(last, group=group)  # in order, although nobody has waited for the others
        for work in reversed(works):
            work.wait()
        return [*xs, last]

    against.same("many at once", many_at_once)

    work = dist.all_reduce(x := numbers(me, 10, torch.float32), async_op=True)
    [of_future] = work.get_future().wait()
    against.equal("future", of_future, sum(numbers(r, 10, torch.float32) for r in range(world)))
    against.equal(
        "state", (work.wait(), work.is_completed(), work.is_success(), work.exception()), (True, True, True, None)
    )
    against.equal("in place", x, of_future)

    mean = numbers(me, 12, torch.float32)
    dist.all_reduce(mean, op=dist.ReduceOp.AVG)
    against.equal("AVG, which gloo has not", mean, sum(numbers(r, 12, torch.float32) for r in range(world)) / world)

    stacked = torch.empty(world, 3, dtype=torch.int32)
    dist.all_gather_into_tensor(stacked, numbers(me, 3, torch.int32))
    against.equal(
        "stacked, which gloo has not", stacked, torch.stack([numbers(r, 3, torch.int32) for r in range(world)])
    )

    uneven = [torch.empty(2 * r) for r in range(world)]
    dist.all_gather(uneven, numbers(me, 2 * me, torch.float32))
    for r, one in enumerate(uneven):
        against.equal("uneven all_gather, which gloo has not", one, numbers(r, 2 * r, torch.float32))

    with dist._coalescing_manager():
        several = [numbers(me, count, torch.float32) for count in (3, 4)]
        for one in several:
            dist.all_reduce(one)
    against.equal("coalesced", several[1], sum(numbers(r, 4, torch.float32) for r in range(world)))

    import torch.distributed._functional_collectives as functional

    gathered = functional.all_gather_tensor(numbers(me, 6, torch.float32), 0, ring)
    against.equal("functional", gathered + 0, torch.cat([numbers(r, 6, torch.float32) for r in range(world)]))
    summed = functional.all_reduce(numbers(me, 6, torch.float32), "sum", ring)
    against.equal("functional", summed + 0, sum(numbers(r, 6, torch.float32) for r in range(world)))

    objects: list[Any] = [None] * world
    dist.all_gather_object(objects, {"rank": me})
    against.equal("objects", objects, [{"rank": r} for r in range(world)])
    dist.barrier()
    done, sockets = operations(ring), sorted(path.name for path in rank.where.glob("ours*.sock"))
    dist.barrier()
    leave()
    return against.wrong, done, sockets


@pytest.mark.parametrize("world", [2, 4])
def test_what_the_ring_does_is_what_gloo_says_to_the_last_bit(start: Starter, world: int) -> None:
    """Every call, odd sizes and dtypes, and nothing of it through the fallback: that would log a warning."""
    for rank, (wrong, done, sockets) in enumerate(start(ours, world).values()):
        assert not wrong, "\n".join(wrong)
        assert done > 100
        assert sockets == [f"ours{world}.group0.cpu-r{r}.sock" for r in range(world)], rank
