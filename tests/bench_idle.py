"""What a session costs while nothing happens: python tests/bench_idle.py [SECONDS]

Every rank makes a few operations, then none. Prints the share of a core that each rank's process took; exits 1 if one
took 2 % or more.
"""

from __future__ import annotations

import multiprocessing
import os
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

LIMIT = 0.02
SETTLE_S = 2.0  # 20,000,000 polls are over and naps have grown to their longest by then


def rank_main(rank: int, world: int, directory: str, seconds: float, answers: Any) -> None:
    from dataclasses import replace

    import numpy as np

    from roce_ring.communicator import AllReduce
    from roce_ring.settings import Settings

    settings = replace(Settings.from_env(os.environ), name="idle", run_dir=f"{directory}/run")
    with AllReduce.from_rendezvous(f"unix:{directory}/meet.sock", rank, world, settings=settings) as communicator:
        for _ in range(10):
            communicator.all_reduce(np.ones(1024, np.float32))
        time.sleep(SETTLE_S)
        before, began = cpu_seconds(), time.monotonic()
        time.sleep(seconds)
        share = (cpu_seconds() - before) / (time.monotonic() - began)
        stats = communicator.session.control.stats()
        answers.put((world, rank, share, stats.idle_spins, stats.yields))
        communicator.all_reduce(np.ones(1, np.float32))  # nobody leaves while others still measure


def cpu_seconds() -> float:
    """Of all threads of this process. schedstat counts nanoseconds; /proc/self/stat counts ticks of 10 ms."""
    return sum(int(one.read_text().split()[0]) for one in Path("/proc/self/task").glob("*/schedstat")) / 1e9


def main(arguments: list[str]) -> int:
    seconds = float(arguments[0]) if arguments else 5.0
    spawn = multiprocessing.get_context("spawn")
    worst = 0.0
    print(f"{os.cpu_count()} CPUs, {seconds:g} s; a rank is a proxy thread, a control server and a caller that sleeps")
    for world in (2, 4):
        with tempfile.TemporaryDirectory() as directory:
            answers = spawn.Queue()
            ranks = [
                spawn.Process(target=rank_main, args=(rank, world, directory, seconds, answers))
                for rank in range(world)
            ]
            for one in ranks:
                one.start()
            for one in ranks:
                one.join()
            for _ in ranks:
                _, rank, share, spins, yields = answers.get(timeout=5)
                worst = max(worst, share)
                print(f"world {world} rank {rank}: {share:6.2%} of a core (idle_spins {spins}, yields {yields})")
    print(f"worst {worst:.2%}, limit {LIMIT:.0%}")
    return 0 if worst < LIMIT else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
