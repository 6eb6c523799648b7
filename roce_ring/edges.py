"""What a port, a cable and a path are called: in the same words on every rank, so that two hosts' logs agree."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .mesh.model import Plan


@dataclass(frozen=True, slots=True, eq=False)
class Edges:
    """`ports[rank, hca]`: host and port. `cables[rank, hca]`: both ends of the cable at a port. `paths[a, b]`, a < b:
    the planned paths between two ranks. Without a plan all are empty and things go by number."""

    ports: Mapping[tuple[int, int], str] = field(default_factory=dict)
    cables: Mapping[tuple[int, int], str] = field(default_factory=dict)
    paths: Mapping[tuple[int, int], tuple[str, ...]] = field(default_factory=dict)

    @classmethod
    def of_plan(cls, plan: Plan) -> Edges:
        ports = {(node.rank, hca.index): f"{node.host} {hca.netdev}" for node in plan.nodes for hca in node.hcas}
        places = {(node.rank, hca.port, hca.plane): hca.index for node in plan.nodes for hca in node.hcas}
        cables = {}
        for cable in plan.cables:
            for plane in plan.planes:
                found = [(end.rank, places.get((end.rank, end.port, plane))) for end in cable.ends]
                ends = [(rank, hca) for rank, hca in found if hca is not None]
                name = " - ".join(ports[end] for end in ends) + f" (plane {plane})"
                cables.update(dict.fromkeys(ends, name))
        paths: dict[tuple[int, int], tuple[str, ...]] = {}
        for path in plan.paths:
            if path.source < path.target:
                first, last = ports[path.source, path.source_hca], ports[path.target, path.target_hca]
                stations = [first, *(plan.hosts[relay] for relay in path.via), last]
                key = path.source, path.target
                paths[key] = (*paths.get(key, ()), f"{' - '.join(stations)} (plane {path.plane})")
        return cls(ports, cables, paths)

    def port(self, rank: int, hca: int) -> str:
        return self.ports.get((rank, hca), f"HCA {hca} of rank {rank}")

    def cable(self, rank: int, hca: int) -> str:
        return self.cables.get((rank, hca), f"the cable at HCA {hca} of rank {rank}")

    def path(self, a: int, b: int, planned: int) -> str:
        low, high = sorted((a, b))
        names = self.paths.get((low, high), ())
        return names[planned] if planned < len(names) else f"path {planned} between ranks {low} and {high}"
