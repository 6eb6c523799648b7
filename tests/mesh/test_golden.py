"""Plans with a known answer: the real four-Spark ring, figures taken from hardware runs, and every example."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from mesh.facts import Facts
from mesh.limits import limits
from mesh.loading import load_facts
from mesh.model import Plan, plan_hash
from mesh.planner import make_plan
from mesh.propose import propose_order
from mesh.text import environment, peer_maps
from tests.mesh.rings import EXAMPLES, SAMPLE, document, facts, ring_cables

# The line a four-Spark ring has been served with. DSV41_, SGLANG_ and B12X_ names belong to that recipe's engine.
SAMPLE_LINE = (
    "DSV41_ROCE_RING=1 SGLANG_ROCE_ALLREDUCE=1 SGLANG_ROCE_MAX_SIZE=262144 DSV41_ROCE_GATHER=262144 "
    "B12X_ROCE_HCA=rocep1s0f0,rocep1s0f1,roceP2p1s0f0,roceP2p1s0f1 "
    "B12X_ROCE_PEER_HCA_MAPS=1=1/3,2=0/3,3=0/2;0=0/2,2=1/3,3=1/2;0=1/2,1=0/2,3=1/3;0=1/3,1=0/3,2=0/2 "
    "B12X_ROCE_TWO_WAVE_THRESHOLD_BYTES=0"
)
IN_ORDER_MAP = "1=0/2,2=0/3,3=1/3;0=1/3,2=0/2,3=0/3;0=1/2,1=1/3,3=0/2;0=0/2,1=1/2,2=1/3"


def plan_of(source: Path | Facts, order: Sequence[str] = ()) -> Plan:
    plan, _ = make_plan(load_facts(source, tuple(order)) if isinstance(source, Path) else source)
    return plan


def test_sample_line_is_the_recipes_byte_for_byte() -> None:
    """Users compare the line with the one they run; one byte off and ranks refuse each other."""
    assert environment(plan_of(SAMPLE))["sglang"] == (SAMPLE_LINE,)


def test_small_hairpin_queue_lowers_both_sizes(tmp_path: Path) -> None:
    """At 1024 packets 100 KiB was seen to drop frames, so 80 KiB is the cap for reduce and gather alike."""
    small = tmp_path / "small.yaml"
    small.write_text(SAMPLE.read_text().replace("hairpin_queue_size: 8192", "hairpin_queue_size: 1024"))
    plan, found = make_plan(load_facts(small))
    assert environment(plan)["sglang"] == (SAMPLE_LINE.replace("262144", "81920"),)
    assert plan.limits.window_bytes == 32768  # more was seen to overflow a 1024-packet queue
    assert [item.code for item in found] == ["hairpin-small"]


def test_order_along_the_ring_gives_the_plain_map() -> None:
    """With tensor-parallel order equal to ring order the map is the published one."""
    assert peer_maps(plan_of(SAMPLE, ["s1", "s4", "s3", "s2"])) == IN_ORDER_MAP
    assert peer_maps(plan_of(EXAMPLES / "four-ring-in-order.yaml")) == IN_ORDER_MAP


def test_sample_has_eight_routes_rules_and_markers() -> None:
    """The recipe counts 8/8/8 over its nodes, two of each per node; operators check these numbers."""
    plan = plan_of(SAMPLE)
    assert plan.ring == (0, 3, 2, 1)
    for node in plan.nodes:
        counts = [len(part) for part in (node.routes, node.neighbours, node.rules, node.markers, node.clsact)]
        assert counts == [2, 2, 2, 2, 2]


def test_relays_of_the_sample_keep_to_one_plane_each() -> None:
    """Each node relays one pair on one plane, both directions: the load is spread evenly."""
    plan = plan_of(SAMPLE)
    for node in plan.nodes:
        planes = {hca.plane for hca in node.hcas if hca.netdev in node.clsact}
        assert len(planes) == 1


@pytest.mark.parametrize(
    ("nodes", "closed", "load", "cap"),
    [
        (2, True, 0, 524288),
        (3, True, 0, 524288),
        (4, True, 0.5, 262144),
        (5, True, 0.5, 262144),
        (6, True, 1.5, 262144),
        (7, True, 1.5, 262144),
        (8, True, 3, 131072),
        (4, False, 1, 262144),
    ],
)
def test_load_and_cap_by_size(nodes: int, closed: bool, load: float, cap: int) -> None:
    """The load factors and the 8-ring's cap are those published for the same geometry."""
    plan = plan_of(facts(document(nodes, ring_cables(nodes, closed=closed))))
    assert (plan.limits.load, plan.limits.max_bytes) == (load, cap)


@pytest.mark.parametrize("packets", [64, 128, 256, 512, 1024, 2048, 4096, 8192])
@pytest.mark.parametrize("load", [0.5, 1, 1.5, 3, 14])
def test_the_cap_never_overfills_a_queue(packets: int, load: float) -> None:
    """What meets in the busiest queue stays within three quarters of it, and sizes stay multiples of 16 bytes."""
    found = limits(load, packets, 2)
    assert 0 < found.max_bytes * load <= 0.75 * packets * 64
    assert found.max_bytes % 16 == 0
    assert found.chunk_bytes <= found.window_bytes


@pytest.mark.parametrize("path", sorted(EXAMPLES.glob("*.yaml")), ids=lambda path: path.stem)
def test_every_example_plans(path: Path) -> None:
    """An example that is refused teaches the wrong thing."""
    plan = plan_of(path)
    assert plan.hash == plan_hash(plan)


def test_uncabled_ports_are_left_out_of_the_hca_list() -> None:
    """A list with an uncabled port makes the engine's start fail, or fall back without a word."""
    (line,) = environment(plan_of(EXAMPLES / "pair-one-cable.yaml"))["sglang"]
    assert "B12X_ROCE_HCA=rocep1s0f0,roceP2p1s0f0 " in line
    assert "B12X_ROCE_PEER_HCA_MAPS=1=0/1;0=0/1 " in line


def test_differing_hca_lists_give_a_line_per_rank() -> None:
    """The ends of a chain use other functions than the middle; one line for all would name an uncabled port."""
    lines = environment(plan_of(EXAMPLES / "four-chain.yaml"))
    assert [len(found) for found in lines.values()] == [4, 4, 4]
    assert "nccl" not in lines  # a ring of NCCL's cannot close over a chain


def test_another_gid_index_is_told_to_engines_that_need_one() -> None:
    """Where every device has its GID at 5 an engine that assumes 3 would find a hole."""
    plan, found = make_plan(facts(document(4, ring_cables(4), gid_index=5)))
    assert environment(plan)["sglang"][0].endswith(" B12X_ROCE_GID_INDEX=5")
    assert [item.code for item in found] == ["gid-index-differs"]


def test_an_order_across_the_ring_is_planned_and_a_better_one_proposed() -> None:
    """Ranks 0 and 1 on opposite nodes: hops still come from geometry, and the proposal has no relay between ranks."""
    plan, found = make_plan(load_facts(SAMPLE, ("s1", "s3", "s2", "s4")))
    assert next(path for path in plan.paths if (path.source, path.target) == (0, 1)).hops == 2
    assert "order-not-ring" in [item.code for item in found]
    proposal = propose_order(plan)
    assert (proposal.hosts, proposal.relays_now, proposal.relays_then) == (("s1", "s4", "s3", "s2"), 2, 0)
    assert not propose_order(plan_of(SAMPLE, proposal.hosts)).changed


def test_a_ring_order_is_kept() -> None:
    """Nothing is proposed where nothing is won: the sample runs the ring backwards and stays as it is."""
    assert propose_order(plan_of(SAMPLE)).hosts == ("s1", "s2", "s3", "s4")


@pytest.mark.parametrize("order", [(0, 1, 2, 3, 4), (2, 0, 4, 1, 3)])
def test_no_order_over_a_chain_beats_the_proposed_one(order: tuple[int, ...]) -> None:
    """Over a chain every tour crosses each cable twice, so n - 2 relays are the least; rank 0 stays rank 0."""
    plan = plan_of(facts(document(5, ring_cables(5, closed=False), order=order)))
    proposal = propose_order(plan)
    assert proposal.hosts[0] == plan.hosts[0]
    assert proposal.relays_then == 3


def test_the_hash_covers_everything_but_itself() -> None:
    """Ranks compare hashes to know that they follow the same plan."""
    plan = plan_of(SAMPLE)
    assert plan.hash != plan_of(SAMPLE, ["s1", "s4", "s3", "s2"]).hash
    assert plan.hash == plan_of(SAMPLE).hash
