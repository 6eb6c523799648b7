"""torch.distributed's backend roce_ring: real processes, the real proxy and kernels on the CPU, gloo beside them."""

from __future__ import annotations

import os
import re
import socket
import subprocess
import sys
import time
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


def join(rank: Rank, name: str, backend: str = "roce_ring", store: str = "", **environment: str) -> RingGroup:
    """init_process_group over a file called `name`, or over `store`."""
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
    store = store or f"file://{rank.where}/{name}.store"
    dist.init_process_group(
        backend, init_method=store, rank=rank.rank, world_size=rank.world, timeout=timedelta(seconds=20)
    )
    group = dist.group.WORLD
    assert isinstance(group, roce_ring.engines.torch_backend.RingGroup)
    return group


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as free:
        return int(free.getsockname()[1])


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

    ring.allreduce([bare := numbers(me, 9, torch.float32)]).wait()  # as some of torch's own code calls a group
    against.equal("without options", bare, sum(numbers(r, 9, torch.float32) for r in range(world)))

    mean = numbers(me, 12, torch.float32)
    dist.all_reduce(mean, op=dist.ReduceOp.AVG)
    against.equal("AVG, which gloo has not", mean, sum(numbers(r, 12, torch.float32) for r in range(world)) / world)

    def every_second(r: int) -> Any:
        return numbers(r, 2 * 6 * world, torch.float32)[::2]

    total, first, part = every_second(me), every_second(me), torch.zeros(12)[::2]
    gathered = torch.zeros(2 * 6 * world * world)[::2]
    dist.all_reduce(total)
    dist.broadcast(first, 0)
    dist.reduce_scatter_tensor(part, every_second(me))
    dist.all_gather_into_tensor(gathered, every_second(me))
    expected = sum(every_second(r) for r in range(world))
    against.equal("all_reduce with gaps", total, expected)
    against.equal("broadcast with gaps", first, every_second(0))
    against.equal("reduce_scatter with gaps", part, expected.view(world, 6)[me])
    against.equal("all_gather with gaps", gathered, torch.cat([every_second(r) for r in range(world)]))

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

    if world == 2:  # importing them takes seconds
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


# ---- what goes elsewhere ----


def not_ours(rank: Rank) -> list[str]:
    """Every kind of call that the ring does not do, twice: the answers that are wrong."""
    import torch
    import torch.distributed as dist

    ring = join(rank, "fallback", TORCH_DISTRIBUTED_DEBUG="DETAIL")
    me, world = rank.rank, rank.world
    against = Against(rank, ring)
    for _ in range(2):
        large = MAX_BYTES // 4 + 1

        def other_sums(group: Any, large: int = large) -> list[Any]:
            out = []
            for dtype, count, op in (
                (torch.float32, 10, dist.ReduceOp.MAX),
                (torch.float64, 10, dist.ReduceOp.SUM),
                (torch.int64, 10, dist.ReduceOp.SUM),
                (torch.float32, large, dist.ReduceOp.SUM),
            ):
                out.append(numbers(me, count, dtype))
                dist.all_reduce(out[-1], op, group=group)
            parts = [numbers(me + p, large, torch.float32) for p in range(world)]
            out.append(torch.empty(large))
            dist.reduce_scatter(out[-1], parts, group=group)
            return out

        against.same("all_reduce", other_sums)

        def large_gathers(group: Any, large: int = large) -> list[Any]:
            x = numbers(me, large, torch.float32)
            outs, flat = [torch.empty(large) for _ in range(world)], torch.empty(world * large)
            dist.all_gather(outs, x, group=group)
            dist.all_gather_into_tensor(flat, x, group=group)
            dist.broadcast(x, 1, group=group)
            return [*outs, flat, x]

        against.same("large gathers", large_gathers)

        def calls_of_others(group: Any) -> list[Any]:
            x = numbers(me, 6, torch.float32)
            gathered = [torch.empty(6) for _ in range(world)] if me == 0 else None
            dist.gather(x, gathered, 0, group=group)
            parts, part = list(torch.arange(3.0 * world).split(3)) if me == 1 else None, torch.empty(3)
            dist.scatter(part, parts, 1, group=group)
            total, turned, sent = x.clone(), torch.empty(2 * world), numbers(me, 4, torch.int64)
            dist.reduce(total, 0, group=group)
            dist.all_to_all_single(turned, torch.arange(2.0 * world) + 100 * me, group=group)
            if me == 0:
                dist.send(sent, 1, group=group)
            elif me == 1:
                dist.recv(sent, 0, group=group)
            return [*(gathered or []), part, *([total] if me == 0 else []), turned, sent]

        against.same("calls that the ring has not", calls_of_others)
    against.equal("operations of the ring", operations(ring), 0)
    objects = [{"from": r} for r in range(world)] if me == 0 else None
    mine: list[Any] = [None]
    dist.scatter_object_list(mine, objects)
    against.equal("objects", mine, [{"from": me}])
    leave()
    return against.wrong


GONE_TO_GLOO = (
    ("all_reduce", "op MAX is neither SUM nor AVG"),
    ("all_reduce", "dtype float64 is none of float32, float16, bfloat16"),
    ("all_reduce", "dtype int64 is none of float32, float16, bfloat16"),
    *(
        (
            what,
            rf"{size} bytes are more than ROCE_RING_MAX_BYTES \({MAX_BYTES}\); raise it on all ranks to have it here",
        )
        for what, size in (
            ("all_reduce", MAX_BYTES + 4),
            ("reduce_scatter", 2 * (MAX_BYTES + 4)),
            ("all_gather", MAX_BYTES + 4),
            ("all_gather_into_tensor", MAX_BYTES + 4),
            ("broadcast", MAX_BYTES + 4),
        )
    ),
    *((what, "backend roce_ring has none") for what in ("gather", "scatter", "reduce", "all_to_all_single")),
    ("send", "backend roce_ring has none"),
)


def test_what_goes_to_the_fallback_is_right_and_said_once(start: Starter) -> None:
    """Each kind is told by one rank: which call, where to, why."""
    first, second = start(not_ours, 2).finish(allow=("goes to gloo",))
    for one in (first, second):
        assert one.error is None and one.value == [], one
    told = first.said("goes to gloo")
    for what, why in GONE_TO_GLOO:
        assert len(first.said(rf"^{what} goes to gloo \(group 0/fallback\): {why}. Said once$")) == 1, (what, told)
    assert len(told) == len(GONE_TO_GLOO), told
    aloud = [message for level, message in second.log if level == "WARNING" and "goes to gloo" in message]
    assert aloud == ["recv goes to gloo (group 0/fallback): backend roce_ring has none. Said once"]


def cpu_is_gloos(rank: Rank) -> tuple[float, int, str]:
    import torch
    import torch.distributed as dist

    ring = join(rank, "gloos", "cpu:gloo,cuda:roce_ring")
    x = torch.ones(3, dtype=torch.float64)
    dist.all_reduce(x)
    dist.barrier()
    seen = x[0].item(), len(ring._open_communicators()), dist.get_backend_config()
    leave()
    return seen


def test_cpu_tensors_stay_with_gloo_if_the_user_says_so(start: Starter) -> None:
    """`cpu:gloo,cuda:roce_ring`: no warning about what nobody asked of the ring, and no memory for it."""
    assert start(cpu_is_gloos, 2).values() == [(2.0, 0, "cpu:gloo,cuda:roce_ring")] * 2


# ---- groups, and what goes wrong ----


def halves(rank: Rank) -> dict[str, Any]:
    """Two groups of two beside the world of four; then rank 3 dies."""
    import torch
    import torch.distributed as dist

    join(rank, "halves")
    me = rank.rank
    even, odd = dist.new_group([0, 2]), dist.new_group([1, 3])
    alone = dist.new_group([me], use_local_synchronization=True)
    mine = odd if me % 2 else even
    x = torch.tensor([float(me)])
    dist.all_reduce(x, group=mine)
    y = torch.tensor([float(me)])
    dist.all_reduce(y)
    dist.all_reduce(torch.ones(1), group=alone)
    dist.barrier()
    sockets = sorted(path.name for path in rank.where.glob("halves*.sock"))
    dist.barrier()
    if me == 3:
        os.kill(os.getpid(), 9)
    began, errors = time.monotonic(), []
    works = [dist.all_reduce(torch.ones(5), async_op=True) for _ in range(2)]
    futures = [work.get_future() for work in works]
    calls = [works[0].wait, works[1].wait, futures[1].wait, dist.barrier, lambda: dist.all_reduce(torch.ones(1))]
    if me == 1:
        calls.append(lambda: dist.all_reduce(torch.ones(1), group=mine))
    for call in calls:
        try:
            call()
        except RuntimeError as error:
            errors.append((type(error).__name__, str(error), getattr(error.__cause__, "culprit", None)))
    took = time.monotonic() - began
    z = torch.tensor([float(me)])
    if me != 1:
        dist.all_reduce(z, group=mine)  # without rank 3
    leave()
    return {"sums": (x.item(), y.item(), z.item()), "sockets": sockets, "errors": errors, "took": took}


def test_groups_have_rings_of_their_own_and_a_dead_rank_is_named_in_those_it_was_in(start: Starter) -> None:
    """Whatever a rank does when another dies (a call, a wait, DDP's future, a barrier), it hears who, in seconds."""
    ranks = start(halves, 4)
    ranks.dies(3)
    outcomes = ranks.finish(allow=("a peer's process is gone",))
    names = {f"halves.group0.cpu-r{r}.sock" for r in range(4)}
    names |= {f"halves.group{group}.cpu-r{r}.sock" for group in (1, 2) for r in range(2)}
    for one, sums in zip(outcomes, [(2, 6, 2), (4, 6, 1), (2, 6, 2)], strict=True):
        assert one.error is None, one.error.traceback
        assert one.value["sums"] == sums
        assert set(one.value["sockets"]) == names
        assert one.value["took"] < 5
        assert len(one.value["errors"]) == 5 + (one.rank == 1)
        for kind, message, culprit in one.value["errors"][:5]:
            assert re.search("(all_reduce|barrier) in process group 0: rank 3: a peer's process is gone", message)
            if "running the callback" not in message:  # what a torch Future makes of any error
                assert (kind, culprit) == ("DistBackendError", 3)
    _, message, culprit = outcomes[1].value["errors"][5]
    assert message.startswith("all_reduce in process group 2: rank 1: a peer's process is gone")
    assert message.endswith("[ranks 0, 1 of this group are global ranks 1, 3]")
    assert culprit == 1


def absent(rank: Rank) -> str:
    """Rank 1 never makes the call that all others make."""
    import torch
    import torch.distributed as dist

    join(rank, "absent", ROCE_RING_PEER_TIMEOUT_S="1", ROCE_RING_LATE_S="0.5")
    said = ""
    if rank.rank != 1:
        with pytest.raises(dist.DistBackendError) as caught:
            dist.all_reduce(torch.ones(1))
        said = str(caught.value)
        with pytest.raises(dist.DistBackendError):
            dist.all_reduce(torch.ones(1))  # at once: nobody is met again
    leave()
    return said


def test_a_rank_that_does_not_come_to_the_first_call_is_named(start: Starter) -> None:
    said = start(absent, 3).values()
    why = "all_reduce in process group 0: rank 1 did not arrive within 1 s; arrived: 0, 2"
    assert [one.startswith(why) for one in said] == [True, False, True], said


def orphan(rank: Rank, store: str) -> tuple[str, float]:
    """Rank 0, which holds the store, is gone before the first call."""
    import torch
    import torch.distributed as dist

    join(rank, "orphan", store=store)
    rank.say("joined")
    rank.wait()
    began = time.monotonic()
    with pytest.raises(dist.DistBackendError) as caught:
        dist.all_reduce(torch.ones(1))
    took = time.monotonic() - began
    leave()
    return str(caught.value), took


def test_the_store_s_host_that_is_gone_is_told_at_once_and_not_after_torch_s_timeout(start: Starter) -> None:
    ranks = start(orphan, 2, store=f"tcp://127.0.0.1:{free_port()}")
    ranks.wait_for("joined")
    ranks.kill(0)
    ranks.go()
    [(said, took)] = ranks.values()
    assert said.startswith("all_reduce in process group 0: the store of the process group does not answer any more: ")
    assert took < 3


def refused(rank: Rank, name: str, environment: dict[str, str], ranks: list[int]) -> None:
    """One rank's environment is wrong, or a group is not the plan's."""
    import torch.distributed as dist

    join(rank, name, **environment)
    if rank.rank in ranks:
        dist.new_group(ranks, use_local_synchronization=True)
    leave()


MAPS = {
    "ROCE_RING_PROVIDER": "shm",
    "ROCE_RING_HCA": "rocep1s0f0,rocep1s0f1,roceP2p1s0f0,roceP2p1s0f1",
    "ROCE_RING_PEER_HCA_MAPS": "1=1/3,2=0/3,3=0/2;0=0/2,2=1/3,3=1/2;0=1/2,1=0/2,3=1/3;0=1/3,1=0/3,2=0/2",
}


def test_wrong_settings_of_one_rank_stop_all_of_them_when_the_group_is_made(start: Starter) -> None:
    wrong = {1: {"environment": {"ROCE_RING_MODE": "roundabout"}}}
    for error in start(refused, 2, per_rank=wrong, name="wrong", environment={}, ranks=[]).errors():
        assert error.type == "SetupError"
        assert "rank 1: environment: ROCE_RING_MODE: expected one of auto, full" in error.message


def test_a_group_that_is_not_the_plans_is_refused_in_one_sentence(start: Starter) -> None:
    """A plan knows paths between all of its ranks by their numbers; a part of them has others."""
    outcomes = start(refused, 4, name="part", environment=MAPS, ranks=[0, 1]).finish()
    sentence = "rank 0: the plan is for 4 ranks, this process group has 2 (give such a group another backend: "
    for one in outcomes[:2]:
        assert one.error and sentence in one.error.message, one
    assert [one.error for one in outcomes[2:]] == [None, None]


def neighbours_only(rank: Rank) -> tuple[float, list[float]]:
    import torch
    import torch.distributed as dist

    ring = join(rank, "neighbours", ROCE_RING_MODE="ring", **MAPS)
    x = torch.ones(3)
    dist.all_reduce(x)
    outs = [torch.empty(1) for _ in range(rank.world)]
    dist.all_gather(outs, torch.tensor([float(rank.rank)]))
    assert operations(ring) == 1
    leave()
    return x[0].item(), torch.cat(outs).tolist()


def test_gathers_go_to_gloo_where_only_ring_neighbours_have_paths(start: Starter) -> None:
    """A ring without forwarding still sums; DDP, which also gathers and broadcasts, must not fail on it."""
    outcomes = start(neighbours_only, 4).finish(allow=("goes to gloo",))
    assert [one.value for one in outcomes] == [(4.0, [0.0, 1.0, 2.0, 3.0])] * 4, [one.error for one in outcomes]
    why = "mode ring connects ring neighbours only; set ROCE_RING_MODE to auto to have it here"
    assert outcomes[0].said(f"^all_gather goes to gloo \\(group 0/fallback\\): {why}. Said once$")


# ---- a training ----


def train(rank: Rank, backend: str, port: int) -> str:
    """examples/ddp_toy.py as torchrun starts it, but with torch loaded already; what it prints."""
    import contextlib
    import io
    import runpy

    os.environ |= {
        "RANK": str(rank.rank), "WORLD_SIZE": str(rank.world), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port),
    }  # fmt: skip
    sys.argv = ["ddp_toy.py", "--backend", backend]
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        runpy.run_path(str(ROOT / "examples/ddp_toy.py"), run_name="__main__")
    return printed.getvalue()


@pytest.mark.timeout(150)  # seven processes load torch
def test_torchrun_trains_ddp_to_the_same_losses_as_gloo(start: Starter) -> None:
    """The example's command, against gloo over four ranks, to the last printed digit."""
    torchrun = Path(sys.executable).with_name("torchrun")
    command = [torchrun, "--standalone", "--nproc-per-node", "4", "examples/ddp_toy.py"]  # standalone: any free port
    environment = os.environ | {
        "ROCE_RING_RUN_DIR": str(start.where),
        "ROCE_RING_NAME": "train",
        "OMP_NUM_THREADS": "1",
    }
    run = subprocess.run(
        [*command, "--backend", "roce_ring"],
        cwd=ROOT, env=environment, capture_output=True, text=True, timeout=100, check=False,
    )  # fmt: skip
    assert run.returncode == 0, run.stderr
    assert "goes to gloo" not in run.stderr
    of_gloo = start(train, 4, backend="gloo", port=free_port()).values()[0]
    assert run.stdout == of_gloo
    losses = [float(one) for one in re.findall(r"loss ([\d.]+)", run.stdout)]
    assert len(losses) == 4 and losses[-1] < losses[0] < 0.2
    assert "4 ranks, 257 parameters: the same bits on all ranks" in run.stdout
