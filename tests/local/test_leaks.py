"""A process may make and drop sessions for as long as it lives: what they took comes back."""

from __future__ import annotations

import gc
import threading
import time
from pathlib import Path

import numpy as np
import pytest

from roce_ring.errors import RoceRingError
from tests.local.ranks import Rank, Starter

ROUNDS = 30
WARM_UP = 5  # gRPC and numpy keep what their first uses took


def taken() -> dict[str, int]:
    """What this process holds of the system."""
    gc.collect()
    maps = Path("/proc/self/maps").read_text().splitlines()
    return {
        "file descriptors": len(list(Path("/proc/self/fd").iterdir())),
        "threads": len(list(Path("/proc/self/task").iterdir())),
        "Python threads": threading.active_count(),
        "mappings of regions": sum("roce-ring-" in line for line in maps),
    }


def settled(limit: dict[str, int]) -> dict[str, int]:
    """taken(), once gRPC's own threads had time to end."""
    deadline = time.monotonic() + 3
    while any(now > limit[what] for what, now in taken().items()) and time.monotonic() < deadline:
        time.sleep(0.1)
    return taken()


def come_and_go(me: Rank, how: str) -> tuple[dict[str, int], dict[str, int], int]:
    """(after WARM_UP rounds, after all, growth in KiB)"""
    from roce_ring.communicator import AllReduce
    from roce_ring.exchange import RendezvousExchange

    x = np.ones(5000, np.float32)

    def close() -> None:
        with me.communicator() as ar:
            assert (ar.all_reduce(x) == me.world).all()

    def reset() -> None:
        lasting.reset()
        assert (lasting.all_reduce(x) == me.world).all()

    def fail() -> None:
        """Rank 1 cannot have its control socket, after all regions are there."""
        run_dir = f"{me.where}/lasting.sock" if me.rank == 1 else str(me.where)
        with pytest.raises(RoceRingError, match="set-up failed on rank 1"):
            AllReduce(exchange, me.settings(run_dir=run_dir))

    exchange = RendezvousExchange(f"unix:{me.where}/lasting.sock", me.rank, me.world)
    lasting = AllReduce(exchange, me.settings(name="lasting"))
    before: dict[str, int] = {}
    rss = 0
    for n in range(ROUNDS):
        if n == WARM_UP:
            before, rss = taken(), resident_kib()
        {"close": close, "reset": reset, "fail": fail}[how]()
    after, grown = settled(before), resident_kib() - rss
    lasting.close()
    return before, after, grown


def resident_kib() -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmRSS"))


@pytest.mark.parametrize("how", ["close", "reset", "fail"])
def test_nothing_grows(start: Starter, how: str) -> None:
    """A notebook, a test-suite, an engine that resets after every link flap; a region is megabytes of locked memory."""
    for before, after, grown_kib in start(come_and_go, 2, how=how).values(timeout_s=50):
        for what, most in before.items():
            assert after[what] <= most, f"{what} grew from {most} to {after[what]} in {ROUNDS - WARM_UP} rounds"
        assert grown_kib < 8192, f"{grown_kib} KiB more in {ROUNDS - WARM_UP} rounds"


def memory(me: Rank) -> tuple[dict[str, int], int, int]:
    with me.communicator(max_bytes=100_000) as ar:
        maps = Path("/proc/self/maps").read_text().splitlines()
        mapped = []
        for line in maps:
            if "roce-ring-" in line:
                low, high = (int(one, 16) for one in line.split()[0].split("-"))
                mapped.append(high - low)
        parts = {part.name: part.size_bytes for part in ar.session.control.memory()}
        return parts, int(ar.session.layout.region_bytes), sum(mapped)


@pytest.mark.parametrize("world", [2, 4])
def test_memory_is_what_the_layout_says(start: Starter, world: int) -> None:
    """People size containers by what `status` prints: the parts are the whole region, each rank maps all regions and no
    more, and the slots hold what was asked for and a page."""
    for parts, region, mapped in start(memory, world).values():
        assert sum(parts.values()) == region
        assert mapped == world * region
        slot = (100_000 + 4095) // 4096 * 4096 + 4096
        assert parts["receive slots"] == 2 * world * slot
        assert parts["send slots"] == 2 * 2 * slot
        assert all(size > 0 for size in parts.values())
        assert region < 2 * (world + 2) * slot + 200_000, "more than payload slots and bookkeeping"
