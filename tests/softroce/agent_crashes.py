"""In a node: a node agent dies at every single step of an apply and of a teardown, and the next one takes over.

    python -m tests.softroce.agent_crashes PLAN HOST

A step is a command that changes the kernel or a write of the agent's state; it dies (SIGKILL) right before each, which
is right after the one before. Prints one JSON object: how many deaths there were, and what was wrong after which.
"""

from __future__ import annotations

import json
import logging
import os
import signal
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

import msgspec

from roce_ring.mesh.agent import agent as agent_module
from roce_ring.mesh.agent.agent import Agent
from roce_ring.mesh.agent.state import State, save
from roce_ring.mesh.snapshot import Snapshot, read, run_command

READS = {"show", "-b"}
MOST_STEPS = 200


class Dying:
    """Counts steps; the process dies before step ``at``."""

    def __init__(self, at: int) -> None:
        self.at, self.steps = at, 0

    def run(self, argv: tuple[str, ...], stdin: str = "", timeout_s: float = 10) -> str:
        if not READS & set(argv):
            self._step()
        return run_command(argv, stdin, timeout_s)

    def save(self, directory: Path, state: State) -> None:
        self._step()
        save(directory, state)

    def _step(self) -> None:
        self.steps += 1
        if self.steps == self.at:
            os.kill(os.getpid(), signal.SIGKILL)


def died(work: Callable[[Dying], None], dying: Dying) -> bool:
    """In a child: whether it died before it was done."""
    child = os.fork()
    if child == 0:
        agent_module.save = dying.save  # type: ignore[attr-defined]  # imported there, and called by that name
        work(dying)
        os._exit(0)
    _, status = os.waitpid(child, 0)
    if os.WIFEXITED(status) and os.WEXITSTATUS(status):
        raise SystemExit(f"the child failed with {os.WEXITSTATUS(status)}")
    return os.WIFSIGNALED(status)


def kernel_state() -> Snapshot:
    """All that a plan could change; what was counted does not matter."""
    now = read()
    uncounted = {
        place: tuple(msgspec.structs.replace(one, packets=0, bytes=0) for one in filters)
        for place, filters in now.filters.items()
    }
    learnt = {place: entry for place, entry in now.neighbours.items() if entry[1]}
    return msgspec.structs.replace(now, filters=uncounted, neighbours=learnt)


def main() -> int:
    document, host = Path(sys.argv[1]).read_text(), sys.argv[2]
    plan_hash = json.loads(document)["hash"]
    logging.disable(logging.CRITICAL)  # the agents' own words about crashes
    before, wanted = kernel_state(), None
    deaths, wrong = 0, []

    with tempfile.TemporaryDirectory() as folder:
        directory = Path(folder)

        def apply(dying: Dying) -> None:
            agent = Agent(directory, "soft", run=dying.run)
            agent.stage(document, host)
            agent.commit(plan_hash)

        def remove(dying: Dying) -> None:
            agent = Agent(directory, "soft", run=dying.run)
            agent.tick()
            agent.teardown()

        def recover(goal: str) -> Agent:
            nonlocal wanted
            agent = Agent(directory, "soft")
            agent.tick()
            if agent.status().phase == "idle":
                agent.stage(document, host)
                agent.commit(plan_hash)
            status = agent.status()
            bad = [f"{thing.key} {thing.state}" for thing in status.things if thing.state != "same"]
            foreign = [thing.key for thing in status.things if not thing.ours and thing.key.split()[0] in OURS]
            if status.phase != "active" or bad or foreign or not status.healthy:
                wrong.append(f"{goal}: {status.phase} {bad} not ours: {foreign} {[str(f) for f in status.findings]}")
            now = kernel_state()
            wanted = wanted or now
            if now != wanted:
                wrong.append(f"{goal}: the kernel's state differs from that of an apply in one go")
            return agent

        def take_back(agent: Agent, goal: str) -> None:
            left = agent.teardown()
            if left or kernel_state() != before:
                wrong.append(f"{goal}: after the teardown {[str(f) for f in left]} {kernel_state()}")

        take_back(recover("no death"), "no death")
        for at in range(1, MOST_STEPS):
            goal = f"apply, before step {at}"
            whole = not died(apply, Dying(at))
            take_back(recover(goal), goal)
            if whole:
                break
            deaths += 1
        for at in range(1, MOST_STEPS):
            goal = f"teardown, before step {at}"
            recover(goal)
            whole = not died(remove, Dying(at))
            agent = Agent(directory, "soft")
            agent.tick()
            take_back(agent, goal)
            if whole:
                break
            deaths += 1
    print(json.dumps({"deaths": deaths, "wrong": wrong}))
    return 0


OURS = {"route", "neighbour", "qdisc", "rule", "mark"}

if __name__ == "__main__":
    sys.exit(main())
