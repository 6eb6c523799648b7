"""What a session over RDMA proves before it starts: which paths work, and that no flag overtakes its payload."""

from __future__ import annotations

import ctypes as ct
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import combinations
from typing import TYPE_CHECKING

from .errors import SetupError
from .native import MAX_PATHS, MAX_WORLD, call, native

if TYPE_CHECKING:
    from .edges import Edges
    from .exchange import Exchange

RIGHT, TORN, SILENT, DOWN_HERE, DOWN_THERE = range(1, 6)  # enum rr_path_verdict; 0: not planned

Seen = list[bytes]  # by rank, its verdicts of [peer][path]
Pair = tuple[int, int]


@dataclass(frozen=True, slots=True)
class Proof:
    """`imm`: flags arrive by write-with-immediate. `paths[a, b]`, a < b: planned paths in use between two ranks, by
    their numbers in the plan; what the session counts as path i is the i-th of them. `missing[a, b]`: the others, each
    with the reason why it is not used. `verdict`: for people. All ranks have the same."""

    imm: bool
    paths: Mapping[Pair, tuple[int, ...]]
    missing: Mapping[Pair, tuple[str, ...]]
    verdict: str

    def between(self, a: int, b: int) -> tuple[int, ...]:
        return self.paths.get((min(a, b), max(a, b)), ())

    def warnings(self, rank: int) -> Iterator[str]:
        """What an operator should look at, though it runs: paths that `rank` does without, another way of arrival."""
        if self.imm:
            yield f"flags arrive by write-with-immediate: {self.verdict}"
        for (a, b), reasons in self.missing.items():
            if reasons and rank in (a, b):
                used = len(self.paths[a, b])
                yield f"ranks {a} and {b} use {used} of {used + len(reasons)} paths: {'; '.join(reasons)}"


def prove(exchange: Exchange, proxy: int | None, edges: Edges, timeout_s: float) -> Proof:
    """Collective, between connect and start. A path that does not carry anything is left out as long as another between
    the same ranks does. Raises SetupError, the same on all ranks, if two ranks that the plan joins cannot reach each
    other, or if flags overtake their payloads however they are sent."""
    seen = _run(exchange, proxy, False, timeout_s)
    torn = [_name(edges, one) for one in _torn(seen)]
    if torn:
        seen = _run(exchange, proxy, True, timeout_s)
        if still := [_name(edges, one) for one in _torn(seen)]:
            raise SetupError(
                f"data is not there yet when its arrival is told, over {'; '.join(still)}, so no rank started",
                "relaxed ordering must be off on these devices; run the doctor on both hosts",
            )
    pairs = [(a, b) for a, b in combinations(range(len(seen)), 2) if _planned(seen, a, b)]
    paths = {pair: tuple(i for i in _planned(seen, *pair) if _works(seen, *pair, i)) for pair in pairs}
    missing = {
        (a, b): tuple(_reason(seen, edges, a, b, i) for i in _planned(seen, a, b) if i not in paths[a, b])
        for a, b in pairs
    }
    cut = [
        f"ranks {a} and {b} cannot reach each other: {'; '.join(missing[a, b])}" for a, b in pairs if not paths[a, b]
    ]
    if cut:
        raise SetupError(
            "no rank started:" + "".join(f"\n  {line}" for line in cut),
            "check these cables and ports at both ends and the relays' rules; roce-ring doctor looks at all of them",
        )
    rounds = f"no flag overtook its payload on {sum(map(len, paths.values()))} paths"
    verdict = f"a flag overtook its payload on {_some(torn)}" if torn else rounds
    return Proof(bool(torn), paths, missing, verdict)


def use(proxy: int | None, rank: int, proof: Proof) -> None:
    """From now on only these paths, in this way. Raises SetupError."""
    used = bytearray(MAX_WORLD)
    for (a, b), paths in proof.paths.items():
        if rank in (a, b):
            used[b if rank == a else a] = sum(1 << i for i in paths)
    call(native().proxy.rr_proxy_use, proxy, bytes(used), int(proof.imm))


def _run(exchange: Exchange, proxy: int | None, imm: bool, timeout_s: float) -> Seen:
    out = ct.create_string_buffer(MAX_WORLD * MAX_PATHS)
    call(native().proxy.rr_proxy_litmus, proxy, int(imm), out)
    return exchange.all_gather(out.raw, timeout_s)


def _at(seen: Seen, rank: int, peer: int, path: int) -> int:
    return seen[rank][peer * MAX_PATHS + path]


def _planned(seen: Seen, a: int, b: int) -> list[int]:
    return [i for i in range(MAX_PATHS) if _at(seen, a, b, i)]


def _works(seen: Seen, a: int, b: int, path: int) -> bool:
    return _at(seen, a, b, path) == _at(seen, b, a, path) == RIGHT


def _torn(seen: Seen) -> list[tuple[int, int, int]]:
    return [
        (a, b, i)
        for a, b in combinations(range(len(seen)), 2)
        for i in _planned(seen, a, b)
        if TORN in (_at(seen, a, b, i), _at(seen, b, a, i))
    ]


def _name(edges: Edges, path: tuple[int, int, int]) -> str:
    return edges.path(*path)


def _some(names: list[str]) -> str:
    return names[0] if len(names) == 1 else f"{names[0]} and {len(names) - 1} more"


def _reason(seen: Seen, edges: Edges, a: int, b: int, path: int) -> str:
    down = [rank for rank, peer in ((a, b), (b, a)) if _at(seen, rank, peer, path) == DOWN_HERE]
    ends = " and ".join(f"rank {rank}" for rank in down)
    why = f"the port at {ends} is not active" if down else "nothing got through"
    return f"{edges.path(a, b, path)}: {why}"
