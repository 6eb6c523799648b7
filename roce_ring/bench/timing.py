"""How long a case takes, sample by sample."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from . import data
from .cases import GLOO, Case
from .check import Runner, exact_answer, exact_input, sides

# Calls per visit that are not counted: they bring buffers into caches and threads into step. Never more than samples.
WARM_UP = 5


class Times(msgspec.Struct):
    """Microseconds. A sample is the time of the slowest rank."""

    minimum: float
    median: float
    p99: float
    maximum: float
    samples: int
    mean: float = 0.0


def visit(
    runner: Runner,
    barrier: Callable[[], object],
    sampled: Callable[[], object],
    case: Case,
    rank: int,
    world: int,
    turn: int,
    samples: int,
) -> tuple[NDArray[np.float64], int]:
    """Collective. Nanoseconds an operation of `samples` out-of-place calls on this rank, ranks meeting before each; and
    how many elements the last one got wrong. `sampled` is called after each."""
    inputs, outputs = sides(case, world)
    x, out = runner.place(0, case.dtype, inputs), runner.place(1, case.dtype, outputs)
    x.values[:] = exact_input(case, rank, world, turn)
    wanted = exact_answer(case, rank, world, turn)
    source, target = x.tensor(), out.tensor()
    x.send()
    out.send()
    call = runner.timed(case, source, target)
    in_place = case.mode == GLOO
    taken = np.empty(samples)
    clock = time.perf_counter_ns
    for i in range(-min(WARM_UP, samples), samples):
        if in_place:
            target[:] = source
        barrier()
        began = clock()
        call()
        ended = clock()
        taken[max(i, 0)] = (ended - began) / runner.ops
        if i >= 0:
            sampled()
    x.fetch()
    out.fetch()
    return taken, data.differing(out.values, wanted) + out.spilled() + x.spilled()


def summarize(per_rank: list[NDArray[np.float64]]) -> Times:
    us = np.max(per_rank, axis=0) / 1000
    p: Any = np.percentile(us, [50, 99])
    return Times(float(us.min()), float(p[0]), float(p[1]), float(us.max()), len(us), float(us.mean()))
