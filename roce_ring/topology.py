"""Who reaches whom, and how: what a session needs from a plan, or the trivial answer on one machine."""

from __future__ import annotations

from dataclasses import dataclass

from .errors import ConfigError
from .native import MAX_PATHS, MAX_WORLD


@dataclass(frozen=True, slots=True)
class Path:
    """One way to a peer: the local HCA (an index into Topology.hcas) and the number of cables on the way."""

    hca: int = 0
    hops: int = 1


@dataclass(frozen=True, slots=True)
class Topology:
    """`order`: rank at each ring position. `paths[p]`: ways from this rank to rank p, in the order both ends agree on."""

    rank: int
    order: tuple[int, ...]
    paths: tuple[tuple[Path, ...], ...]
    hcas: tuple[str, ...] = ()
    plan_hash: str = ""

    def __post_init__(self) -> None:
        world = len(self.order)
        problems = []
        if not 2 <= world <= MAX_WORLD:
            problems.append(f"the world is {world}, expected 2 to {MAX_WORLD} ranks")
        if sorted(self.order) != list(range(world)):
            problems.append(f"ring order {self.order} is not a permutation of the ranks 0 to {world - 1}")
        if not 0 <= self.rank < world:
            problems.append(f"rank is {self.rank}, expected 0 to {world - 1}")
        if len(self.paths) != world:
            problems.append(f"paths lead to {len(self.paths)} ranks, expected {world}")
        for peer, ways in enumerate(self.paths):
            if peer != self.rank and not 1 <= len(ways) <= MAX_PATHS:
                problems.append(f"{len(ways)} paths to rank {peer}, expected 1 to {MAX_PATHS}")
        if problems:
            raise ConfigError("; ".join(problems), "plan again: roce-ring plan FACTS")

    @property
    def world(self) -> int:
        return len(self.order)

    @classmethod
    def local(cls, rank: int, world: int, paths: int = 1) -> Topology:
        """Everybody reaches everybody directly, over `paths` paths; ring order is rank order."""
        ways = tuple(Path() for _ in range(paths))
        return cls(rank, tuple(range(world)), tuple(() if p == rank else ways for p in range(world)))
