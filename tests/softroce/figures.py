"""Ratios on the soft ring: ours beside raw verbs, interleaved in one run. Software devices: no latency claims.

    python -m tests.softroce.figures [latency] [allreduce] [decode] [drops]

latency    one proxy write and its flag, 60 KB to a neighbour, beside ib_write_lat of the same bytes
allreduce  60 KB `full` on four ranks, beside its twelve writes raw over the same paths (yardstick.py)
decode     an operation every 1 ms, and bursts with pauses: what share of commands found the proxy asleep
drops      drops and retransmissions at a shallow relay queue, with and without the forward window
"""

from __future__ import annotations

import itertools
import json
import re
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.softroce import byhand, faults
from tests.softroce.ranks import ROOT, Ranks, meeting, plan_file
from tests.softroce.ring import Ring, plan_of
from tests.softroce.traffic import start

SIZE = 61440
VISITS = 5
LATENCY_VISITS = 12  # short ones: the machine's own pace changes within seconds
PYTHON = f"PYTHONPATH={ROOT} {sys.executable}"


def spread(us: list[float]) -> str:
    cut = statistics.quantiles(us, n=100)
    return f"median {statistics.median(us):8.0f} us, p90 {cut[89]:8.0f}, p99 {cut[98]:8.0f} ({len(us)} samples)"


def ready(nodes: int, planes: int, cpus: int) -> Ring:
    ring = Ring(plan_of(nodes, planes), cpus).__enter__()
    for node in ring.nodes:
        byhand.apply(node)
    return ring


def latency() -> None:
    # of the time stamp counter, which virtual machines show here
    mhz = float(re.search(r"cpu MHz\s*: ([\d.]+)", Path("/proc/cpuinfo").read_text())[1])  # type: ignore[index]
    ring = ready(2, 1, 2)
    a, b = (node.plan.hcas for node in ring.nodes)
    [first] = [path for path in ring.plan.paths if path.source == 0][:1]
    ends = (ring.nodes[0], a[first.source_hca]), (ring.nodes[1], b[first.target_hca])
    ours: list[float] = []
    theirs: list[float] = []
    ratios = []
    for _ in range(LATENCY_VISITS):
        # Each end has a processor of the guest. User-mode Linux runs one thread of a process at a time: without that,
        # a thread of ours that wakes on the other processor holds it up for a time slice.
        command = f"{PYTHON} {ROOT}/tests/softroce/engine_node.py {plan_file(ring)} {meeting()} {SIZE} 300"
        jobs = [node.spawn(f"taskset -c {cpu} env {command}", 60) for cpu, node in enumerate(ring.nodes)]
        said, _ = [job.wait().check() for job in jobs]
        us = json.loads(said.splitlines()[-1])
        ours += us
        # in cycles: its own calibration of the clock fails on a busy machine
        shown = start("ib_write_lat -F -H -C", "-x", *ends, f"-n 300 -s {SIZE}", 60, pinned=True).wait().check()
        raw = [float(one) / mhz for one in re.findall(r"^\d+, ([\d.e+]+)", shown, re.MULTILINE)]
        theirs += raw
        ratios.append(statistics.median(us) / statistics.median(raw))
    ring.guest.stop()
    print(f"proxy write + flag, {SIZE} B: {spread(ours)}\nib_write_lat,        {SIZE} B: {spread(theirs)}")
    print(f"ratio of medians {statistics.median(ours) / statistics.median(theirs):.2f} "
          f"(by visit: {', '.join(f'{one:.2f}' for one in ratios)})")  # fmt: skip


class Raw:
    """The yardstick on every node of a ring."""

    def __init__(self, ring: Ring) -> None:
        self.ring, self._turns = ring, itertools.count(1)
        for node in ring.nodes:
            paths = [path for path in ring.plan.paths if path.source == node.plan.rank]
            ways, seen = [], dict[int, int]()
            for path in paths:
                number = seen[path.target] = seen.get(path.target, -1) + 1
                hca = node.plan.hcas[path.source_hca]
                both = sum(one.target == path.target for one in paths)
                ways.append([path.target, number, hca.rdma, hca.address.split("/")[0], path.flow_label, SIZE // both])
            facts = {"rank": node.plan.rank, "world": len(ring.nodes), "slot": SIZE, "ways": ways}
            (ring.guest.share / f"raw.{node.plan.rank}.facts").write_text(json.dumps(facts))
            program = f"{PYTHON} {ROOT}/tests/softroce/yardstick.py"
            node.spawn(f"{program} /ring/raw.{node.plan.rank}.facts /ring/raw", 900)

    def run(self, rounds: int) -> list[float]:
        """Microseconds of the slowest rank in each round."""
        turn = next(self._turns)
        part = self.ring.guest.share / "raw.part"
        part.write_text(json.dumps({"rounds": rounds}))
        part.rename(self.ring.guest.share / f"raw.{turn}.json")
        files = [self.ring.guest.share / f"raw.{turn}.out.{node.plan.rank}" for node in self.ring.nodes]
        until(lambda: all(file.exists() for file in files), 120)
        return [max(one) for one in zip(*(json.loads(file.read_text()) for file in files), strict=True)]


def until(there: Callable[[], bool], limit_s: float) -> None:
    deadline = time.monotonic() + limit_s
    while not there():
        assert time.monotonic() < deadline, "no answer"
        time.sleep(0.02)


def slowest(outcomes: list[dict[str, Any]]) -> list[float]:
    assert not any(one["wrong"] or one["error"] for one in outcomes), outcomes
    return [max(one) for one in zip(*(one["us"] for one in outcomes), strict=True)]


def allreduce() -> None:
    ring = ready(4, 2, 2)
    raw, ranks = Raw(ring), Ranks(ring)
    ours: list[float] = []
    theirs: list[float] = []
    ratios = []
    for _ in range(VISITS):
        us = slowest(ranks.run(100, ops=60, bytes=SIZE, modes=["full"], times=True))[10:]
        them = raw.run(60)[10:]
        ours, theirs = ours + us, theirs + them
        ratios.append(statistics.median(us) / statistics.median(them))
    ring.guest.stop()
    print(f"all-reduce `full`, 4 ranks, {SIZE} B:       {spread(ours)}\n"
          f"its twelve writes raw, same paths, {SIZE} B: {spread(theirs)}")  # fmt: skip
    print(f"ratio of medians {statistics.median(ours) / statistics.median(theirs):.2f} "
          f"(by visit: {', '.join(f'{one:.2f}' for one in ratios)})")  # fmt: skip


def decode() -> None:
    ring = ready(2, 1, 2)
    ranks = Ranks(ring)
    for spins in (200_000, 20_000_000):
        for name, ops, pause_ms in (("an operation every 1 ms, 30 s", 30_000, 1), ("every 30 ms, 15 s", 500, 30)):
            [one, _] = ranks.run(
                200, ops=ops, bytes=4096, pause_ms=pause_ms, times=True, settings={"idle_spins": spins}
            )
            assert not one["wrong"] and not one["error"], one
            stats = one["stats"]
            share = stats["commands_asleep"] / stats["commands"]
            print(f"idle_spins {spins:>9}, {name}: {share:.2%} of {stats['commands']} commands found the proxy asleep; "
                  f"{stats['naps']} naps; {spread(one['us'])}")  # fmt: skip
    ring.guest.stop()


def drops() -> None:
    mbit, limit = 40, 512 * 64  # slower than what comes, as where streams meet; 512 packets of a hairpin queue
    ring = ready(4, 2, 1)
    ranks = Ranks(ring)
    ports = [(node, hca) for node in ring.nodes for hca in node.plan.hcas]
    for node, hca in ports:
        faults.relay_queue(node, hca, mbit, limit)
    names = ("out_of_seq_request", "completer_retry_err", "duplicate_request")
    for size in (SIZE, 1 << 18, 1 << 20):
        for window in (0, 16384):
            settings = {"forward_window_bytes": window, "forward_chunk_bytes": 8192, "dead_peer_s": 20.0}
            before = [node.counters(hca.rdma) for node, hca in ports]
            lost = sum(faults.relay_drops(node, hca) for node, hca in ports)
            settings["max_bytes"] = 1 << 20
            outcomes = ranks.run(100, ops=12, bytes=size, modes=["full"], times=True, settings=settings)
            lost = sum(faults.relay_drops(node, hca) for node, hca in ports) - lost
            after = [node.counters(hca.rdma) for node, hca in ports]
            grown = {name: sum(b[name] - a[name] for a, b in zip(before, after, strict=True)) for name in names}
            ended = next((one["aborts"][0]["message"] for one in outcomes if one["aborts"]), "")
            told = f"ended: {ended}" if ended else spread(slowest(outcomes))
            print(f"{size:>8} B, window {window:>6}: {lost:>5} frames dropped, {grown}, {told}", flush=True)
    ring.guest.stop()


def main() -> int:
    figures = {"latency": latency, "allreduce": allreduce, "decode": decode, "drops": drops}
    chosen = sys.argv[1:] or list(figures)
    if unknown := [one for one in chosen if one not in figures]:
        print(f"unknown: {', '.join(unknown)}; expected {', '.join(figures)}", file=sys.stderr)
        return 2
    for name in chosen:
        print(f"--- {name}", flush=True)
        figures[name]()
    return 0


if __name__ == "__main__":
    sys.exit(main())
