"""For any wiring that closes, whatever the order and the flips, the plan connects everybody and its rules do so too."""

from __future__ import annotations

from collections import Counter

from hypothesis import given, settings
from hypothesis import strategies as st

from mesh.limits import busiest_load
from mesh.model import Plan
from mesh.planner import make_plan
from tests.mesh.frames import Fabric
from tests.mesh.rings import document, facts, ring_cables


@st.composite
def plans(draw: st.DrawFn, closed: bool = True) -> tuple[Plan, list[int]]:
    """A plan for a random ring or chain, and the physical node of each rank."""
    size = draw(st.integers(2, 16))
    order = draw(st.permutations(range(size)))
    flips = draw(st.lists(st.booleans(), min_size=size, max_size=size))
    planes = draw(st.sampled_from([(0, 1), (0, 1), (0,), (1,)]))
    cables = draw(st.permutations(ring_cables(size, flips, closed)))
    plan, _ = make_plan(facts(document(size, cables, planes, order)))
    return plan, list(order)


def distance(plan: Plan, order: list[int], a: int, b: int) -> int:
    """Cables between two ranks by the short way, from the physical positions the test made up."""
    straight = abs(order[a] - order[b])
    return straight if plan.shape == "chain" or (len(order) == 2) else min(straight, len(order) - straight)


any_plan = st.one_of(plans(closed=True), plans(closed=False))
quick = settings(max_examples=40, deadline=None)


@quick
@given(any_plan)
def test_every_pair_has_its_paths_and_both_directions_share_the_relays(case: tuple[Plan, list[int]]) -> None:
    """Acknowledgements travel back over the same relays; a pair without a path would hang at connect."""
    plan, order = case
    ways = Counter((path.source, path.target) for path in plan.paths)
    size = len(order)
    two_cables = size == 2 and len(plan.cables) == 2
    expected = len(plan.planes) * (2 if two_cables else 1)
    assert ways == {(a, b): expected for a in range(size) for b in range(size) if a != b}
    by_pair: dict[tuple[int, int], list] = {}
    for path in plan.paths:
        by_pair.setdefault((path.source, path.target), []).append(path)
    for (a, b), there in by_pair.items():
        for out, back in zip(there, by_pair[b, a], strict=True):  # path i pairs with path i
            assert out.via == tuple(reversed(back.via))
            assert (out.plane, out.source_hca, out.target_hca) == (back.plane, back.target_hca, back.source_hca)
            assert (out.source_address, out.target_address) == (back.target_address, back.source_address)


@quick
@given(any_plan)
def test_hops_match_the_geometry(case: tuple[Plan, list[int]]) -> None:
    """Hops come from where the nodes are, never from rank arithmetic."""
    plan, order = case
    for path in plan.paths:
        assert path.hops == distance(plan, order, path.source, path.target)


@quick
@given(any_plan)
def test_every_frame_arrives_by_the_rules_alone(case: tuple[Plan, list[int]]) -> None:
    """Follow a marked frame node by node: it reaches the planned port over the planned relays."""
    plan, _ = case
    fabric = Fabric(plan)
    for path in plan.paths:
        arrival = fabric.send(path)
        assert (arrival.rank, arrival.address, arrival.relays) == (path.target, path.target_address, path.via)


@quick
@given(any_plan)
def test_no_rule_route_or_marker_collides(case: tuple[Plan, list[int]]) -> None:
    """The kernel keeps one filter per (device, preference, handle), one route per destination, one mark per match."""
    plan, _ = case
    for node in plan.nodes:
        places = [(rule.device, rule.preference, rule.handle) for rule in node.rules]
        assert len(set(places)) == len(places)
        # One preference holds one protocol: a second protocol at the same preference is refused by the kernel.
        protocols = {(rule.device, rule.preference): set() for rule in node.rules}
        for rule in node.rules:
            protocols[rule.device, rule.preference].add(rule.ethertype)
        assert all(len(found) == 1 for found in protocols.values())
        assert len({route.destination for route in node.routes}) == len(node.routes)
        marks = [
            (marker.rdma, mark.destination, mark.udp_source_port) for marker in node.markers for mark in marker.marks
        ]
        assert len(set(marks)) == len(marks)
        own = {hca.address.split("/")[0] for hca in node.hcas}
        assert not own & {route.destination for route in node.routes}


@quick
@given(plans(closed=True))
def test_a_direct_path_is_never_marked(case: tuple[Plan, list[int]]) -> None:
    """A marked frame that needs no relay would meet no rule and vanish."""
    plan, _ = case
    forwarded = {(path.source, path.target_address) for path in plan.paths if path.via}
    for node in plan.nodes:
        for marker in node.markers:
            assert all(mark.destination is None or (node.rank, mark.destination) in forwarded for mark in marker.marks)
    assert all(path.flow_label == 0 for path in plan.paths if not path.via)


@quick
@given(plans(closed=True))
def test_the_load_does_not_depend_on_names_or_order(case: tuple[Plan, list[int]]) -> None:
    """The size cap comes from the busiest queue, which only geometry decides."""
    plan, order = case
    plain, _ = make_plan(facts(document(len(order), ring_cables(len(order)), plan.planes)))
    assert busiest_load(plan.paths, plan.ring) == busiest_load(plain.paths, plain.ring) == plan.limits.load
