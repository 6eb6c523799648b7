"""Is every value right? Runs one case with outputs full of NaN and inputs that have one right answer, and counts."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from typing import Any, Protocol

import msgspec
import numpy as np

from . import data
from .cases import GLOO, ITEM_BYTES, Case
from .data import Array, Placed

# How many bytes past a 64-byte boundary input and output lie; None: in place. 1 and 3 leave even elements unaligned.
_QUICK: list[tuple[int, int | None]] = [(0, 0), (0, None)]
_THOROUGH: list[tuple[int, int | None]] = [*_QUICK, (16, 48), (1, 3), (8, 1), (3, None), (60, None)]
_REPEATS = 3


class Runner(Protocol):
    """What can run cases: AllReduce, or gloo. `ops`: operations in one call of what timed() gives."""

    ops: int

    def place(self, which: int, dtype: str, count: int, offset: int = 0) -> Placed:
        """Room for a tensor, `which` of two, 0 or 1; it holds until the next of this number."""
        ...

    def bind(self, case: Case, x: Any, out: Any) -> Callable[[], object]:
        """The case's operation on these tensors, ready to be called many times; done when it returns."""
        ...

    def timed(self, case: Case, x: Any, out: Any) -> Callable[[], object]:
        """What is timed, on tensors at offset 0."""
        ...


class Wrong(msgspec.Struct):
    """Counts of one case, of one rank or summed over all: wrong elements (and bytes written beside the output) out of
    place and in place, and results whose bits depended on rank, repeat, alignment or order of addition."""

    out: int = 0
    in_place: int = 0
    bits: int = 0

    @property
    def total(self) -> int:
        return self.out + self.in_place + self.bits

    def __add__(self, other: Wrong) -> Wrong:
        return Wrong(self.out + other.out, self.in_place + other.in_place, self.bits + other.bits)


def sides(case: Case, world: int) -> tuple[int, int]:
    """Elements of a rank's input and of its output."""
    inputs = case.count * (world if case.op == "reduce_scatter" else 1)
    return inputs, case.count * (world if case.op == "all_gather" else 1)


def exact_input(case: Case, rank: int, world: int, turn: int) -> Array:
    if case.op == "all_gather":
        return data.any_bits(case.dtype, case.count, rank, turn)
    return data.integers(case.dtype, sides(case, world)[0], rank, world, turn)


def exact_answer(case: Case, rank: int, world: int, turn: int) -> Array:
    if case.op == "all_gather":
        return np.concatenate([data.any_bits(case.dtype, case.count, one, turn) for one in range(world)])
    total = data.sum_of_integers(case.dtype, sides(case, world)[0], world, turn)
    return _own(case, total, rank)


def _own(case: Case, total: Array, rank: int) -> Array:
    return total[rank * case.count : (rank + 1) * case.count] if case.op == "reduce_scatter" else total


def check(
    runner: Runner, gather: Callable[[bytes], list[bytes]], case: Case, rank: int, world: int, turn: int, thorough: bool
) -> Wrong:
    """Collective: every rank checks the same case with the same `turn`, 16 apart from any other call's. `gather`:
    everybody's bytes. Returns this rank's counts."""
    wrong = Wrong()
    thorough = thorough and case.mode != GLOO  # what torch promises is not ours to test
    for i, (at, to) in enumerate(_THOROUGH if thorough else _QUICK):
        count = check_once(runner, case, rank, world, turn + i, at, to)
        if to is None:
            wrong.in_place += count
        else:
            wrong.out += count
    if thorough and case.op != "all_gather":
        wrong.bits += check_bits(runner, gather, case, rank, world, turn + len(_THOROUGH))
    return wrong


def check_once(runner: Runner, case: Case, rank: int, world: int, turn: int, at: int, to: int | None) -> int:
    """One operation on fresh exact data; how many elements are wrong. In place means what it means to MPI and NCCL: the
    smaller of input and output lies at this rank's place in the larger."""
    inputs, outputs = sides(case, world)
    room = runner.place(0, case.dtype, max(inputs, outputs) if to is None else inputs, at)
    target = room if to is None else runner.place(1, case.dtype, outputs, to)
    inside = rank * case.count if to is None else 0
    x_at = inside if case.op == "all_gather" else 0
    out_at = inside if case.op == "reduce_scatter" else 0
    room.values[x_at : x_at + inputs] = exact_input(case, rank, world, turn)
    _run(runner, case, world, (room, x_at), (target, out_at))
    wrong = data.differing(target.values[out_at : out_at + outputs], exact_answer(case, rank, world, turn))
    return wrong + target.spilled() + (room.spilled() if room is not target else 0)


def _run(runner: Runner, case: Case, world: int, x: tuple[Placed, int], out: tuple[Placed, int]) -> None:
    """Where input and output are, and how many elements in they begin."""
    inputs, outputs = sides(case, world)
    rooms = {id(room): room for room, _ in (x, out)}.values()
    for room in rooms:
        room.send()
    runner.bind(case, x[0].tensor(x[1], inputs), out[0].tensor(out[1], outputs))()
    for room in rooms:
        room.fetch()


def check_bits(
    runner: Runner, gather: Callable[[bytes], list[bytes]], case: Case, rank: int, world: int, turn: int
) -> int:
    """Sums that round: the same bits on every repeat, at every alignment and on every rank; where raw contributions
    meet, those of adding up in fp32 from rank 0 on and rounding once."""
    inputs, outputs = sides(case, world)
    mine = data.reals(case.dtype, inputs, rank, turn)
    digests = []
    wrong = 0
    for repeat in range(_REPEATS):
        room = runner.place(0, case.dtype, inputs, repeat * ITEM_BYTES[case.dtype])
        target = runner.place(1, case.dtype, outputs, repeat)
        room.values[:] = mine
        _run(runner, case, world, (room, 0), (target, 0))
        if repeat == 0 and case.raw:
            wrong = data.differing(target.values, _own(case, data.sum_of_reals(case.dtype, inputs, world, turn), rank))
        digests.append(hashlib.blake2b(target.values.tobytes(), digest_size=16).digest())
    wrong += sum(one != digests[0] for one in digests)
    if case.op == "all_reduce":
        wrong += gather(digests[0])[0] != digests[0]
    return wrong
