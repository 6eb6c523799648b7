"""What ranks do in one operation of a trace. N ranks, S bytes: who reads from or writes to whom, in which steps."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from ..native import STALL_HOST_READ, STALL_HOST_WRITE, STALL_READ, STALL_TAKE, STALL_WRITE

PACK_BYTES = 16


@dataclass(frozen=True, slots=True)
class Step:
    """`kind`: of native.STALL_*. `peers`: all at the same time, a unit each in turn. `meet`: all ranks meet behind it;
    if one does, all do."""

    kind: int
    peers: tuple[int, ...]
    bytes: int
    meet: bool = False


@dataclass(frozen=True, slots=True)
class Pattern:
    """`steps`: (rank, N, S) -> what that rank does after all have met; equally many meetings on all ranks."""

    meaning: str
    steps: Callable[[int, int, int], list[Step]]


def _others(rank: int, world: int) -> tuple[int, ...]:
    return tuple(peer for peer in range(world) if peer != rank)


def _chunk(world: int, size: int) -> int:
    return -(-size // (world * PACK_BYTES)) * PACK_BYTES


def _to_next(kind: int) -> Callable[[int, int, int], list[Step]]:
    return lambda rank, world, size: [Step(kind, ((rank + 1) % world,), size)]


def _to_all(kind: int) -> Callable[[int, int, int], list[Step]]:
    return lambda rank, world, size: [Step(kind, _others(rank, world), size)]


def _to_first(kind: int) -> Callable[[int, int, int], list[Step]]:
    return lambda rank, world, size: [Step(kind, (0,), size)] if rank else []


def _one_pair(kind: int) -> Callable[[int, int, int], list[Step]]:
    return lambda rank, world, size: [] if rank else [Step(kind, (1,), size)]


def _pull(rank: int, world: int, size: int) -> list[Step]:
    return [Step(STALL_WRITE, (rank,), size, meet=True), Step(STALL_READ, _others(rank, world), size)]


def _push(rank: int, world: int, size: int) -> list[Step]:
    return [Step(STALL_WRITE, _others(rank, world), size, meet=True), Step(STALL_TAKE, tuple(range(world)), size)]


def _one_a_phase(rank: int, world: int, size: int) -> list[Step]:
    """Phase p: to p + 1 places further; one stream out of and one into each rank."""
    return [Step(STALL_WRITE, ((rank + 1 + p) % world,), size, meet=True) for p in range(world - 1)]


def _push_phased(rank: int, world: int, size: int) -> list[Step]:
    return [*_one_a_phase(rank, world, size), Step(STALL_TAKE, tuple(range(world)), size)]


def _ring(rank: int, world: int, size: int) -> list[Step]:
    chunk = _chunk(world, size)
    hop = [
        Step(STALL_WRITE, ((rank + 1) % world,), chunk, meet=True),
        Step(STALL_TAKE, ((rank - 1) % world,), chunk),
    ]
    return hop * (2 * (world - 1))


def _rsag_push(rank: int, world: int, size: int) -> list[Step]:
    out = Step(STALL_WRITE, _others(rank, world), _chunk(world, size), meet=True)
    return [out, Step(STALL_TAKE, tuple(range(world)), out.bytes), out]


def _rsag_phased(rank: int, world: int, size: int) -> list[Step]:
    out = _one_a_phase(rank, world, _chunk(world, size))
    return [*out, Step(STALL_TAKE, tuple(range(world)), out[0].bytes), *out]


def _rsag_pull(rank: int, world: int, size: int) -> list[Step]:
    chunk = _chunk(world, size)
    return [Step(STALL_READ, _others(rank, world), chunk, meet=True), Step(STALL_READ, _others(rank, world), chunk)]


def _host(kind: int) -> Callable[[int, int, int], list[Step]]:
    return lambda rank, world, size: [Step(kind, (), size)]


# Names and bytes as in the published study of a host whose GPUs sit below four quadrants of an IO die.
PATTERNS = {
    "read_ring": Pattern("reads S from the next rank", _to_next(STALL_READ)),
    "read_all": Pattern("reads S from every other rank, all at once", _to_all(STALL_READ)),
    "read_incast": Pattern("all others read S from rank 0", _to_first(STALL_READ)),
    "read_pair": Pattern("rank 0 reads S from rank 1; the others only meet", _one_pair(STALL_READ)),
    "write_ring": Pattern("writes S to the next rank", _to_next(STALL_WRITE)),
    "write_all": Pattern("writes S to every other rank, all at once", _to_all(STALL_WRITE)),
    "write_incast": Pattern("all others write S to rank 0", _to_first(STALL_WRITE)),
    "write_pair": Pattern("rank 0 writes S to rank 1; the others only meet", _one_pair(STALL_WRITE)),
    "pull": Pattern("one-shot: puts S out, then reads everybody's", _pull),
    "push": Pattern("one-shot: writes S to all at once, then reads what came", _push),
    "push_phased": Pattern("one-shot: writes S to one rank a phase, then reads what came", _push_phased),
    "ring": Pattern("2(N-1) hops of S/N to the next rank", _ring),
    "rsag_push": Pattern("S/N to all at once, adds up, S/N to all at once", _rsag_push),
    "rsag_phased": Pattern("the same, one rank a phase", _rsag_phased),
    "rsag_pull": Pattern("S/N from all at once, twice", _rsag_pull),
    "host_read": Pattern("reads S of the host's memory", _host(STALL_HOST_READ)),
    "host_write": Pattern("writes S of the host's memory", _host(STALL_HOST_WRITE)),
}
