"""The way of one path's frames through a plan's own neighbour entries, marks and rules."""

from __future__ import annotations

from .model import Path, Plan, RelayRule


def relays(plan: Plan, path: Path) -> list[tuple[int, RelayRule]]:
    """(rank, rule) of every relay in travel order; empty for neighbours. ValueError if the plan leads nowhere."""
    if not path.via:
        return []
    node = plan.nodes[path.source]
    out = node.hcas[path.source_hca]
    [mac] = [near.mac for near in node.neighbours if (near.address, near.device) == (path.target_address, out.netdev)]
    marks = [mark for marker in node.markers if marker.rdma == out.rdma for mark in marker.marks]
    ethertype = next(mark.ethertype for mark in marks if mark.destination in (None, path.target_address))
    found: list[tuple[int, RelayRule]] = []
    for rank in path.via:
        port = next((hca.netdev for hca in plan.nodes[rank].hcas if hca.mac == mac), "")
        rule = next(
            (
                rule
                for rule in plan.nodes[rank].rules
                if (rule.device, rule.ethertype) == (port, ethertype) and rule.match_source_mac in (None, out.mac)
            ),
            None,
        )
        if rule is None:
            raise ValueError(f"{plan.hosts[rank]} has no rule for the path from rank {path.source} to {path.target}")
        found.append((rank, rule))
        mac, ethertype = rule.set_target_mac, rule.set_ethertype
    return found
