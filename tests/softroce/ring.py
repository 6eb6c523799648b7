"""A Soft-RoCE ring as a plan describes it: one network name space per node, ports and RDMA devices under their names.

    python -m tests.softroce.ring [--nodes 4] [--planes 2] [--cpus 1] COMMAND

runs a shell command in every node at once. Every port is a veth with the plan's MAC, address and MTU, cabled as the
plan's subnets say, with its RDMA device (exclusive mode: a node sees only its own). Each node also has a management
port outside the plan. The relay rules, routes and neighbours of the plan are not set up: that is whoever applies it.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType

import msgspec

from mesh.facts import Facts
from mesh.loading import load_facts
from mesh.model import Hca, NodePlan, Plan
from mesh.planner import make_plan
from tests.softroce import kernel
from tests.softroce.guest import Guest, GuestError, Job, Result

EXAMPLES = Path(__file__).parents[2] / "mesh" / "examples"
GEOMETRY = {
    2: "pair-two-cables.yaml",
    3: "triangle.yaml",
    4: "four-spark-ring.yaml",
    6: "six-ring.yaml",
    8: "eight-ring.yaml",
}
MANAGEMENT = "enP7s7"  # the name of a DGX Spark's management port
MANAGEMENT_UP = (  # for `ip -b`; the routes go whenever the port goes down
    f"link set {MANAGEMENT} up",
    f"route add 192.168.77.254 dev {MANAGEMENT}",
    "route add 192.168.77.0/24 via 192.168.77.254",
)
NO_FAULT = "netem limit 10000"  # passes everything at once; deep enough to never drop what Soft-RoCE has in flight


def plan_of(nodes: int, planes: int = 2) -> Plan:
    """The plan of the example with that many nodes, on its first one or both planes."""
    facts: Facts = load_facts(EXAMPLES / GEOMETRY[nodes])
    kept = [
        msgspec.structs.replace(node, ports=tuple(port for port in node.ports if port.plane < planes)) for node in facts
    ]
    return make_plan(tuple(kept))[0]


def gid_of(hca: Hca) -> str:
    """The planned IPv4 address as the kernel writes it among a device's GIDs."""
    octets = [int(octet) for octet in hca.address.split("/")[0].split(".")]
    return "0000:0000:0000:0000:0000:ffff:{:02x}{:02x}:{:02x}{:02x}".format(*octets)


class Node:
    """One node of the ring: runs commands in its name space."""

    def __init__(self, guest: Guest, plan: NodePlan) -> None:
        self._guest, self.plan, self.name = guest, plan, plan.host

    def spawn(self, command: str, limit_s: float = 30) -> Job:
        return self._guest.spawn(command, self.name, limit_s)

    def run(self, command: str, limit_s: float = 30) -> Result:
        return self._guest.run(command, self.name, limit_s)

    def batch(self, tool: str, lines: list[str]) -> None:
        """Many lines for ``ip``, ``tc`` or ``rdma`` in one process. Raises GuestError at the first that fails."""
        self.run(f"{tool} -b - <<'END'\n" + "\n".join(lines) + "\nEND").check()

    def outside(self, command: str) -> None:
        """Run a command in the guest but in no node. Raises GuestError if it fails."""
        self._guest.run(command).check()

    @property
    def management_address(self) -> str:
        return f"192.168.77.{self.plan.rank + 1}"

    def gids(self, rdma: str) -> dict[int, str]:
        """The RoCE v2 GIDs of a device by index, as far as the first 16 (of 1024) go."""
        look = "read -r t < gid_attrs/types/$i && read -r g < gids/$i && echo $i $g $t"
        found = self.run(f"cd /sys/class/infiniband/{rdma}/ports/1; for i in {{0..15}}; do {look}; done 2> /dev/null")
        lines = [line.split(maxsplit=2) for line in found.output.splitlines()]
        return {int(index): gid for index, gid, kind in lines if kind == "RoCE v2"}

    def gid_index(self, hca: Hca) -> int:
        """Where the planned IPv4 address is in the device's GID table now. Raises GuestError if it is nowhere."""
        found = [index for index, gid in self.gids(hca.rdma).items() if gid == gid_of(hca)]
        if len(found) != 1:
            raise GuestError(f"{self.name} {hca.rdma} has {len(found)} GIDs for {hca.address}: {self.gids(hca.rdma)}")
        return found[0]

    def counters(self, rdma: str) -> dict[str, int]:
        """The device's own counters (sent_pkts, rcvd_pkts, completer_retry_err, link_downed, ...)."""
        [counters] = json.loads(self.run(f"rdma -j statistic show link {rdma}/1").check())
        return {name: value for name, value in counters.items() if isinstance(value, int)}

    def relayed_packets(self, netdev: str) -> int:
        """What the tc rules at ingress of a port counted."""
        shown = json.loads(self.run(f"tc -j -s filter show dev {netdev} ingress").check() or "[]")
        actions = [rule["options"]["actions"][0] for rule in shown if rule.get("options", {}).get("actions")]
        return sum(int(action["stats"]["packets"]) for action in actions)


class Ring:
    """A context manager. ``cpus``: processors of the guest; 1 is fastest unless commands poll without yielding."""

    def __init__(self, plan: Plan, cpus: int = 1) -> None:
        self.plan = plan
        self.guest = Guest(kernel.kernel(), cpus)
        self.nodes = [Node(self.guest, node) for node in plan.nodes]

    def __enter__(self) -> Ring:
        self.guest.__enter__()
        try:
            self._wire()
        except BaseException:
            self.guest.stop()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.guest.stop()

    def all(self, command: str, limit_s: float = 30) -> list[Result]:
        """Run a command in every node at once; results by rank."""
        jobs = [node.spawn(command, limit_s) for node in self.nodes]
        return [job.wait() for job in jobs]

    def _wire(self) -> None:
        ip = [f"netns add {node.name}" for node in self.nodes]
        ip += [*self._cables(), *self._management()]
        # no duplicate address detection: link-local GIDs are there at once
        quiet = "echo 0 > /proc/sys/net/ipv6/conf/default/accept_dad; echo 1 > /proc/sys/net/ipv4/ip_forward"
        self.guest.run(f"{quiet}; ip -b - <<'END'\n" + "\n".join(ip) + "\nEND").check()
        for result in [job.wait() for job in [node.spawn(_setup(node)) for node in self.nodes]]:
            result.check()

    def _cables(self) -> Iterator[str]:
        ends = {(node.rank, hca.plane, hca.port): (node.host, hca) for node in self.plan.nodes for hca in node.hcas}
        for cable in self.plan.cables:
            for plane in self.plan.planes:
                (host, a), (far_host, b) = (ends[end.rank, plane, end.port] for end in cable.ends)
                far = f"peer name {b.netdev} address {b.mac} mtu {b.mtu} netns {far_host}"
                yield f"link add {a.netdev} address {a.mac} mtu {a.mtu} netns {host} type veth {far}"

    def _management(self) -> Iterator[str]:
        for node in self.nodes:
            port = f"m{node.plan.rank}"
            yield f"link add {port} type veth peer name {MANAGEMENT} netns {node.name}"
            yield f"address add 192.168.77.254/32 dev {port}"
            yield f"link set {port} up"
            yield f"route add {node.management_address}/32 dev {port}"


def _setup(node: Node) -> str:
    """One script for everything inside a node. The netem comes now, because adding one under traffic loses frames;
    a fault changes it."""
    ip = ["link set lo up", f"address add {node.management_address}/32 dev {MANAGEMENT}", *MANAGEMENT_UP]
    tc, rdma = [], []
    for hca in node.plan.hcas:
        ip += [f"address add {hca.address} dev {hca.netdev}", f"link set {hca.netdev} up"]
        tc.append(f"qdisc add dev {hca.netdev} root {NO_FAULT}")
        rdma.append(f"link add {hca.rdma} type rxe netdev {hca.netdev}")
    parts = ["set -e", "echo 0 > /proc/sys/net/ipv6/conf/default/accept_dad"]
    parts += ["for f in /proc/sys/net/ipv6/conf/*/accept_dad; do echo 0 > $f; done"]
    for tool, lines in (("ip", ip), ("tc", tc), ("rdma", rdma)):
        parts.append(f"{tool} -b - <<'END'\n" + "\n".join(lines) + "\nEND")
    return "\n".join(parts)


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--nodes", type=int, choices=GEOMETRY, default=4)
    parser.add_argument("--planes", type=int, choices=(1, 2), default=2)
    parser.add_argument("--cpus", type=int, default=1)
    parser.add_argument("--seconds", type=float, default=60, help="time limit of the command")
    parser.add_argument("command", help="a shell command")
    options = parser.parse_args()
    began = time.monotonic()
    try:
        with Ring(plan_of(options.nodes, options.planes), options.cpus) as ring:
            print(f"ring of {options.nodes} up in {time.monotonic() - began:.1f} s", file=sys.stderr)
            results = ring.all(options.command, options.seconds)
    except (kernel.KernelError, GuestError) as failed:
        print(failed, file=sys.stderr)
        return 2
    for node, result in zip(ring.nodes, results, strict=True):
        print(f"--- {node.name}: exit status {result.status}\n{result.output}", end="")
    return int(any(result.status for result in results))


if __name__ == "__main__":
    sys.exit(main())
