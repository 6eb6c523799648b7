"""A probe proves a path by writing over it, and says what is wrong where it cannot."""

from __future__ import annotations

import itertools
import json
import sys
from pathlib import Path
from typing import Any

import pytest

from mesh.model import Path as PlannedPath
from tests.softroce import byhand, faults
from tests.softroce.ring import Node, Ring

NODE = Path(__file__).with_name("probe_node.py")
_meetings = itertools.count()


@pytest.fixture(scope="module", autouse=True)
def applied(ring: Ring) -> None:
    for node in ring.nodes:
        byhand.apply(node)


def path_of(ring: Ring, source: int, target: int, plane: int = 0) -> PlannedPath:
    [path] = [p for p in ring.plan.paths if (p.source, p.target, p.plane) == (source, target, plane)]
    return path


def probe(ring: Ring, path: PlannedPath, how: str = "") -> tuple[Any, Any]:
    """What both ends of a path say, the source's first."""
    meeting = f"/ring/meeting.{next(_meetings)}"

    def command(node: Node, hca: int, mine: str, theirs: str, how: str = "") -> str:
        port = node.plan.hcas[hca]
        address = port.address.split("/")[0]
        root = NODE.parents[2]
        return (
            f"PYTHONPATH={root} {sys.executable} {NODE} {meeting} {mine} {theirs} {port.rdma} {address} "
            f"{path.flow_label} {how}"
        )

    a = ring.nodes[path.source].spawn(command(ring.nodes[path.source], path.source_hca, "a", "b", how))
    b = ring.nodes[path.target].spawn(command(ring.nodes[path.target], path.target_hca, "b", "a"))
    return json.loads(a.wait().check()), json.loads(b.wait().check())


@pytest.mark.parametrize("target", [1, 2], ids=["neighbour", "far"])
@pytest.mark.parametrize("plane", [0, 1])
def test_every_path_of_an_applied_plan_carries_writes_both_ways(ring: Ring, target: int, plane: int) -> None:
    path = path_of(ring, 0, target, plane)
    assert bool(path.via) == (target == 2)
    relays = [ring.nodes[rank] for rank in path.via]
    before = [relayed(node) for node in relays]
    for end in probe(ring, path):
        assert end["ok"] and not end["why"] and len(end["us"]) == 5 and not end["again"], end
    # five writes and one to see that it goes on, each way; and as many acknowledgements
    assert all(relayed(node) - count >= 24 for node, count in zip(relays, before, strict=True))


def relayed(node: Node) -> int:
    return sum(node.relayed_packets(netdev) for netdev in {rule.device for rule in node.plan.rules})


def test_a_far_path_without_its_relays_rule_is_not_ok_and_says_what_to_look_at(ring: Ring) -> None:
    path = path_of(ring, 0, 2)
    relay = ring.nodes[path.via[0]]
    for device in {rule.device for rule in relay.plan.rules}:
        relay.run(f"tc filter del dev {device} ingress").check()
    a, b = probe(ring, path)
    for end in (a, b):
        assert not end["ok"] and end["us"] == [] and end["took"] < 3, end
        assert "transport retry counter exceeded" in end["why"] and "the rule of each relay" in end["why"], end
        assert "has failed (make a new one)" in end["again"]
    assert probe(ring, path_of(ring, 0, 1))[0]["ok"], "the relay's own paths are not touched"


def test_a_key_that_is_not_the_peers_is_refused_by_the_peer(ring: Ring) -> None:
    a, b = probe(ring, path_of(ring, 0, 1), "wrong-key")
    assert "remote access error" in a["why"] and "exchange endpoints again" in a["why"], a
    assert b["why"] or b["ok"]  # its own queue pair fails as well, or had written before


def test_a_port_that_is_down_says_so_at_once(ring: Ring) -> None:
    path = path_of(ring, 1, 2)
    node, hca = ring.nodes[1], ring.nodes[1].plan.hcas[path.source_hca]
    faults.link_down(node, hca)
    address = hca.address.split("/")[0]
    script = (
        "from roce_ring.probe import Probe, SetupError\n"
        f"for rdma, address in (('{hca.rdma}', '{address}'), ('mlx9', '{address}'), ('{node.plan.hcas[0].rdma}', "
        "'10.99.99.99')):\n"
        "    try: Probe(rdma, address)\n"
        "    except SetupError as failed: print(failed)\n"
    )
    said = node.run(f"PYTHONPATH={NODE.parents[2]} {sys.executable} - <<'END'\n{script}END").check().splitlines()
    faults.link_up(node, hca)
    down, absent, elsewhere = said
    assert f"port 1 of {hca.rdma} is down (expected active: check the cable" in down
    assert "RDMA device mlx9 is not present" in absent and hca.rdma in absent
    assert "no RoCE v2 GID for 10.99.99.99" in elsewhere and f"on {node.plan.hcas[0].netdev} (index" in elsewhere


def test_a_wrong_endpoint_is_refused_in_words(ring: Ring) -> None:
    hca = ring.nodes[0].plan.hcas[0]
    script = (
        "from roce_ring.probe import Probe, SetupError\n"
        f"with Probe('{hca.rdma}', '{hca.address.split('/')[0]}') as probe:\n"
        "    for peer in (b'', b'x' * 48):\n"
        "        try: probe.connect(peer)\n"
        "        except SetupError as failed: print(failed)\n"
        "    try: probe.write()\n"
        "    except SetupError as failed: print(failed)\n"
    )
    short, garbled, lonely = (
        ring.nodes[0].run(f"PYTHONPATH={NODE.parents[2]} {sys.executable} - <<'END'\n{script}END").check().splitlines()
    )
    assert "has 0 bytes, expected 48" in short
    assert "no probe's endpoint" in garbled
    assert "not connected" in lonely
