"""Who reaches whom, and how: what a session needs from a plan, or the trivial answer on one machine."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from pathlib import Path as FilePath
from typing import TYPE_CHECKING

from .edges import Edges
from .errors import ConfigError
from .modes import modes
from .native import MAX_PATHS, MAX_WORLD
from .settings import Settings

if TYPE_CHECKING:
    from .mesh.model import Plan

_PLAN_AGAIN = "plan again: roce-ring plan FACTS"


@dataclass(frozen=True, slots=True)
class Path:
    """One way to a peer: the local HCA (an index into Topology.hcas) and the number of cables on the way."""

    hca: int = 0
    hops: int = 1


@dataclass(frozen=True, slots=True)
class Topology:
    """`order`: rank at each ring position. `paths[p]`: ways from this rank to rank p, in the order both ends agree on;
    ring neighbours have at least one, others may have none."""

    rank: int
    order: tuple[int, ...]
    paths: tuple[tuple[Path, ...], ...]
    hcas: tuple[str, ...] = ()
    plan_hash: str = ""
    addresses: tuple[str, ...] = ()  # planned IPv4 address of each HCA's port
    edges: Edges = field(default_factory=Edges)
    hairpin_packets: int | None = None  # smallest forwarding queue in effect, by the plan

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
        beside = self.neighbours if not problems else ()
        for peer, ways in enumerate(self.paths):
            if peer != self.rank and not (peer in beside) <= len(ways) <= MAX_PATHS:
                problems.append(f"{len(ways)} paths to rank {peer}, expected 1 to {MAX_PATHS}")
        if problems:
            raise ConfigError("; ".join(problems), _PLAN_AGAIN)

    @property
    def neighbours(self) -> tuple[int, ...]:
        """The ranks before and after this one on the ring."""
        at = self.order.index(self.rank)
        return self.order[at - 1], self.order[(at + 1) % self.world]

    @property
    def complete(self) -> bool:
        """Whether every rank has a path from here."""
        return all(ways for peer, ways in enumerate(self.paths) if peer != self.rank)

    def of_neighbours(self) -> Topology:
        """The same without the paths that a neighbour would have to forward: what ring modes need."""
        return replace(
            self, paths=tuple(ways if peer in self.neighbours else () for peer, ways in enumerate(self.paths))
        )

    @property
    def world(self) -> int:
        return len(self.order)

    @classmethod
    def local(cls, rank: int, world: int, paths: int = 1) -> Topology:
        """Everybody reaches everybody directly, over `paths` paths; ring order is rank order."""
        ways = tuple(Path() for _ in range(paths))
        return cls(rank, tuple(range(world)), tuple(() if p == rank else ways for p in range(world)))

    @classmethod
    def from_settings(cls, settings: Settings, rank: int, world: int) -> Topology:
        """What the environment says: a plan file, or the planner's environment line (HCAs and peer maps), or neither.
        With a mode that only needs ring neighbours, only they are reached: such a ring works with no forwarding."""
        found = cls._from_settings(settings, rank, world)
        bare = settings.mode != "auto" and not modes()[settings.mode].needs_forwarding(world)
        return found.of_neighbours() if bare and found.hcas else found

    @classmethod
    def _from_settings(cls, settings: Settings, rank: int, world: int) -> Topology:
        of_maps = _from_maps(settings.hca, settings.peer_hca_maps, rank, world) if settings.peer_hca_maps else None
        if not settings.plan:
            return of_maps or cls.local(rank, world)
        of_plan = _from_plan(settings.plan, rank, world)
        if of_maps and (of_maps.hcas, of_maps.paths) != (of_plan.hcas, of_plan.paths):
            raise ConfigError(
                f"ROCE_RING_PEER_HCA_MAPS says something else than plan {settings.plan} for rank {rank}",
                "unset one of them, or use the environment line that this plan printed",
            )
        return of_plan


def plan_of(file: str) -> Plan:
    """The plan in a file. Raises ConfigError."""
    from .mesh.failure import in_one
    from .mesh.finding import Refused
    from .mesh.loading import load_plan

    try:
        return load_plan(FilePath(file))
    except Refused as refused:
        _, message, hint = in_one(refused.findings)
        raise ConfigError(message, hint) from refused


def _from_plan(file: str, rank: int, world: int) -> Topology:
    plan = plan_of(file)
    if len(plan.hosts) != world:
        raise ConfigError(f"plan {file} is for {len(plan.hosts)} ranks, this world has {world}", _PLAN_AGAIN)
    ways: list[list[Path]] = [[] for _ in range(world)]
    for path in plan.paths:
        if path.source == rank:
            ways[path.target].append(Path(path.source_hca, path.hops))
    mine = plan.nodes[rank].hcas
    hcas, addresses = tuple(hca.rdma for hca in mine), tuple(hca.address.split("/")[0] for hca in mine)
    return Topology(
        rank,
        plan.ring,
        tuple(map(tuple, ways)),
        hcas,
        plan.hash,
        addresses,
        Edges.of_plan(plan),
        plan.limits.hairpin_packets,
    )


def _from_maps(hca: str, text: str, rank: int, world: int) -> Topology:
    """The planner's map has no hops, but in the usual rings of up to four they follow from it: up to three ranks all
    are neighbours, unless two peers share an HCA; in a ring of four (HCA 2 * plane + port) only neighbours are reached
    through one port on both planes. Anything else needs the plan itself."""
    hcas = tuple(hca.split(",")) if hca else ()
    maps = []
    for section in text.split(";"):
        items = (item.split("=") for item in section.split(","))
        maps.append({int(peer): tuple(map(int, ways.split("/"))) for peer, ways in items})
    if len(maps) != world:
        raise ConfigError(f"peer_hca_maps has {len(maps)} sections, this world has {world} ranks", _PLAN_AGAIN)
    for one, section_map in enumerate(maps):
        if sorted(section_map) != [p for p in range(world) if p != one]:
            raise ConfigError(
                f"section {one} of peer_hca_maps names ranks {sorted(section_map)}, expected every rank but {one}",
                _PLAN_AGAIN,
            )
    most = max(max(ways) for ways in maps[rank].values())
    if most >= len(hcas):
        raise ConfigError(
            f"peer_hca_maps uses HCA {most}, but hca lists {len(hcas)}",
            "set ROCE_RING_HCA from the same environment line",
        )
    beside = [_neighbours(one, world, len(hcas)) for one in maps]
    order = [0]
    while len(order) < world:
        onward = sorted((p for p in beside[order[-1]] if p not in order), key=lambda p: min(maps[order[-1]][p]) % 2)
        if not onward:
            raise ConfigError(
                "peer_hca_maps alone does not say who is how far in this ring",
                "set ROCE_RING_PLAN to the plan.json that roce-ring plan --out wrote",
            )
        order.append(onward[0])
    paths = tuple(
        tuple(Path(way, 1 if p in beside[rank] else 2) for way in maps[rank].get(p, ())) for p in range(world)
    )
    return Topology(rank, tuple(order), paths, hcas)


def _neighbours(ways_to: dict[int, tuple[int, ...]], world: int, hcas: int) -> set[int]:
    """Ranks one cable away, or nobody if the map does not tell."""
    used = [way for ways in ways_to.values() for way in ways]
    if world <= 3:
        return set(ways_to) if len(set(used)) == len(used) else set()
    beside = {p for p, ways in ways_to.items() if len({way % 2 for way in ways}) == 1}
    return beside if world == 4 and hcas == 4 and len(beside) == 2 else set()
