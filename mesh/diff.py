"""What changes between two plans, object by object, so that an operator sees what an update would touch."""

from __future__ import annotations

from collections.abc import Iterator

from .commands import up
from .model import NodePlan, Plan
from .text import peer_maps
from .things import Step


def differences(old: Plan, new: Plan) -> tuple[str, ...]:
    """One line per difference: ``-`` in the old plan only, ``+`` in the new one only. Empty if the plans are equal."""
    return () if old.hash == new.hash else tuple(_differences(old, new))


def _differences(old: Plan, new: Plan) -> Iterator[str]:
    yield from _changed("plan", _facts_of(old), _facts_of(new))
    for host in dict.fromkeys(old.hosts + new.hosts):
        before, after = _lines(old, host), _lines(new, host)
        yield from (f"{host}: - {text}" for text in before if text not in after)
        yield from (f"{host}: + {text}" for text in after if text not in before)


def _changed(where: str, old: dict[str, str], new: dict[str, str]) -> Iterator[str]:
    for name, value in new.items():
        if old[name] != value:
            yield f"{where}: - {name} {old[name]}"
            yield f"{where}: + {name} {value}"


def _facts_of(plan: Plan) -> dict[str, str]:
    limits = plan.limits
    return {
        "tensor-parallel order": ",".join(plan.hosts),
        "ring": " -> ".join(plan.hosts[rank] for rank in plan.ring),
        "forwarding": plan.forwarding,
        "size cap": f"{limits.max_bytes} bytes",
        "forward window": f"{limits.window_bytes} bytes in chunks of {limits.chunk_bytes}",
        "peer maps": peer_maps(plan),
    }


def _lines(plan: Plan, host: str) -> tuple[str, ...]:
    if host not in plan.hosts:
        return ()
    node = plan.nodes[plan.hosts.index(host)]
    return tuple(_hcas(node)) + tuple(_shown(step) for step in up(node))


def _hcas(node: NodePlan) -> Iterator[str]:
    for hca in node.hcas:
        yield f"hca {hca.index} {hca.rdma} {hca.netdev} {hca.address} {hca.mac} gid {hca.gid_index}"


def _shown(step: Step) -> str:
    return str(step).removeprefix("# ")
