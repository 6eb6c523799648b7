"""Provider pcie: no proxy moves bytes; kernels reach the flags and slots of all ranks themselves."""

from __future__ import annotations

from .native import native

MAX_PEERS = 8  # a GPU maps no more of them at a time (CUDA_ERROR_TOO_MANY_PEERS)
NO_ACCESS, STORES, LOADS = 0, 1, 2  # to peers' memory: what a mode needs and a session has (kernels/modes.def)


def problem(hosts: list[str]) -> str | None:
    """Why the ranks on these hosts, index = rank, cannot reach each other's memory."""
    if len(set(hosts)) > 1:
        return (
            f"provider pcie is for ranks of one host, these run on {', '.join(dict.fromkeys(hosts))}: "
            "set ROCE_RING_PROVIDER to auto or verbs"
        )
    if len(hosts) - 1 > MAX_PEERS:
        return (
            f"provider pcie reaches at most {MAX_PEERS} peers, this world of {len(hosts)} has {len(hosts) - 1}: "
            "set ROCE_RING_PROVIDER to shm, or split the group"
        )
    return None


def mapped_regions(proxy: int, rank: int, world: int) -> list[int]:
    """Address of every rank's region in this process, index = rank. After connect, which mapped them."""
    lib = native().proxy
    return [int(lib.rr_proxy_region(proxy) if p == rank else lib.rr_proxy_peer_region(proxy, p)) for p in range(world)]
