"""A node's part of a plan, set up on a soft ring with tc and ip alone: what the tests use until an agent does it.

The plan's own commands, with two differences: there is no hardware to put a rule in, so ``skip_sw`` goes; and the
marker's rewrite of outgoing RDMA frames is a tc rule at egress.
"""

from __future__ import annotations

from mesh.commands import up
from mesh.model import Mark, NodePlan
from tests.softroce.ring import Node


def apply(node: Node) -> None:
    """Raises GuestError at the first command that fails."""
    lines: dict[str, list[str]] = {"ip": [], "tc": []}
    for step in up(node.plan):
        if step.argv and step.argv[0] in lines:
            lines[step.argv[0]].append(" ".join(word for word in step.argv[1:] if word != "skip_sw"))
    lines["tc"] += _marks(node.plan)
    for tool, batch in lines.items():
        if batch:
            node.batch(tool, batch)


def restore(node: Node) -> None:
    """Neighbours and routes once more: a port that was down has lost its own. Raises GuestError."""
    steps = [step.argv for step in up(node.plan) if step.argv[:2] in (("ip", "neigh"), ("ip", "route"))]
    node.batch("ip", [" ".join((what, "replace", *words)) for _, what, _, *words in steps])


def _marks(plan: NodePlan) -> list[str]:
    netdevs = {hca.rdma: hca.netdev for hca in plan.hcas}
    lines = []
    for marker in plan.markers:
        device = netdevs[marker.rdma]
        if device not in plan.clsact:
            lines.append(f"qdisc add dev {device} clsact")
        lines += [f"filter add dev {device} egress {_mark(mark)}" for mark in marker.marks]
    return lines


def _mark(mark: Mark) -> str:
    which = f"src_port {mark.udp_source_port}" if mark.destination is None else f"dst_ip {mark.destination}"
    rewrite = f"action pedit ex munge eth type set {mark.ethertype:#06x}"
    return f"protocol ip pref 1 flower ip_proto udp dst_port 4791 {which} {rewrite}"
