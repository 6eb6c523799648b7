"""The residual add and RMSNorm behind an all-reduce, and the prefetch beside it, as an engine calls them."""

from __future__ import annotations

import hashlib
from typing import Any

import numpy as np
import pytest

from tests.local.ranks import Rank, Starter
from tests.norm import normed

EPS = 1e-5
# Rows and hidden sizes: one row as in decoding, rows of no whole packs, more elements than 512 lanes take in one go.
SHAPES = ((1, 4096), (8, 2880), (3, 5, 129), (2, 9001), (7, 1))


def layer(case: int, world: int, shape: tuple[int, ...], dtype: str) -> tuple[list[np.ndarray], np.ndarray, np.ndarray]:
    """Every rank's partial result, and the residual and the weights that all ranks have."""
    rng = np.random.default_rng(case)
    parts = [(rng.standard_normal(shape) * 3).astype(dtype) for _ in range(world)]
    return parts, rng.standard_normal(shape).astype(dtype), rng.standard_normal(shape[-1]).astype(dtype)


def expected(total: np.ndarray, residual: np.ndarray, weight: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Output and new residual."""
    kind, shape = total.dtype, total.shape
    rows = (-1, shape[-1])
    out, h = normed(
        total.astype(np.float32).reshape(rows),
        residual.astype(np.float32).reshape(rows),
        weight.astype(np.float32),
        EPS,
        16 // kind.itemsize,
        lambda values: values.astype(kind).astype(np.float32),
    )
    return out.reshape(shape).astype(kind), h.reshape(shape).astype(kind)


def all_raw_modes(me: Rank) -> str:
    from roce_ring.modes import modes

    bits, case = hashlib.sha256(), 0
    with me.communicator() as ar:
        for name, mode in modes().items():
            if not mode.raw or mode.refusal(me.world, access=ar.session.access):
                continue
            for shape in SHAPES:
                for dtype in ("float32", "float16"):
                    case += 1
                    parts, residual, weight = layer(case, me.world, shape, dtype)
                    total = ar.all_reduce(parts[me.rank], mode=name)
                    output, new = expected(total, residual, weight)
                    x = parts[me.rank].copy()
                    out = x if case % 2 else np.empty_like(x)
                    got, r = ar.all_reduce(
                        x, out, mode=name, residual=residual, norm_weight=weight, eps=EPS, prefetch=[weight, parts[0]]
                    )
                    assert got is out and r is residual
                    where = f"{name}, {dtype}{list(shape)}"
                    np.testing.assert_array_equal(r, new, where)
                    np.testing.assert_array_equal(got, output, where)
                    bits.update(got.tobytes())
    return bits.hexdigest()


@pytest.mark.parametrize(("provider", "world"), [("shm", 2), ("shm", 4), ("pcie", 3)])
def test_the_fused_norm_is_the_norm_of_the_sum(start: Starter, provider: str, world: int) -> None:
    """To the bit, in every mode that adds raw contributions: fusing must not change what a model says."""
    assert len(set(start(all_raw_modes, world, settings={"provider": provider}).values())) == 1


def refused(me: Rank) -> list[str]:
    """Each wrong call, and that the communicator works on."""
    from roce_ring.errors import UnsupportedError

    said = []
    with me.communicator() as ar:
        x, r, w = np.ones((4, 8), np.float32), np.ones((4, 8), np.float32), np.ones(8, np.float32)
        wrong: list[dict[str, Any]] = [
            {"norm_weight": w},
            {"residual": r},
            {"residual": r, "norm_weight": w, "mode": "ring"},
            {"residual": r[:3], "norm_weight": w},
            {"residual": r, "norm_weight": w.astype(np.float16)},
            {"residual": x, "norm_weight": w},
            {"residual": r, "norm_weight": r[1]},
            {"residual": r, "norm_weight": w, "eps": -1.0},
            {"residual": r, "norm_weight": w, "eps": 1},
            {"prefetch": w},
            {"prefetch": [w] * 9},
            {"prefetch": [w, r.T]},
        ]
        for one in wrong:
            with pytest.raises(UnsupportedError) as caught:
                ar.all_reduce(x, **one)
            said.append(caught.value.message)
        with pytest.raises(UnsupportedError) as caught:
            ar.all_reduce(np.ones((), np.float32), residual=np.zeros((), np.float32), norm_weight=w)
        said.append(caught.value.message)
        assert (ar.all_reduce(x) == me.world).all()
    return said


def test_what_does_not_fit_is_one_sentence_on_every_rank(start: Starter) -> None:
    """A caller who mixes up shapes or buffers must not get a norm of something else."""
    like_x = "expected a contiguous writable float32[4, 8] on cpu, as x is"
    for said in start(refused, 2).values():
        assert said == [
            "all_reduce: norm_weight is given without residual",
            "all_reduce: residual is given without norm_weight",
            "all_reduce: mode ring has no fused norm: it passes partial sums on",
            f"all_reduce: residual is a float32[3, 8] on cpu, {like_x}",
            "all_reduce: norm_weight is a float16[8] on cpu, expected a contiguous float32[8] on cpu: one row of x",
            "all_reduce: residual overlaps x",
            "all_reduce: norm_weight overlaps residual",
            "all_reduce: eps is -1.0, expected a finite float of at least 0",
            "all_reduce: eps is 1, expected a finite float of at least 0",
            "all_reduce: prefetch is a ndarray, expected a list of tensors",
            "all_reduce: prefetch has 9 tensors, at most 8 are taken",
            "all_reduce: tensor 1 of prefetch is not contiguous",
            "all_reduce: x has no dimension, a norm needs rows",
        ]


def different_norms(me: Rank) -> None:
    with me.communicator(peer_timeout_s=5.0) as ar:
        x, r, w = np.ones((4, 8), np.float32), np.ones((4, 8), np.float32), np.ones(8, np.float32)
        if me.rank == 0:
            ar.all_reduce(x)
        else:
            ar.all_reduce(x, residual=r, norm_weight=w, eps=EPS * me.rank)


@pytest.mark.parametrize("world", [2, 3])
def test_ranks_that_norm_differently_hear_of_it(start: Starter, world: int) -> None:
    """A rank with another eps, or none, would go on with other activations than its peers."""
    for one in start(different_norms, world).errors(allow=("disagree",)):
        assert one.code == "op_mismatch", one.message
