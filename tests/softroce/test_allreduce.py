"""All-reduces over real verbs between nodes: every value right, over the planned ways and no other."""

from __future__ import annotations

import json
import os
import subprocess
from typing import Any

import pytest

from tests.softroce import byhand
from tests.softroce.ranks import PROGRAM, bench, forwarded_datagrams, start_bench, wrong
from tests.softroce.ring import Node, Ring, plan_of

pytestmark = pytest.mark.timeout(150)  # a few seconds each; ranks of a busy machine take ten times as long
ALL = "--mode all --iters 1"
RAW_AND_PARTIAL = {"full", "full_phased", "payload_rsag", "payload_rsag_phased", "ring", "ring_bidir", "halving"}


def ladder(ring: Ring) -> str:
    """Where the nodes find one that is for this ring and for a box with peer memory."""
    buckets = [{"upto": 1024, "profiles": [{"mode": "full"}]}, {"upto": 1 << 30, "profiles": [{"mode": "ring"}]}]
    fabrics = {"fabric": "roce-ring-mesh", "also_for": ["pcie-hostbridge"]}
    source = {"kind": "measured", "source": "this test"}
    file = {"schema": "roce-ring/ladder/v1", **fabrics, "provenance": source, "buckets": buckets}
    (ring.guest.share / "ladder.json").write_text(json.dumps(file))
    return "/ring/ladder.json"


def by_the_ladder_file(rows: list[dict[str, Any]]) -> None:
    chosen = {(row["bytes"] > 1024, row["mode"]) for row in rows if row["chosen"]}
    assert chosen == {(False, "full"), (True, "ring")}


def relayed_bytes(node: Node) -> dict[str, int]:
    """What each of a node's relay rules has sent on, by the port where the frames came in."""
    return {rule.device: _sent(node, rule.device)[0] for rule in node.plan.rules}


def _sent(node: Node, device: str) -> list[int]:
    """Bytes that each rule at ingress of a port has counted, in order of preference."""
    shown = json.loads(node.run(f"tc -j -s filter show dev {device} ingress").check() or "[]")
    return [int(one["options"]["actions"][0]["stats"]["bytes"]) for one in shown if "actions" in one.get("options", {})]


def test_every_mode_dtype_and_odd_size_is_right(planned_ring: Ring) -> None:
    """One element, sizes that are no multiple of 16 bytes, below and above what is cut over two paths."""
    rows = bench(
        planned_ring, f"{ALL} --dtype all --sizes 1,4099,33333", env=f"ROCE_RING_LADDER={ladder(planned_ring)}"
    )
    assert wrong(rows) == []
    by_the_ladder_file(rows)
    assert {row["mode"] for row in rows} == RAW_AND_PARTIAL
    assert {row["dtype"] for row in rows} == {"float32", "bfloat16", "float16"}


def test_the_same_ladder_file_drives_a_pcie_session(planned_ring: Ring) -> None:
    """The class names differ, what reads and climbs the file does not."""
    ladder(planned_ring)
    env = {**os.environ, "ROCE_RING_LADDER": str(planned_ring.guest.share / "ladder.json")}
    command = [PROGRAM, "bench", "--local", "4", "--provider", "pcie", "--json", *f"{ALL} --sizes 1,4099".split()]
    here = subprocess.run(command, env=env, capture_output=True, text=True, check=True)
    assert "covers nothing" not in here.stderr
    by_the_ladder_file(json.loads(here.stdout)["rows"])


def test_gathers_and_odd_addresses_are_right(planned_ring: Ring) -> None:
    """What only moves bytes, in place and not, at every alignment, with the same bits on all ranks; far peers served
    after the direct ones and in small writes, a few at a time."""
    careful = " ".join(
        f"ROCE_RING_{name}"
        for name in ("TWO_WAVE_THRESHOLD_BYTES=1", "FORWARD_WINDOW_BYTES=16384", "FORWARD_CHUNK_BYTES=8192")
    )
    rows = bench(planned_ring, "--op all --check --iters 1 --dtype bf16 --sizes 17,70001", env=careful)
    assert wrong(rows) == []
    assert {row["op"] for row in rows} == {"all_reduce", "all_gather", "reduce_scatter"}


def test_far_bytes_pass_the_neighbours_rule_and_no_ip_stack(planned_ring: Ring) -> None:
    """Two opposite pairs, two planes: each relay rule carries half of what one rank sends to its opposite, and a little
    for headers and acknowledgements. No kernel forwards a datagram."""
    size, count = 1 << 18, 2 + 1 + 1  # checks, warm-up, sample
    rules, datagrams = (
        [relayed_bytes(node) for node in planned_ring.nodes],
        [forwarded_datagrams(node) for node in planned_ring.nodes],
    )
    assert not wrong(bench(planned_ring, f"--mode full --sizes {size} --iters 1"))
    after = [relayed_bytes(node) for node in planned_ring.nodes]
    carried = [now[rule] - before[rule] for before, now in zip(rules, after, strict=True) for rule in now]
    assert len(carried) == 8
    wanted = size / 2 * count + 16 * 16384  # the litmus: rounds and bytes of a path
    assert all(wanted < one < 1.03 * wanted for one in carried), carried
    assert [forwarded_datagrams(node) for node in planned_ring.nodes] == datagrams


@pytest.mark.parametrize(("nodes", "planes"), [(2, 2), (3, 2), (4, 1), (6, 1), (8, 1)])
def test_other_worlds_are_right(soft_ring: type[Ring], nodes: int, planes: int) -> None:
    """More than one relay on the way, no relay at all, one plane only."""
    with soft_ring(plan_of(nodes, planes)) as ring:
        for node in ring.nodes:
            byhand.apply(node)
        rows = bench(ring, f"{ALL} --sizes {40007 if nodes > 4 else '5,40007'}")
        assert wrong(rows) == []
        assert {row["mode"] for row in rows} == RAW_AND_PARTIAL - (set() if nodes in (2, 4, 8) else {"halving"})


def test_a_bare_ring_runs_what_only_neighbours_need(soft_ring: type[Ring]) -> None:
    """Nothing is set up but cables and addresses: ring modes are right, and no frame comes from further away than the
    other end of the cable."""
    with soft_ring(plan_of(4)) as ring:
        for node in ring.nodes:
            node.batch("tc", _count_strangers(ring, node))
        rows = bench(ring, "--mode ring,ring_bidir,halving --iters 1 --dtype float32,bf16 --sizes 3,40007 --check")
        assert wrong(rows) == []
        assert {row["mode"] for row in rows} == {"ring", "ring_bidir", "halving"}
        for node in ring.nodes:
            for hca in node.plan.hcas:
                neighbour, stranger = _sent(node, hca.netdev)
                assert neighbour > 0 and stranger == 0, f"{node.name} {hca.netdev}"


def _count_strangers(ring: Ring, node: Node) -> list[str]:
    """Per port, one rule that counts RDMA frames of the far end of its cable, and one that counts all others."""
    lines = []
    for path in ring.plan.paths:
        if path.target == node.plan.rank and path.hops == 1:
            device = node.plan.hcas[path.target_hca].netdev
            rule = f"filter add dev {device} ingress protocol ip pref"
            rdma = "flower ip_proto udp dst_port 4791"
            lines += [f"qdisc add dev {device} clsact"]
            lines += [f"{rule} 1 {rdma} src_ip {path.source_address.split('/')[0]} action pass"]
            lines += [f"{rule} 2 {rdma} action pass"]
    return lines


def test_what_a_bare_ring_cannot_run_is_said_at_once(soft_ring: type[Ring]) -> None:
    with soft_ring(plan_of(4, 1)) as ring:
        said = [job.wait() for job in start_bench(ring, "--mode full --iters 1 --sizes 4")]
        assert [one.status for one in said] == [2] * 4
        assert len({one.output for one in said}) == 1
        assert "cannot reach 10.10.2.10 from 10.10.3.11 (path 0 to rank 2)" in said[0].output
        assert "check the cable, or bring the mesh up" in said[0].output


def test_the_meeting_over_the_network_wants_certificates(ring: Ring) -> None:
    """Hosts do not share a file system: rank 0's management address, which nobody may use without a certificate."""
    address = f"{ring.nodes[0].management_address}:29400"
    said = [job.wait() for job in start_bench(ring, "--iters 1 --sizes 4", address)]
    assert [one.status for one in said] == [2] * 4
    assert all("mutual TLS" in one.output for one in said)
