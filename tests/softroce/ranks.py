"""Ranks on a soft ring: one per node, started as a user would start them."""

from __future__ import annotations

import itertools
import json
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec

from tests.softroce.guest import Job
from tests.softroce.ring import Node, Ring

ROOT = Path(__file__).parents[2]
PROGRAM = f"{Path(sys.executable).parent}/roce-ring"
_meetings = itertools.count()


def plan_file(ring: Ring) -> str:
    """Where the nodes find the plan."""
    file = ring.guest.share / "plan.json"
    if not file.exists():  # nodes may be reading it
        file.write_bytes(msgspec.json.encode(ring.plan))
    return "/ring/plan.json"


def meeting() -> str:
    """An address that no world before had; the nodes share a file system."""
    return f"unix:/ring/meet-{next(_meetings)}"


def start_bench(ring: Ring, options: str, address: str = "", limit_s: float = 100, env: str = "") -> list[Job]:
    """`roce-ring bench` on every node with the same options; the jobs by rank. Says nothing but results and errors."""
    where = f"--join {address or meeting()} --plan {plan_file(ring)}"
    command = f"{env} {PROGRAM} bench {where} --provider verbs {options}"
    said = f"/ring/said-{next(_meetings)}"
    return [
        node.spawn(f"{command} 2> {said}.{rank}; s=$?; grep -v ': step ' {said}.{rank}; exit $s", limit_s)
        for rank, node in enumerate(ring.nodes)
    ]


def bench(ring: Ring, options: str, **how: Any) -> list[dict[str, Any]]:
    """The rows that rank 0 printed. Fails unless all ranks ended well, the others without a word."""
    first, *others = [job.wait() for job in start_bench(ring, f"{options} --json", **how)]
    assert [one.status for one in (first, *others)] == [0] * len(ring.nodes), first.output + others[-1].output
    assert [one.output for one in others] == [""] * len(others)
    rows: list[dict[str, Any]] = json.loads(first.output)["rows"]
    return rows


class Ranks:
    """A rank on every node, ready for one session after another; a context manager."""

    def __init__(self, ring: Ring, limit_s: float = 600, first: Callable[[Node], str] = lambda node: "") -> None:
        """``first``: shell words that each rank's command begins with."""
        self.ring = ring
        self._prefix = f"ranks-{next(_meetings)}"
        self._last = 0
        program = f"env PYTHONPATH={ROOT} {sys.executable} {ROOT}/tests/softroce/rank.py"
        self._jobs = [
            node.spawn(f"{first(node)} exec {program} {plan_file(ring)} /ring/{self._prefix}", limit_s)
            for node in ring.nodes
        ]

    def start(self, **order: Any) -> None:
        """Orders one session: see rank.run()."""
        self._last += 1
        part = self.ring.guest.share / f"{self._prefix}.part"
        part.write_text(json.dumps({"meet": meeting(), **order}))
        part.rename(self._file("json"))

    def connected(self, timeout_s: float = 30) -> None:
        """Waits until all ranks are."""
        self._wait([self._file(f"up.{node.plan.rank}") for node in self.ring.nodes], timeout_s)

    def finish(self, timeout_s: float = 50, without: int | None = None) -> list[dict[str, Any]]:
        """What became of it, by rank; `without`: a rank that was killed."""
        files = [self._file(f"out.{node.plan.rank}") for node in self.ring.nodes if node.plan.rank != without]
        self._wait(files, timeout_s)
        return [json.loads(file.read_text()) for file in files]

    def kill(self, rank: int) -> None:
        """End this rank's process without a word."""
        self._jobs[rank].signal("KILL")

    def run(self, timeout_s: float = 50, **order: Any) -> list[dict[str, Any]]:
        self.start(**order)
        return self.finish(timeout_s)

    def _file(self, end: str) -> Path:
        return self.ring.guest.share / f"{self._prefix}.{self._last}.{end}"

    def _wait(self, files: list[Path], timeout_s: float) -> None:
        deadline = time.monotonic() + timeout_s
        while not all(file.exists() for file in files):
            if time.monotonic() > deadline:
                missing = [file.name for file in files if not file.exists()]
                raise AssertionError(f"no {missing} after {timeout_s:g} s: " + "\n".join(j.output for j in self._jobs))
            time.sleep(0.02)


def wrong(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [row for row in rows if any(row["wrong"].values())]


def forwarded_datagrams(node: Node) -> int:
    """What this node's IP stack has forwarded for others."""
    return int(node.run("awk '/^Ip:/ {line = $7} END {print line}' /proc/net/snmp").check())
