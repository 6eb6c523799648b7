"""Environment lines: what each consumer reads, one line per consumer (and per rank where device names differ)."""

from __future__ import annotations

from collections.abc import Iterator

from .model import Plan

Variables = dict[str, str]
CONSUMERS = ("nccl", "roce-ring", "vllm", "sglang")  # the order of the lines on stdout; SGLang's is last


def environment(plan: Plan) -> dict[str, tuple[str, ...]]:
    """Consumer -> its lines: one for all ranks if they are equal, else line r for rank r. Absent: does not apply."""
    lines = {}
    for consumer in CONSUMERS:
        per_rank = tuple(line(variables(plan, consumer, rank)) for rank in range(len(plan.hosts)))
        lines[consumer] = per_rank[:1] if len(set(per_rank)) == 1 else per_rank
    return {consumer: found for consumer, found in lines.items() if found != ("",)}


def line(values: Variables) -> str:
    """``NAME=value`` pairs separated by blanks; no value contains a blank."""
    return " ".join(f"{name}={value}" for name, value in values.items())


def variables(plan: Plan, consumer: str, rank: int) -> Variables:
    """The variables of one consumer on one rank, in the order they are printed."""
    return {"nccl": _nccl, "roce-ring": _roce_ring, "vllm": _vllm, "sglang": _sglang}[consumer](plan, rank)


def peer_maps(plan: Plan) -> str:
    """Per rank ``peer=h/h`` items, where h is an index into that rank's own HCA list and path i meets path i."""
    sections: list[dict[int, list[str]]] = [{} for _ in plan.hosts]
    for path in plan.paths:
        sections[path.source].setdefault(path.target, []).append(str(path.source_hca))
    return ";".join(
        ",".join(f"{peer}={'/'.join(hcas)}" for peer, hcas in sorted(section.items())) for section in sections
    )


def _hcas(plan: Plan, rank: int) -> str:
    return ",".join(hca.rdma for hca in plan.nodes[rank].hcas)


def _sglang(plan: Plan, rank: int) -> Variables:
    size = str(plan.limits.max_bytes)
    return {
        "DSV41_ROCE_RING": "1",
        "SGLANG_ROCE_ALLREDUCE": "1",
        "SGLANG_ROCE_MAX_SIZE": size,
        "DSV41_ROCE_GATHER": size,
        "B12X_ROCE_HCA": _hcas(plan, rank),
        "B12X_ROCE_PEER_HCA_MAPS": peer_maps(plan),
        "B12X_ROCE_TWO_WAVE_THRESHOLD_BYTES": "0",  # the size cap already protects the queues
        **_global_gid_index(plan),
    }


def _vllm(plan: Plan, rank: int) -> Variables:
    size = str(plan.limits.max_bytes)
    return {
        "VLLM_ENABLE_ROCE_ALLREDUCE": "1",
        "VLLM_ROCE_ALLREDUCE_MAX_SIZE": size,
        "VLLM_ROCE_ALLGATHER_MAX_SIZE": size,
        "B12X_ROCE_HCA": _hcas(plan, rank),
        "B12X_ROCE_PEER_HCA_MAPS": peer_maps(plan),
        "B12X_ROCE_TWO_WAVE_THRESHOLD_BYTES": "0",
        **_global_gid_index(plan),
    }


def _global_gid_index(plan: Plan) -> Variables:
    """The index those engines need told: only where all devices agree on one that is not their default of 3."""
    indices = {hca.gid_index for node in plan.nodes for hca in node.hcas}
    return {"B12X_ROCE_GID_INDEX": str(indices.pop())} if len(indices) == 1 and indices != {3} else {}


def _roce_ring(plan: Plan, rank: int) -> Variables:
    size = str(plan.limits.max_bytes)
    values = {
        "ROCE_RING_ALLREDUCE": "1",
        "ROCE_RING_MAX_BYTES": size,
        "ROCE_RING_GATHER_BYTES": size,
        "ROCE_RING_HCA": _hcas(plan, rank),
        "ROCE_RING_PEER_HCA_MAPS": peer_maps(plan),
    }
    if plan.forwarding != "none":
        values["ROCE_RING_FORWARD_WINDOW_BYTES"] = str(plan.limits.window_bytes)
        values["ROCE_RING_FORWARD_CHUNK_BYTES"] = str(plan.limits.chunk_bytes)
    return values


def _nccl(plan: Plan, rank: int) -> Variables:
    """NCCL needs one ring and no tree; the names from SWITCHLESS on exist in the patched 2.30.7 only."""
    if plan.shape == "chain":
        return {}
    prefixes = {network.split("/")[1] for cable in plan.cables for network in cable.networks}
    values = {"NCCL_IB_HCA": "=" + _hcas(plan, rank)}
    if len(prefixes) == 1:
        values |= {"NCCL_IB_SUBNET_AWARE_ROUTING": "1", "NCCL_IB_SUBNET_PREFIX_LEN": prefixes.pop()}
    if plan.shape == "ring":
        values |= dict(_ring_only(len(plan.planes)))
    return values


def _ring_only(planes: int) -> Iterator[tuple[str, str]]:
    yield "NCCL_ALGO", "Ring"
    yield "NCCL_SWITCHLESS_RING_ONLY", "1"
    if planes == 2:  # without these the second plane silently carries nothing
        yield "NCCL_IB_EXTENDED_IPV4_GIDS", "1"
        yield "NCCL_IB_PRESERVE_PCI_DOMAIN", "1"
        yield "NCCL_IB_ROUTE_DIAGNOSTICS", "1"
        yield "NCCL_IB_QPS_PER_CONNECTION", "1"
