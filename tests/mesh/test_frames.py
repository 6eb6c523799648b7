"""The forwarding simulation itself: it must notice a wrong rule, or the property tests prove nothing."""

from __future__ import annotations

from collections.abc import Callable

import msgspec
import pytest

from mesh.loading import load_facts
from mesh.model import NodePlan, Plan
from mesh.planner import make_plan
from tests.mesh.frames import Fabric
from tests.mesh.rings import EXAMPLES

replace = msgspec.structs.replace


def first_rule(**changes: object) -> Callable[[NodePlan], NodePlan]:
    return lambda node: replace(node, rules=(replace(node.rules[0], **changes), *node.rules[1:]))


BREAKS: dict[str, Callable[[NodePlan], NodePlan]] = {
    "a rule is missing": lambda node: replace(node, rules=node.rules[1:]),
    "a rule matches twice": lambda node: replace(node, rules=(*node.rules, node.rules[0])),
    "a rule sends to the wrong MAC": first_rule(set_target_mac="02:00:00:ff:ff:ff"),
    "a rule sends back where it came from": lambda node: first_rule(output=node.rules[0].device)(node),
    "a rule restores the EtherType too early or never": first_rule(set_ethertype=0x88B9),
    "a rule listens on the wrong port": lambda node: first_rule(device=node.rules[0].output)(node),
    "a marker is missing": lambda node: replace(node, markers=node.markers[1:]),
    "a neighbour entry is stale": lambda node: replace(
        node, neighbours=(replace(node.neighbours[0], mac="02:00:00:ff:ff:ff"), *node.neighbours[1:])
    ),
    "a route is missing": lambda node: replace(node, routes=node.routes[1:]),
}


def send_all(plan: Plan) -> None:
    fabric = Fabric(plan)
    for path in plan.paths:
        arrival = fabric.send(path)
        assert (arrival.rank, arrival.relays) == (path.target, path.via)


@pytest.mark.parametrize("example", ["four-spark-ring", "eight-ring"])
@pytest.mark.parametrize("name", BREAKS)
def test_a_broken_node_is_noticed(example: str, name: str) -> None:
    """Break one thing on one node of a good plan."""
    plan, _ = make_plan(load_facts(EXAMPLES / f"{example}.yaml"))
    send_all(plan)
    broken = replace(plan, nodes=(plan.nodes[0], BREAKS[name](plan.nodes[1]), *plan.nodes[2:]))
    with pytest.raises((AssertionError, ValueError)):
        send_all(broken)
