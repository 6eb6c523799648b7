"""One rank of run_trial.py --python: real all-reduces over verbs between the nodes, every element checked.

Inputs are small integers, so that every partial sum is exact in every dtype and the right answer is known to the bit.
"""

from __future__ import annotations

import argparse
import statistics
import time
from pathlib import Path

import numpy as np

from roce_ring.communicator import AllReduce
from roce_ring.errors import RoceRingError
from roce_ring.settings import Settings
from roce_ring.topology import Path as Way
from roce_ring.topology import Topology


def topology(rank: int, world: int, hcas: str, peer_map: str) -> Topology:
    """From the planner's map of this rank; hops by distance on the ring."""
    paths: list[tuple[Way, ...]] = [()] * world
    for item in peer_map.split(","):
        peer, _, devices = item.partition("=")
        distance = (int(peer) - rank) % world
        hops = min(distance, world - distance)
        paths[int(peer)] = tuple(Way(int(device), hops) for device in devices.split("/"))
    return Topology(rank, tuple(range(world)), tuple(paths), tuple(hcas.split(",")))


def main() -> None:
    parser = argparse.ArgumentParser()
    for name in ("--rank", "--world", "--rounds"):
        parser.add_argument(name, type=int, required=True)
    for name in ("--dir", "--hca", "--map", "--modes", "--sizes"):
        parser.add_argument(name, required=True)
    o = parser.parse_args()
    settings = Settings(provider="verbs", max_bytes=1 << 20, name="trial", run_dir=f"{o.dir}/run")
    began = time.monotonic()
    comm = AllReduce.from_rendezvous(
        f"unix:{o.dir}/meet", o.rank, o.world, settings=settings, topology=topology(o.rank, o.world, o.hca, o.map)
    )
    Path(o.dir, f"connected.{o.rank}").touch()
    print(f"rank {o.rank}: up in {time.monotonic() - began:.2f} s over {comm.session.provider}")
    for mode in o.modes.split(","):
        for size in map(int, o.sizes.split(",")):
            wrong, took = 0, []
            for i in range(o.rounds):
                count = max(1, size // 4)
                mine = ((np.arange(count) * 7 + 3 * i + o.rank) % 61 - 30).astype(np.float32)
                right = sum(((np.arange(count) * 7 + 3 * i + r) % 61 - 30).astype(np.float32) for r in range(o.world))
                at = time.perf_counter()
                try:
                    got = comm.all_reduce(mine, mode=mode)
                except RoceRingError as failed:
                    raise SystemExit(f"rank {o.rank}: at {time.time():.3f}: {failed}") from None
                took.append(time.perf_counter() - at)
                wrong += int(np.count_nonzero(got != right))
            us = f"median {statistics.median(took) * 1e6:.0f} us, max {max(took) * 1e6:.0f} us"
            print(f"rank {o.rank}: {mode} {size} bytes x {o.rounds}: wrong {wrong}, {us}")
            assert wrong == 0
    comm.close()


if __name__ == "__main__":
    main()
