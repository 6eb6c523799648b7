"""The commands themselves, not only the plan they were made from, carry every frame where it belongs."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator

import msgspec
import pytest

from mesh.loading import load_facts
from mesh.model import Mark, Marker, Neighbour, NodePlan, Plan, RelayRule, Route
from mesh.planner import make_plan
from mesh.things import Thing, in_hardware, in_software
from mesh.trace import relays
from tests.mesh.frames import Fabric
from tests.mesh.rings import EXAMPLES

RULE = re.compile(
    r"tc filter add dev (\S+) ingress protocol (\S+) pref (\d+) handle (\S+) flower(?: skip_sw)?"
    r"(?: src_mac (\S+))?(?: dst_mac (\S+))? action pedit ex munge eth type set (\S+) pipe "
    r"action pedit ex munge eth dst set (\S+) pipe action mirred egress redirect dev (\S+)"
)
SOFT_MARK = re.compile(
    r"tc filter add dev (\S+) egress protocol ip pref \d+ handle \S+ flower ip_proto udp dst_port 4791 "
    r"(?:src_port (\d+)|dst_ip (\S+)) action pedit ex munge eth type set (\S+)"
)
PLANS = {path.stem: make_plan(load_facts(path))[0] for path in sorted(EXAMPLES.glob("*.yaml"))}


def understood(node: NodePlan, things: tuple[Thing, ...]) -> NodePlan:
    """The node as its commands alone would have it."""
    routes, neighbours, rules = [], [], []
    marks: dict[str, list[Mark]] = {}
    rdma = {hca.netdev: hca.rdma for hca in node.hcas}
    clsact = set()
    for line in (str(step) for one in things for step in one.make()):
        words = line.split()
        if line.startswith("ip route add"):
            routes.append(Route(words[3].removesuffix("/32"), words[5], words[7]))
        elif line.startswith("ip neigh"):
            neighbours.append(Neighbour(words[3], words[5], words[7]))
        elif line.startswith("tc qdisc add"):
            clsact.add(words[4])
        elif found := RULE.fullmatch(line):
            device, kind, pref, handle, source, target, new, mac, output = found.groups()
            assert device in clsact, "a filter before its qdisc"
            numbers = int(pref), int(handle, 16), int(new, 16)
            rules.append(RelayRule(device, int(kind, 16), source, target, *numbers, mac, output))
        elif found := SOFT_MARK.fullmatch(line):
            device, port, address, new = found.groups()
            assert device in clsact
            marks.setdefault(rdma[device], []).append(Mark(address, int(port) if port else None, int(new, 16)))
        elif line.startswith("roce-ring-marker"):
            marks.setdefault(words[2], []).extend(_marks(words[3:]))
        else:
            assert words[0] in ("ip", "devlink", "#"), line
    markers = tuple(Marker(device, tuple(held)) for device, held in marks.items())
    return msgspec.structs.replace(
        node, routes=tuple(routes), neighbours=tuple(neighbours), rules=tuple(rules), markers=markers
    )


def _marks(words: list[str]) -> Iterator[Mark]:
    for text in words[1::2]:
        where, new = text.split(",ethertype=")
        name, _, value = where.partition("=")
        yield Mark(value if name == "dst" else None, int(value) if name == "sport" else None, int(new, 16))


@pytest.mark.parametrize("things", [in_hardware, in_software])
@pytest.mark.parametrize("plan", PLANS.values(), ids=PLANS)
def test_every_frame_arrives_by_the_commands_alone(plan: Plan, things: Callable[[NodePlan], tuple[Thing, ...]]) -> None:
    """Soft-RoCE rings prove hardware's rules only if both make the same of a plan."""
    nodes = tuple(understood(node, things(node)) for node in plan.nodes)
    fabric = Fabric(msgspec.structs.replace(plan, nodes=nodes))
    for path in plan.paths:
        arrival = fabric.send(path)
        assert (arrival.rank, arrival.address, arrival.relays) == (path.target, path.target_address, path.via)


@pytest.mark.parametrize("plan", PLANS.values(), ids=PLANS)
def test_the_trace_names_the_rules_that_the_frame_meets(plan: Plan) -> None:
    """'verify' counts frames at the rules that the trace names: they must be those on the way, and no others."""
    fabric = Fabric(plan)
    for path in plan.paths:
        traced = relays(plan, path)
        assert tuple(rank for rank, _ in traced) == fabric.send(path).relays
        for rank, rule in traced:
            assert rule in plan.nodes[rank].rules


def test_a_plan_without_the_rule_is_said() -> None:
    plan = PLANS["four-spark-ring"]
    bare = tuple(msgspec.structs.replace(node, rules=()) for node in plan.nodes)
    path = next(path for path in plan.paths if path.via)
    with pytest.raises(ValueError, match="has no rule for the path from rank"):
        relays(msgspec.structs.replace(plan, nodes=bare), path)
