"""A long run over a ring that loses frames: is every sum right, and does every operation end?

    python -m tests.softroce.loss_run [--ops 100000] [--nodes 4] [--loss 1] [--bytes 4096] [--dead-peer-s 3]

Every port drops that percentage of what it sends, at random. Modes take turns. What is lost twice (a peer asks for a
packet once only) waits for the queue pair's timer, about a tenth of dead_peer_s. Exit status 0 if nothing was wrong or
hung. docs/results has one of its runs.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time

from tests.softroce import byhand, faults
from tests.softroce.ranks import Ranks
from tests.softroce.ring import Ring, plan_of

MODES = ["full", "payload_rsag", "full", "ring_bidir"]
S_AN_OP = 0.5  # far more than any takes on average


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--ops", type=int, default=100_000)
    parser.add_argument("--nodes", type=int, default=4)
    parser.add_argument("--loss", type=float, default=1.0, help="percent of frames")
    parser.add_argument("--bytes", type=int, default=4096)
    parser.add_argument("--dead-peer-s", type=float, default=3.0)
    options = parser.parse_args()
    limit_s = 60 + options.ops * S_AN_OP
    with Ring(plan_of(options.nodes)) as ring:
        for node in ring.nodes:
            byhand.apply(node)
            for hca in node.plan.hcas:
                faults.impair(node, hca, f"loss {options.loss:g}%")
        before = _counters(ring)
        began = time.monotonic()
        ranks = Ranks(ring, limit_s)
        settings = {"dead_peer_s": options.dead_peer_s}
        outcomes = ranks.run(limit_s, ops=options.ops, bytes=options.bytes, modes=MODES, times=True, settings=settings)
        took = time.monotonic() - began
        lost = sum(_dropped(ring))
        counted = {name: value - before[name] for name, value in _counters(ring).items()}
    for one in outcomes:
        print(f"rank {one['rank']}: {one['ops']} operations, {one['wrong']} wrong elements, error {one['error']}")
        late = sum("is late" in text for _, _, text in one["log"])
        us = statistics.quantiles(one["us"], n=1000)
        spread = f"median {us[499] / 1e3:.1f} ms, p99 {us[989] / 1e3:.1f} ms, max {max(one['us']) / 1e3:.0f} ms"
        print(f"  {spread}; {late} reports of lateness")
    print(f"{took:.0f} s; frames lost: {lost}; {counted}")
    return int(any(one["wrong"] or one["error"] or one["ops"] != options.ops for one in outcomes))


def _dropped(ring: Ring) -> list[int]:
    found = []
    for result in ring.all("tc -s qdisc show | grep -o 'dropped [0-9]*'"):
        found += [int(line.split()[1]) for line in result.output.splitlines()]
    return found


def _counters(ring: Ring) -> dict[str, int]:
    names = ("sent_pkts", "out_of_seq_request", "duplicate_request", "completer_retry_err", "retry_exceeded_err")
    all_of_them = [node.counters(hca.rdma) for node in ring.nodes for hca in node.plan.hcas]
    return {name: sum(one.get(name, 0) for one in all_of_them) for name in names}


if __name__ == "__main__":
    sys.exit(main())
