"""One rank on a node of a soft ring, told what to do through files: `rank.py PLAN PREFIX`. ranks.py leads it.

Order N comes as PREFIX.N.json; what became of it goes to PREFIX.N.out. Python starts once for many sessions that way.
Inputs are small integers, so every sum is exact and the right answer is known to the bit.
"""

from __future__ import annotations

import json
import logging
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np

from roce_ring.bench.member import rank_here
from roce_ring.communicator import AllReduce
from roce_ring.errors import RoceRingError, SessionAborted
from roce_ring.settings import Settings
from roce_ring.topology import plan_of


class _Log(logging.Handler):
    def __init__(self) -> None:
        super().__init__(logging.INFO)
        self.lines: list[tuple[float, str, str]] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append((time.time(), record.levelname, record.getMessage()))


def answer(count: int, world: int, turn: int) -> Any:
    return sum(given(count, rank, turn) for rank in range(world))


def given(count: int, rank: int, turn: int) -> Any:
    return ((np.arange(count) * 7 + 3 * turn + rank) % 61 - 30).astype(np.float32)


def run(order: dict[str, Any], plan: str, rank: int, world: int, progress: Path, log: _Log) -> dict[str, Any]:
    """All-reduces of `bytes` in each of `modes`, until `ops` are done. With `resets`, as
    an engine would go on: after an abort all ranks make a new session and repeat what not all of them have finished."""
    settings = Settings(provider="verbs", plan=plan, run_dir="/run/ranks", **order.get("settings", {}))
    out: dict[str, Any] = {"rank": rank, "ops": 0, "wrong": 0, "aborts": [], "error": None, "us": []}
    count, modes = max(1, order["bytes"] // 4), order.get("modes", ["auto"])
    turns = [(given(count, rank, turn), answer(count, world, turn)) for turn in range(7)]
    result = np.empty(count, np.float32)
    try:
        with AllReduce.from_rendezvous(order["meet"], rank, world, settings=settings) as comm:
            progress.touch()
            before = comm.session.read_stats()
            while out["ops"] < order["ops"]:
                x, wanted = turns[out["ops"] % 7]
                began = time.perf_counter()
                try:
                    comm.all_reduce(x, result, mode=modes[out["ops"] % len(modes)])
                except SessionAborted as aborted:
                    out["aborts"].append(said(aborted))
                    if not order.get("resets"):
                        raise
                    time.sleep(order["resets"])
                    comm.reset()
                    # some ranks may have finished what others have not: all go on with the oldest
                    out["ops"] = int(comm.all_gather(np.array([out["ops"]])).min())
                    continue
                out["us"].append(round((time.perf_counter() - began) * 1e6))
                out["wrong"] += int(np.count_nonzero(result != wanted))
                out["ops"] += 1
                if order.get("pause_ms"):
                    time.sleep(max(0.0, order["pause_ms"] / 1e3 - (time.perf_counter() - began)))
            after = comm.session.read_stats()
            out["stats"] = {
                name: getattr(after, name) - getattr(before, name)
                for name in ("commands", "commands_asleep", "naps", "polls", "window_stalls", "late_reports")
            }
    except RoceRingError as error:
        out["error"] = said(error)
    if not order.get("times"):
        out["us"] = []
    out["log"], log.lines = log.lines, []

    return out


def said(error: RoceRingError) -> dict[str, Any]:
    return {
        "code": error.code,
        "message": error.message,
        "culprit": getattr(error, "culprit", None),
        "at": time.time(),
    }


def main() -> None:
    plan, prefix = sys.argv[1], sys.argv[2]
    mesh = plan_of(plan)
    rank, world = rank_here(mesh, plan), len(mesh.hosts)
    log = _Log()
    logging.getLogger().addHandler(log)
    logging.getLogger().setLevel(logging.INFO)
    number = 0
    while True:
        number += 1
        order = Path(f"{prefix}.{number}.json")
        while not order.exists():
            time.sleep(0.02)
        out = run(json.loads(order.read_text()), plan, rank, world, Path(f"{prefix}.{number}.up.{rank}"), log)
        part = Path(f"{prefix}.{number}.part.{rank}")
        part.write_text(json.dumps(out))
        part.rename(f"{prefix}.{number}.out.{rank}")


if __name__ == "__main__":
    main()
