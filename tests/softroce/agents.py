"""A node agent on every node of a soft ring, started and driven as an operator would."""

from __future__ import annotations

import json
import sys
from types import TracebackType
from typing import Any

from tests.softroce.guest import Job, Result
from tests.softroce.ranks import PROGRAM, ROOT, plan_file
from tests.softroce.ring import Node, Ring

PYTHON = sys.executable
UP_S = 40.0


class Agents:
    """A context manager. Each agent has its sockets where a real one has them, as its node sees it: nodes share a file
    system here, so every command mounts its node's own folder there."""

    def __init__(self, ring: Ring, options: str = "") -> None:
        self.ring, self._options = ring, options
        self.plan = plan_file(ring)
        self._jobs: dict[str, Job] = {}

    def __enter__(self) -> Agents:
        for node in self.ring.nodes:
            self.start(node)
        for node in self.ring.nodes:
            self.wait_for(node)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for node in self.ring.nodes:
            self.stop(node)

    def run_dir(self, node: Node) -> str:
        """Where the node's agent has its sockets, as every node sees it."""
        return f"/mnt/{node.name}/run/roce-ring"

    def at_home(self, node: Node) -> str:
        """What a command has to begin with to see the node's own /run/roce-ring and /var/lib/roce-ring."""
        places = " && ".join(
            f"mkdir -p -m 0750 /mnt/{node.name}{place} {place} && mount --bind /mnt/{node.name}{place} {place}"
            for place in ("/run/roce-ring", "/var/lib/roce-ring")
        )
        return f"{places} && "

    def start(self, node: Node, environment: str = "") -> None:
        command = f"{self.at_home(node)} exec env {environment} {PROGRAM} agent {self._options}"
        self._jobs[node.name] = node.spawn(command, 900)

    def wait_for(self, node: Node) -> None:
        """Until it answers."""
        self._jobs[node.name].until("answers on", UP_S)

    def stop(self, node: Node, signal: str = "TERM") -> None:
        self._jobs[node.name].signal(signal)
        self._jobs[node.name].wait()

    def log(self, node: Node) -> str:
        return self._jobs[node.name].output

    def roce_ring(self, verb: str, options: str = "", limit_s: float = 60) -> Result:
        """A verb that drives all nodes, run on the first."""
        where = " ".join(f"--agent {n.name}=unix:{self.run_dir(n)}/agent.sock" for n in self.ring.nodes)
        return self.ring.nodes[0].run(f"{PROGRAM} {verb} {self.plan} {where} {options}", limit_s)

    def document(self, verb: str, options: str = "") -> dict[str, Any]:
        """What it prints with --json."""
        said = self.roce_ring(verb, f"--json {options}")
        found: dict[str, Any] = json.loads(said.output)
        return {**found, "status": said.status}

    def python(self, node: Node, module: str, arguments: str = "", limit_s: float = 60) -> Result:
        """A module of the tests, run in a node, at home."""
        return node.run(f"{self.at_home(node)} cd {ROOT} && {PYTHON} -m tests.softroce.{module} {arguments}", limit_s)


def kernel_state(node: Node) -> str:
    """All that a plan could change, as ip and tc print it."""
    filters = " ".join(hca.netdev for hca in node.plan.hcas)
    return node.run(
        "ip address; ip route; ip neigh show nud permanent; tc qdisc; "
        f"for d in {filters}; do tc filter show dev $d ingress; tc filter show dev $d egress; done 2> /dev/null; true"
    ).check()
