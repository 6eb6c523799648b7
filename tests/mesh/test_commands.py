"""The commands are what iproute2 takes, in an order that works, and what is put up can be taken down."""

from __future__ import annotations

import shutil
import subprocess

import pytest

from mesh.commands import down, up
from mesh.loading import load_facts
from mesh.model import NodePlan, Plan
from mesh.planner import make_plan
from tests.mesh.rings import EXAMPLES, SAMPLE, document, facts, ring_cables

SANDBOX = ["unshare", "--map-root-user", "--net"]


def plan_of(name: str) -> Plan:
    plan, _ = make_plan(load_facts(EXAMPLES / f"{name}.yaml"))
    return plan


def sandbox(script: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([*SANDBOX, "sh", "-c", script], capture_output=True, text=True, check=False, timeout=50)


def can_make_links() -> bool:
    tools = all(shutil.which(tool) for tool in ("unshare", "ip", "tc"))
    return tools and sandbox("ip link add v0 type veth peer name v1").returncode == 0


needs_sandbox = pytest.mark.skipif(not can_make_links(), reason="needs unshare, ip, tc and veth in a network namespace")


def devices(node: NodePlan) -> list[str]:
    """Lines that make the node's functions as veth ends with their addresses."""
    lines = []
    for number, hca in enumerate(node.hcas):
        lines += [
            f"ip link add {hca.netdev} address {hca.mac} type veth peer name far{number}",
            f"ip address add {hca.address} dev {hca.netdev}",
            f"ip link set far{number} up",
        ]
    return lines


@needs_sandbox
@pytest.mark.parametrize("name", ["four-spark-ring", "eight-ring", "four-chain"])
def test_the_kernel_takes_links_neighbours_and_routes_up_and_down(name: str) -> None:
    """Run in a network namespace of its own on veth devices with the real names; afterwards nothing of ours is left."""
    for node in plan_of(name).nodes:
        there = [str(step) for step in up(node) if step.argv[:1] == ("ip",)]
        back = [str(step) for step in down(node) if step.argv[:1] == ("ip",)]
        listing = "ip route show proto 82; ip neigh show nud permanent | grep -v -e '^ff' -e ' 33:33:' || true"
        done = sandbox("\n".join(["set -e", *devices(node), *there, listing, "echo ---", *back, listing]))
        assert done.returncode == 0, done.stderr
        present, _, left = done.stdout.partition("---")
        assert present.count("scope link src") == len(node.routes)
        assert present.count("PERMANENT") == len(node.neighbours)
        assert "scope link" not in left
        assert "PERMANENT" not in left


@needs_sandbox
@pytest.mark.parametrize("name", ["four-spark-ring", "eight-ring"])
def test_tc_understands_every_rule(name: str) -> None:
    """tc exits 1 for a word it does not know, 2 if it understood and the kernel (no flower, no offload) declined."""
    node = plan_of(name).nodes[0]
    for step in up(node):
        if step.argv[:2] == ("tc", "filter"):
            script = "\n".join([*devices(node), f"tc qdisc add dev {step.argv[4]} clsact", str(step)])
            done = sandbox(script)
            assert done.returncode in (0, 2), done.stderr
            assert "Usage" not in done.stderr


def test_rule_of_the_sample_reads_as_documented() -> None:
    """EtherType first, then the destination MAC, then out by the other port; offloaded or not at all (skip_sw)."""
    plan, _ = make_plan(load_facts(SAMPLE))
    (first, _) = (str(step) for step in up(plan.nodes[3]) if step.argv[:2] == ("tc", "filter"))
    assert first == (
        "tc filter add dev enp1s0f0np0 ingress protocol 0x88b5 pref 49152 handle 0xc000 flower skip_sw "
        "src_mac 02:00:00:03:00:01 dst_mac 02:00:00:04:00:00 "
        "action pedit ex munge eth type set 0x0800 pipe action pedit ex munge eth dst set 02:00:00:01:00:00 pipe "
        "action mirred egress redirect dev enp1s0f1np1"
    )


def test_hairpin_queues_are_resized_one_function_at_a_time() -> None:
    """A reload takes the function's MTU and address with it, so both come back before the next function goes down."""
    plan, _ = make_plan(facts(document(4, ring_cables(4), hairpin_queue_size=1024)))
    text = [str(step) for step in up(plan.nodes[0])]
    reloads = [number for number, line in enumerate(text) if "driver_reinit" in line]
    assert len(reloads) == 4
    for number, hca in zip(reloads, plan.nodes[0].hcas, strict=True):
        assert text[number - 1] == (
            f"devlink dev param set pci/{hca.pci} name hairpin_queue_size value 8192 cmode driverinit"
        )
        assert text[number + 3] == f"ip address replace {hca.address} dev {hca.netdev}"
    assert reloads[-1] < text.index(next(line for line in text if "neigh replace" in line))


@pytest.mark.parametrize("name", ["triangle", "pair-one-cable"])
def test_nothing_is_set_up_where_nothing_is_forwarded(name: str) -> None:
    """Only links; the kernel's own neighbour lookup serves direct cables."""
    for node in plan_of(name).nodes:
        assert all(step.argv[:3] == ("ip", "link", "set") for step in up(node))
        assert not list(down(node))


def test_markers_stop_first_and_start_last() -> None:
    """A marked frame that meets no rule is lost, so marking begins when everything stands and ends before it goes."""
    plan, _ = make_plan(load_facts(SAMPLE))
    for node in plan.nodes:
        start, stop = [str(step) for step in up(node)][-2:], [str(step) for step in down(node)][:2]
        device = node.markers[-1].rdma
        assert start[-1] == f"roce-ring-marker --device {device} --mark sport=65535,ethertype=0x88b5"
        assert stop[0] == f"roce-ring-marker --device {device} --stop"
        assert all(line.startswith("roce-ring-marker ") for line in (*start, *stop))
