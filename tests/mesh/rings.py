"""Facts for any ring or chain, made in code, for the planner's tests."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from mesh.facts import Common, Facts, FactsFile, resolve
from mesh.strict import convert

EXAMPLES = Path(__file__).parent.parent.parent / "mesh" / "examples"
SAMPLE = EXAMPLES / "four-spark-ring.yaml"
NETDEVS = {(0, 0): "enp1s0f0np0", (0, 1): "enp1s0f1np1", (1, 0): "enP2p1s0f0np0", (1, 1): "enP2p1s0f1np1"}
_DOMAIN = ("0000", "0002")

Cable = tuple[tuple[int, int], tuple[int, int]]  # ((node, port), (node, port))


def ring_cables(nodes: int, flipped: Sequence[bool] = (), closed: bool = True) -> list[Cable]:
    """Cables from port 0 of each node to port 1 of the next; a flipped node has its two cables in each other's cage."""
    flip = list(flipped) or [False] * nodes
    count = nodes if closed else nodes - 1
    return [((i, int(flip[i])), ((i + 1) % nodes, 1 - int(flip[(i + 1) % nodes]))) for i in range(count)]


def document(
    nodes: int, cables: Sequence[Cable], planes: Sequence[int] = (0, 1), order: Sequence[int] = (), **common: Any
) -> dict[str, Any]:
    """A facts document as a file would hold it; ``order[r]`` is the physical node that is rank r."""
    addresses: dict[int, dict[str, str]] = {node: {} for node in range(nodes)}
    for number, ends in enumerate(cables):
        for plane in planes:
            for host_part, (node, port) in zip((10, 11), ends, strict=True):
                addresses[node][NETDEVS[plane, port]] = f"10.{10 + 10 * plane}.{number}.{host_part}/24"
    listed = []
    for node in order or range(nodes):
        macs = {name: f"02:00:00:{node:02x}:{plane:02x}:{port:02x}" for (plane, port), name in NETDEVS.items()}
        listed.append({"host": f"n{node}", "ipv4": addresses[node], "mac": macs})
    state = {
        "mtu": 9000, "roce_active_mtu": 4096, "gid_index": 3, "hw_tc_offload": True, "flow_steering_mode": "hmfs",
        "hairpin_queue_size": 8192, **common,
    }  # fmt: skip
    ports = [
        {
            "netdev": name,
            "rdma": f"roce{plane}{port}",
            "pci": f"{_DOMAIN[plane]}:01:00.{port}",
            "plane": plane,
            "port": port,
        }
        for (plane, port), name in NETDEVS.items()
    ]
    return {"common": {**state, "ports": ports}, "nodes": listed}


def facts(raw: dict[str, Any]) -> Facts:
    """What the planner gets from a document."""
    file = convert(raw, FactsFile, "facts")
    return resolve(file.nodes, file.common or Common())
