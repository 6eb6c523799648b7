"""What a node agent does with one marker, where /run is empty (test_with_agent.py). Prints what it saw as JSON."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

from mesh.agent.dataplane import Cx7
from mesh.agent.making import Maker
from mesh.agent.state import State
from mesh.loading import load_facts
from mesh.marker import running
from mesh.model import NodePlan
from mesh.planner import make_plan
from mesh.snapshot import CommandFailed
from mesh.things import MarkerProgram

SAMPLE = Path("mesh/examples/four-spark-ring.yaml")


def node() -> NodePlan:
    plan, _ = make_plan(load_facts(SAMPLE))
    return plan.nodes[0]


def make() -> list[str]:
    """Starts the first marker of the node; returns why it could not."""
    things = [MarkerProgram(node().markers[0])]
    try:
        Maker(State(), lambda: None).make(things, Cx7().look(node()), remember=True)
    except CommandFailed as failed:
        return [str(failed)]
    return []


def sights() -> list[str]:
    now = Cx7().look(node())
    return [MarkerProgram(marker).sight(now).state for marker in node().markers]


def life() -> dict[str, object]:
    """One agent starts a marker and ends; another finds it and, later, takes it back."""
    device = node().markers[0].rdma
    before = sights()
    subprocess.run([sys.executable, __file__, "make"], check=True, stdout=subprocess.DEVNULL)
    again = sights()
    left = Maker(State(owned={f"marker {device}": {}}), lambda: None).take_back(node(), Cx7(), {f"marker {device}"})
    after = sights()
    if (found := running(device)) is not None:  # nobody else would end it
        os.kill(found.pid, signal.SIGKILL)
    return {"before": before, "again": again, "left": list(map(str, left)), "after": after}


if __name__ == "__main__":
    print(json.dumps({"make": make, "life": life}[sys.argv[1]]()))
