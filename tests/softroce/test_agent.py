"""Node agents on a real kernel: a plan goes up on all nodes or none, is proved, kept, and leaves no trace."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator

import msgspec
import pytest

from mesh.loading import load_facts
from mesh.planner import make_plan
from tests.softroce import faults
from tests.softroce.agents import Agents, kernel_state
from tests.softroce.ranks import PROGRAM, Ranks, meeting
from tests.softroce.ring import EXAMPLES, GEOMETRY, Node, Ring

RING = (4, 2)
pytestmark = pytest.mark.timeout(150)  # a dozen programs start in one slow guest


@pytest.fixture(scope="module")
def agents(ring: Ring) -> Iterator[Agents]:
    with Agents(ring) as agents:
        yield agents


@pytest.fixture
def plan_up(agents: Agents) -> Iterator[Agents]:
    said = agents.roce_ring("up", "--no-prove")
    assert said.status == 0, said.output
    yield agents
    agents.roce_ring("down", "--force")


def eventually(look: Callable[[], bool], limit_s: float = 20) -> bool:
    deadline = time.monotonic() + limit_s
    while not look():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.2)
    return True


def codes(document: dict[str, object]) -> set[str]:
    found = document["findings"]
    assert isinstance(found, list)
    return {item["code"] for item in found if item["severity"] == "error"}


def test_a_plan_goes_up_is_proved_and_leaves_no_trace(ring: Ring, agents: Agents) -> None:
    """The whole life: 8 routes, 8 rules, 8 marks; every path carries writes both ways; relays pass frames on by rule,
    not by their kernel; afterwards ip and tc print what they printed before."""
    before = [kernel_state(node) for node in ring.nodes]
    up = agents.document("up")
    assert up["status"] == 0 and up["ok"], up["findings"]
    things = [thing for node in up["nodes"] for thing in node["things"]]
    for kind in ("route ", "rule ", "mark "):
        assert sum(thing["key"].startswith(kind) and thing["state"] == "same" for thing in things) == 8
    paths = up["paths"]
    assert len(paths) == 24 and all(path["ok"] and path["latency_us"] > 0 for path in paths)
    far = [path for path in paths if path["via"]]
    assert len(far) == 8 and all(count >= 64 for path in far for count in path["relayed"])  # 8 writes of 8 packets
    forwarded = [node["forwarded"] for node in up["nodes"]]
    assert forwarded == [0] * 4
    assert agents.roce_ring("down").status == 0
    assert [kernel_state(node) for node in ring.nodes] == before


def test_what_stands_already_is_adopted_and_stays(ring: Ring, agents: Agents) -> None:
    """An operator's own identical route is used, and is still there afterwards; a second `up` makes nothing."""
    node = ring.nodes[0]
    route = node.plan.routes[0]
    text = f"{route.destination}/32 dev {route.device} src {route.source} scope link proto 82"
    node.run(f"ip route add {text}").check()
    before = kernel_state(node)
    up = agents.document("up", "--no-prove")
    [ours] = [
        thing["ours"] for thing in up["nodes"][0]["things"] if thing["key"].startswith(f"route {route.destination} ")
    ]
    assert not ours
    again = agents.roce_ring("up", "--dry-run")
    assert again.output.count("# nothing to do") == 4
    assert agents.roce_ring("down").status == 0
    assert kernel_state(node) == before
    node.run(f"ip route del {text}").check()


def test_a_conflict_on_one_node_changes_nothing_on_any(ring: Ring, agents: Agents) -> None:
    """Somebody else's route is in the way on s3: one sentence names it, and no node has anything of the plan."""
    node = ring.nodes[2]
    route = node.plan.routes[0]
    other = next(hca for hca in node.plan.hcas if hca.netdev != route.device)
    node.run(f"ip route add {route.destination}/32 dev {other.netdev}").check()
    before = [kernel_state(one) for one in ring.nodes]
    said = agents.roce_ring("up")
    assert said.status == 1
    assert f"{node.name}: route {route.destination} dev {route.device}: a route dev {other.netdev}" in said.output
    assert "nothing was changed on any node" in said.output
    assert [kernel_state(one) for one in ring.nodes] == before
    node.run(f"ip route del {route.destination}/32 dev {other.netdev}").check()


def test_a_failure_in_the_middle_is_taken_back_everywhere(ring: Ring, agents: Agents) -> None:
    """A driver that declines a rule is found out late, when routes and neighbours stand on all nodes: then all are as
    before, and the driver's own words are told."""
    node = ring.nodes[1]
    declining = ring.guest.share / "declining"
    declining.mkdir()
    (declining / "tc").write_text(
        '#!/bin/sh\ncase "$*" in "filter add"*) echo "Error: the driver declines." >&2; exit 2;; esac\n'
        'exec /usr/sbin/tc "$@"\n'
    )
    (declining / "tc").chmod(0o755)
    agents.stop(node)
    agents.start(node, "PATH=/ring/declining:$PATH")
    agents.wait_for(node)
    before = [kernel_state(one) for one in ring.nodes]
    said = agents.roce_ring("up", "--no-prove")
    assert said.status == 1 and "failed: Error: the driver declines." in said.output, said.output
    assert "taken back from s1, s3, s4: all nodes or none" in said.output
    assert [kernel_state(one) for one in ring.nodes] == before
    agents.stop(node)
    agents.start(node)
    agents.wait_for(node)


def test_a_flapped_link_gets_its_routes_back_by_itself(ring: Ring, plan_up: Agents) -> None:
    """The kernel drops routes and neighbours with a link that is set down; nobody has to run anything after it is back.
    Meanwhile and afterwards the events say so."""
    node = ring.nodes[0]
    device = node.plan.routes[0].device
    hca = next(hca for hca in node.plan.hcas if hca.netdev == device)
    faults.link_down(node, hca)
    assert eventually(lambda: "link-down" in codes(plan_up.document("status")))
    faults.link_up(node, hca)
    wanted = f"{node.plan.routes[0].destination} dev {device} proto 82"
    assert eventually(lambda: wanted in kernel_state(node)), kernel_state(node)
    assert eventually(lambda: plan_up.document("status")["ok"])
    events = plan_up.roce_ring("watch", "--seconds 1").output
    assert "link-down" in events and f"gone, and made again: neighbour {node.plan.neighbours[0].address}" in events


def test_what_is_removed_by_hand_comes_back(ring: Ring, plan_up: Agents) -> None:
    """Somebody flushes the rules: they are back within seconds, and it is reported."""
    node = ring.nodes[3]
    rule = node.plan.rules[0]
    before = kernel_state(node)
    node.run(f"tc filter del dev {rule.device} ingress protocol 0x88b5 pref {rule.preference}").check()
    assert kernel_state(node) != before
    assert eventually(lambda: kernel_state(node) == before), kernel_state(node)
    assert "gone, and made again: rule" in plan_up.log(node)


def test_an_agent_that_is_killed_changes_nothing_and_the_next_one_goes_on(ring: Ring, plan_up: Agents) -> None:
    """The data plane does not need an agent; the next one knows what is its own, and takes it back."""
    node = ring.nodes[1]
    before = kernel_state(node)
    plan_up.stop(node, "KILL")
    assert kernel_state(node) == before
    silent = plan_up.roce_ring("status")
    assert silent.status == 1 and f"agent-unreachable: {node.name}" in silent.output
    plan_up.start(node)
    plan_up.wait_for(node)
    assert eventually(lambda: plan_up.document("status")["ok"])
    assert kernel_state(node) == before


def test_a_rebooted_node_comes_back_with_its_plan(ring: Ring, plan_up: Agents) -> None:
    """After a power cut nobody has to remember the node: its agent sets everything up again from what it wrote down."""
    node = ring.nodes[2]
    before = kernel_state(node)
    plan_up.stop(node, "KILL")
    faults.reboot(node)
    state = f"/mnt/{node.name}/var/lib/roce-ring/agent.json"
    ring.guest.run(f'sed -i \'s/"boot_id":"[^"]*"/"boot_id":"an earlier one"/\' {state}').check()
    assert "proto 82" not in kernel_state(node)
    plan_up.start(node)
    plan_up.wait_for(node)
    assert eventually(lambda: kernel_state(node) == before), kernel_state(node)


@pytest.mark.timeout(240)
def test_an_agent_may_die_at_every_step(ring: Ring, agents: Agents) -> None:
    """Killed before and after every command and every write of its state, in an apply and in a teardown: the next agent
    reaches the same state as an apply in one go, and a teardown leaves nothing."""
    node = ring.nodes[0]
    agents.stop(node)
    said = agents.python(node, "agent_crashes", f"{agents.plan} {node.name}", 200)
    agents.start(node)
    agents.wait_for(node)
    assert said.status == 0, said.output
    result = json.loads(said.output)
    assert result["wrong"] == []
    assert result["deaths"] > 25  # 11 commands and some writes, twice


def test_a_broken_path_is_named_by_verify(ring: Ring, plan_up: Agents) -> None:
    """Frames of one far path are lost on the way (here: at the relay): that path is named, with plane and relay, and no
    other; a rule that is bypassed is told apart."""
    relay: Node = ring.nodes[3]
    rule = relay.plan.rules[0]
    relay.run(f"tc filter replace dev {rule.device} ingress protocol 0x88b5 pref 1 flower action drop").check()
    broken = plan_up.document("verify")
    assert broken["status"] == 1
    dead = {(path["source"], path["target"], path["plane"]) for path in broken["paths"] if not path["ok"]}
    owner = next(path for path in broken["paths"] if not path["ok"])
    assert owner["via"] == [relay.name]
    assert len(dead) == 2, broken[
        "paths"
    ]  # acknowledgements go back the same way, so both directions of one pair and plane
    assert "path-broken" in codes(broken)
    relay.run(f"tc filter del dev {rule.device} ingress protocol 0x88b5 pref 1").check()


def test_a_running_session_is_not_cut_off(ring: Ring, plan_up: Agents) -> None:
    """Ranks hold leases: `down` names them and does nothing. Ranks that die give theirs back, and then it works."""
    ranks = Ranks(ring, first=plan_up.at_home)
    ranks.start(bytes=1000, ops=1000, pause_ms=200)
    ranks.connected()
    assert plan_up.roce_ring("status").output.count("is in use by rank") == 4
    before = [kernel_state(node) for node in ring.nodes]
    refused = plan_up.roce_ring("down")
    assert refused.status == 1 and "lease-held: s1: rank 0 of session default" in refused.output, refused.output
    assert [kernel_state(node) for node in ring.nodes] == before
    for rank in range(4):
        ranks.kill(rank)
    assert eventually(lambda: "is in use by" not in plan_up.roce_ring("status").output)
    assert plan_up.roce_ring("down").status == 0


def test_a_session_with_another_plan_is_refused(ring: Ring, plan_up: Agents) -> None:
    """The plan of a session is not the one that stands: every rank says so, before a queue pair is made."""
    other = make_plan(load_facts(EXAMPLES / GEOMETRY[4], order=("s2", "s1", "s4", "s3")))[0]
    (ring.guest.share / "other.json").write_bytes(msgspec.json.encode(other))
    where = meeting()
    by_name = {node.name: node for node in ring.nodes}
    jobs = [
        by_name[host].spawn(
            f"ROCE_RING_RUN_DIR={plan_up.run_dir(by_name[host])} exec {PROGRAM} bench --join {where} "
            f"--plan /ring/other.json --rank {rank} --provider verbs --mode full --sizes 1000 --iters 1"
        )
        for rank, host in enumerate(other.hosts)
    ]
    for job in jobs:
        said = job.wait()
        assert said.status != 0
        assert f"agent holds plan {ring.plan.hash[:12]}, the session has {other.hash[:12]}" in said.output, said.output
