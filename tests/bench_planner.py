"""How long the planner takes for rings up to the largest it knows: python tests/bench_planner.py

Exits 1 if the plan of a ring of 16 nodes takes 50 ms or more, from facts in memory to the plan.
"""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

LIMIT_MS = 50.0
REPEATS = 15


def milliseconds(call: Callable[[], object]) -> float:
    """Median of a few runs, after one that warms up."""
    call()
    taken = []
    for _ in range(REPEATS):
        began = time.perf_counter()
        call()
        taken.append(time.perf_counter() - began)
    return statistics.median(taken) * 1000


def main() -> int:
    from mesh.planner import make_plan
    from tests.mesh import rings

    worst = 0.0
    for nodes in (2, 4, 8, 16):
        cables = rings.ring_cables(nodes) if nodes > 2 else [((0, 0), (1, 0)), ((0, 1), (1, 1))]
        shuffled = [(node * 5 + 3) % nodes if nodes % 5 else node for node in range(nodes)]
        raw = rings.document(nodes, cables, order=shuffled)
        facts = rings.facts(raw)
        check, plan = milliseconds(lambda raw=raw: rings.facts(raw)), milliseconds(lambda facts=facts: make_plan(facts))
        worst = max(worst, check + plan)
        print(f"{nodes:2} nodes: facts {check:6.2f} ms, plan {plan:6.2f} ms")
    print(f"worst {worst:.1f} ms, limit {LIMIT_MS:.0f} ms")
    return 0 if worst < LIMIT_MS else 1


if __name__ == "__main__":
    sys.exit(main())
