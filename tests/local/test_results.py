"""Results are right: every mode, dtype, odd size, alignment and kind of array, the same bits on all ranks."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from tests.local.ranks import Rank, Starter

MAX_BYTES = 1 << 18
SIZES = (1, 2, 3, 5, 17, 511, 4096, 4099, 30_721, 65_536)  # elements; the last is MAX_BYTES of float32
WORLDS = [("shm", 2), ("shm", 3), ("shm", 5), ("pcie", 2), ("pcie", 3), ("pcie", 4), ("pcie", 8)]


def inputs(case: int, world: int, count: int, dtype: str, whole: bool) -> list[np.ndarray]:
    """Every rank's input, as every rank computes it. `whole`: small numbers whose sums are exact in every dtype."""
    rng = np.random.default_rng([case, count])
    if whole:
        return [rng.integers(-8, 9, count).astype(dtype) for _ in range(world)]
    return [(rng.standard_normal(count) * 10 ** rng.uniform(-3, 3, count)).astype(dtype) for _ in range(world)]


def sum_in_rank_order(parts: list[np.ndarray]) -> np.ndarray:
    """fp32, rank 0 first, one rounding at the end: what modes promise in which raw contributions meet."""
    total = parts[0].astype(np.float32)
    for part in parts[1:]:
        total = total + part.astype(np.float32)
    return total.astype(parts[0].dtype)


def views(x: np.ndarray, case: int) -> Iterator[tuple[str, np.ndarray, np.ndarray | None]]:
    """The same numbers where user code may have them: (what, x, out)."""
    yield "new result", x, None
    yield "in place", (own := x.copy()), own
    behind = np.zeros(x.size + 3, x.dtype)
    behind[1:-2] = x
    yield "one element off", behind[1:-2], np.zeros(x.size + 1, x.dtype)[1:]
    raw = np.zeros(x.nbytes + 1, np.uint8)[1:]
    odd = raw[: x.nbytes].view(x.dtype)
    odd[:] = x
    yield "at an odd address", odd, np.zeros(x.nbytes + 1, np.uint8)[1:].view(x.dtype)


def all_modes(me: Rank) -> str:
    """Returns a digest of all results."""
    from roce_ring.modes import modes

    bits = hashlib.sha256()
    case = 0
    with me.communicator(max_bytes=MAX_BYTES) as ar:
        for name, mode in modes().items():
            if mode.refusal(me.world, access=ar.session.access):
                continue
            for dtype in ("float32", "float16"):
                for count in SIZES if me.world <= 5 else SIZES[::3]:  # many ranks on few cores take long
                    case += 1
                    for whole in (True, False):
                        parts = inputs(case, me.world, count, dtype, whole)
                        expected = sum_in_rank_order(parts)
                        where = f"{name}, {dtype}, {count} elements"
                        for what, x, out in views(parts[me.rank], case):
                            got = ar.all_reduce(x, out, mode=name)
                            assert got is out or out is None
                            check(got, expected, parts, mode.raw or whole, f"{where}, {what}")
                            bits.update(got.tobytes())
    return bits.hexdigest()


def check(got: np.ndarray, expected: np.ndarray, parts: list[np.ndarray], exact: bool, where: str) -> None:
    assert got.dtype == expected.dtype and got.shape == expected.shape, where
    if exact:
        wrong = np.flatnonzero(got != expected)
        assert wrong.size == 0, f"{where}: {wrong.size} wrong, first at {wrong[:3]}: {got[wrong[:3]]}"
        return
    # Partial sums travel: one rounding to the dtype per hop, each at most half a unit of the largest partial sum.
    magnitude = sum(np.abs(part.astype(np.float64)) for part in parts)
    error = np.abs(got.astype(np.float64) - sum(part.astype(np.float64) for part in parts))
    unit = float(np.finfo(got.dtype).eps)
    worst = float((error - len(parts) * unit * magnitude - np.finfo(got.dtype).smallest_subnormal * len(parts)).max())
    assert worst <= 0, f"{where}: off by {worst} more than the rounding of {len(parts)} hops"


@pytest.mark.parametrize(("provider", "world"), WORLDS)
def test_all_reduce_in_every_mode(start: Starter, provider: str, world: int) -> None:
    """A wrong sum is the one fault that nobody notices. Exact where that is promised, the same bits on all ranks."""
    digests = start(all_modes, world, settings={"provider": provider}).values(timeout_s=55)
    assert len(set(digests)) == 1, "ranks hold different bits"


def again_and_again(me: Rank) -> int:
    """The same random input many times, other operations between them."""
    from roce_ring.modes import modes

    seen: dict[str, set[bytes]] = {}
    with me.communicator(max_bytes=MAX_BYTES) as ar:
        x = inputs(7, me.world, 5000, "float16", whole=False)[me.rank]
        for n in range(40):
            for name, mode in modes().items():
                if not mode.refusal(me.world, access=ar.session.access):
                    seen.setdefault(name, set()).add(ar.all_reduce(x, mode=name).tobytes())
                    seen.setdefault(f"{name} fp32", set()).add(
                        ar.all_reduce(x, mode=name, fp32_partials=True).tobytes()
                    )
            ar.all_gather(x[: n + 1])
    return max(map(len, seen.values()))


@pytest.mark.parametrize("provider", ["shm", "pcie"])
def test_the_same_bits_on_every_repeat(start: Starter, provider: str) -> None:
    """Runs must be reproducible: the order of arrival may not show in a result."""
    assert start(again_and_again, 4, settings={"provider": provider}).values() == [1] * 4


def gathers_and_scatters(me: Rank) -> None:
    def of(rank: int, shape: tuple[int, ...], dtype: str) -> np.ndarray:
        return np.random.default_rng(rank).integers(0, 100, shape).astype(dtype)

    everybody = range(me.world)
    with me.communicator(max_bytes=MAX_BYTES) as ar:
        for dtype in ("float32", "float16", "int64", "uint8", "bool", "complex128"):
            for shape in ((1,), (7,), (3, 5), (2, 3, 4), (1, 1), (129, 1), (1, 1001)):
                for dim in {0, -1, len(shape) - 1}:
                    got = ar.all_gather(of(me.rank, shape, dtype), dim=dim)
                    np.testing.assert_array_equal(got, np.concatenate([of(r, shape, dtype) for r in everybody], dim))
                sizes = [0 if r == 1 else 2 * r + 1 for r in everybody]  # rank 1 has nothing
                for dim in (0, len(shape) - 1):
                    mine = [(*shape[:dim], size, *shape[dim + 1 :]) for size in sizes]
                    got = ar.all_gather(of(me.rank, mine[me.rank], dtype), dim=dim, sizes=sizes)
                    expected = np.concatenate([of(r, mine[r], dtype) for r in everybody], dim)
                    np.testing.assert_array_equal(got, expected)
                    assert got.dtype == dtype
        for dtype in ("float32", "float16"):
            for rest in ((1,), (17,), (5, 3), (4097,)):
                shape = (me.world * rest[0], *rest[1:])
                parts = [of(r, shape, dtype) for r in everybody]
                out = np.zeros(rest, dtype)
                assert ar.reduce_scatter(parts[me.rank], out) is out
                begin = me.rank * rest[0]
                np.testing.assert_array_equal(out, sum(parts[1:], start=parts[0])[begin : begin + rest[0]])


@pytest.mark.parametrize(("provider", "world"), WORLDS)
def test_all_gather_and_reduce_scatter(start: Starter, provider: str, world: int) -> None:
    """Along the first and the last dimension, with unequal and empty shards, of any dtype."""
    start(gathers_and_scatters, world, settings={"provider": provider}).values()


def torch_tensors(me: Rank) -> str:
    import torch

    from roce_ring.modes import modes

    bits = hashlib.sha256()
    with me.communicator(max_bytes=MAX_BYTES) as ar:
        for dtype in (torch.float32, torch.float16, torch.bfloat16):
            for name, mode in modes().items():
                if mode.refusal(me.world, access=ar.session.access):
                    continue
                for count in (1, 17, 4099, 65_536):
                    parts = []
                    for rank in range(me.world):
                        generator = torch.Generator().manual_seed(1000 * rank + count)
                        parts.append(torch.randint(-8, 9, (count,), generator=generator).to(dtype))
                    expected = torch.stack(parts).float().sum(0).to(dtype)
                    x = parts[me.rank]
                    assert torch.equal(ar.all_reduce(x, mode=name), expected), f"{name}, {dtype}, {count} elements"
                    assert torch.equal(x, parts[me.rank])
                    assert ar.all_reduce(x, x, mode=name) is x  # in place
                    assert torch.equal(x, expected)
                    bits.update(x.view(torch.uint8).numpy().tobytes())
            x = torch.full((2, 3), float(me.rank), dtype=dtype)
            wide = ar.all_gather(x, dim=-1)
            assert wide.dtype == dtype and wide.shape == (2, 3 * me.world)
            assert wide[0].tolist() == [float(r) for r in range(me.world) for _ in range(3)]
            rows = ar.reduce_scatter(torch.ones(2 * me.world, 4, dtype=dtype))
            assert rows.shape == (2, 4) and (rows == me.world).all()
        parameter = torch.nn.Parameter(torch.ones(5))
        with torch.no_grad():
            assert (ar.all_reduce(parameter) == me.world).all()
    return bits.hexdigest()


@pytest.mark.parametrize(("provider", "world"), [("shm", 2), ("shm", 3), ("pcie", 3)])
def test_torch_tensors(start: Starter, provider: str, world: int) -> None:
    """The same over torch CPU tensors, bfloat16 included."""
    pytest.importorskip("torch", reason="torch is not installed; CI installs its CPU build")
    assert len(set(start(torch_tensors, world, settings={"provider": provider}).values())) == 1


def over_gloo(me: Rank) -> Any:
    import torch
    import torch.distributed as dist

    from roce_ring import AllReduce

    dist.init_process_group("gloo", init_method=f"file://{me.where}/gloo", rank=me.rank, world_size=me.world)
    try:
        with AllReduce.from_torch(settings=me.settings()) as ar:
            got = ar.all_reduce(torch.arange(10.0))
            reference = torch.arange(10.0)
            dist.all_reduce(reference)
            assert torch.equal(got, reference)
            ar.reset()
            assert torch.equal(ar.all_reduce(torch.arange(10.0)), reference)
    finally:
        dist.destroy_process_group()


def test_from_a_torch_process_group(start: Starter) -> None:
    """What engines have: no rendezvous of ours; a process group brings the ranks together, reset() uses it again."""
    pytest.importorskip("torch", reason="torch is not installed; CI installs its CPU build")
    start(over_gloo, 2).values()
