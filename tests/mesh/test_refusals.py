"""Each wiring or setting mistake is refused under its own code, naming the ports and the change that mends it."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import pytest

from mesh import report
from mesh.finding import Finding, Refused
from mesh.planner import make_plan
from tests.mesh.rings import NETDEVS, document, facts, ring_cables

Raw = dict[str, Any]


def ring(nodes: int = 4, **common: Any) -> Raw:
    return document(nodes, ring_cables(nodes), **common)


def address(raw: Raw, node: int, plane: int, port: int) -> str:
    value: str = raw["nodes"][node]["ipv4"][NETDEVS[plane, port]]
    return value


def put(raw: Raw, node: int, plane: int, port: int, value: str | None) -> Raw:
    if value is None:
        del raw["nodes"][node]["ipv4"][NETDEVS[plane, port]]
    else:
        raw["nodes"][node]["ipv4"][NETDEVS[plane, port]] = value
    return raw


def swap(raw: Raw, node: int, a: tuple[int, int], b: tuple[int, int]) -> Raw:
    first, second = address(raw, node, *a), address(raw, node, *b)
    return put(put(raw, node, *a, second), node, *b, first)


def own_ports(raw: Raw, node: int, **changes: Any) -> Raw:
    """Give one node its own port list with ``changes`` to its first port."""
    ports = [dict(port) for port in raw["common"]["ports"]]
    ports[0].update(changes)
    raw["nodes"][node]["ports"] = ports
    return raw


def refusal(raw: Raw) -> tuple[Finding, ...]:
    with pytest.raises(Refused) as refused:
        make_plan(facts(raw))
    return refused.value.findings


LIKE_TO_LIKE = [((0, 0), (1, 0)), ((0, 1), (1, 1)), ((2, 0), (3, 0)), ((2, 1), (3, 1))]
TWO_LOOPS = [((0, 0), (1, 1)), ((1, 0), (2, 1)), ((2, 0), (0, 1)), ((3, 0), (4, 1)), ((4, 0), (5, 1)), ((5, 0), (3, 1))]
LOOP_AND_ONE = [((0, 0), (1, 1)), ((1, 0), (2, 1)), ((2, 0), (0, 1))]
GID = "0000:0000:0000:0000:0000:ffff:0a0a:000a"  # 10.10.0.10, n0's plane 0 port 0


def gids(*rows: tuple[int, str, str, str]) -> Raw:
    table = [dict(zip(("index", "gid", "type", "netdev"), row, strict=True)) for row in rows]
    return own_ports(ring(), 0, gids=table, gid_index=None)


# (code, facts, words of the finding that names the ports, words of the fix)
CASES: dict[str, tuple[str, Callable[[], Raw], list[str], list[str]]] = {
    "one plane wired like to like": (
        "same-index-cable",
        lambda: swap(ring(), 1, (1, 0), (1, 1)),
        ["n0 enP2p1s0f0np0", "n1 enP2p1s0f0np0"],
        ["on n1 swap the plane 1 addresses of ports 0 and 1"],
    ),
    "two nodes wired like to like": (
        "same-index-cable",
        lambda: document(4, LIKE_TO_LIKE),
        ["n0 port 0 and n1 port 0", "10.10.0.0/24"],
        ["exchange the cable ends at n0 port 0 and n2 port 1"],
    ),
    "two rings of three": (
        "ring-closes-early",
        lambda: document(6, TWO_LOOPS),
        ["n2 port 0 to n0 port 1", "closes after 3 of 6", "leaves out n3, n4, n5"],
        ["exchange the cable ends at n0"],
    ),
    "a ring of three and a node left over": (
        "ring-closes-early",
        lambda: document(4, LOOP_AND_ONE),
        ["leaves out n3"],
        ["cable n3 in there"],
    ),
    "a node without any cable": ("node-alone", lambda: document(4, LOOP_AND_ONE), ["n3"], ["cable it into the ring"]),
    "two separate chains": (
        "ring-broken",
        lambda: document(4, [ring_cables(4)[0], ring_cables(4)[2]]),
        ["n1 - n0; n3 - n2", "2 pieces"],
        ["n1 port 0", "n2 port 1"],
    ),
    "three ports in one subnet": (
        "subnet-crowded",
        lambda: put(ring(), 3, 0, 1, "10.10.1.77/24"),
        ["n1 enp1s0f0np0", "n2 enp1s0f1np1", "n3 enp1s0f1np1", "10.10.1.0/24"],
        ["give n3 enp1s0f1np1 (plane 0, port 1) a free address in 10.10.2.0/24"],
    ),
    "one end of a cable without an address": (
        "port-alone",
        lambda: put(ring(), 2, 0, 0, None),
        ["n3 enp1s0f1np1", "10.10.2.0/24"],
        ["give n2 enp1s0f0np0 (plane 0, port 0) a free address in 10.10.2.0/24"],
    ),
    "a mistyped subnet": (
        "port-alone",
        lambda: put(ring(), 2, 0, 0, "10.99.0.1/24"),
        ["n2 enp1s0f0np0", "10.99.0.0/24"],
        ["10.10.2.0/24"],
    ),
    "planes crossed at one end": (
        "crossed-planes",
        lambda: swap(ring(), 1, (0, 1), (1, 1)),
        ["n0 enp1s0f0np0", "n1 enP2p1s0f1np1"],
        ["on n1 swap the addresses of plane 0 and plane 1 of port 1"],
    ),
    "one plane goes to another node": (
        "planes-disagree",
        lambda: swap(ring(), 1, (1, 0), (1, 1)),
        ["n1 port 0", "n2 enp1s0f1np1"],
        ["on n1 swap"],
    ),
    "two functions of a node in one subnet": (
        "same-node-subnet",
        lambda: put(ring(), 1, 0, 0, "10.10.0.99/24"),
        ["n1 enp1s0f0np0", "n1 enp1s0f1np1", "10.10.0.0/24"],
        ["give n1 enp1s0f0np0", "10.10.1.0/24"],
    ),
    "different prefix lengths": (
        "subnet-overlap",
        lambda: put(ring(), 1, 0, 1, "10.10.0.11/25"),
        ["10.10.0.0/24 and 10.10.0.0/25"],
        ["same prefix"],
    ),
    "MTU back at 1500 after a reboot": (
        "mtu-small",
        lambda: ring(mtu=1500),
        ["n0 enp1s0f0np0", "MTU 1500"],
        ["ip link set dev enp1s0f0np0 mtu 9000", "netplan"],
    ),
    "RoCE MTU too small": (
        "mtu-small",
        lambda: own_ports(ring(), 2, roce_active_mtu=1024),
        ["n2 enp1s0f0np0", "1024"],
        ["ibv_devinfo -d roce00"],
    ),
    "different MTUs at a cable's ends": (
        "mtu-mismatch",
        lambda: own_ports(ring(), 0, mtu=4400),
        ["n0 enp1s0f0np0", "n1 enp1s0f1np1", "4400", "9000"],
        ["on n0 'ip link set dev enp1s0f0np0 mtu 9000'"],
    ),
    "link down": ("link-down", lambda: own_ports(ring(), 1, link_up=False), ["n1 enp1s0f0np0"], ["seat the cable"]),
    "no GID known": ("gid-missing", lambda: ring(gid_index=None), ["n0 enp1s0f0np0"], ["roce-ring inventory"]),
    "hole in the GID table": (
        "gid-missing",
        lambda: gids((0, "fe80:0000:0000:0000:0000:00ff:fe00:0000", "IB/RoCE v1", "enp1s0f0np0")),
        ["n0 enp1s0f0np0", "only 0 fe80:"],
        ["delete and re-add 10.10.0.10/24 on enp1s0f0np0"],
    ),
    "only a RoCE v1 GID": (
        "gid-wrong-type",
        lambda: gids((2, GID, "IB/RoCE v1", "enp1s0f0np0")),
        ["index 2 is IB/RoCE v1"],
        ["re-add 10.10.0.10/24"],
    ),
    "GID of another netdev": (
        "gid-wrong-netdev",
        lambda: gids((3, GID, "RoCE v2", "enp1s0f1np1")),
        ["netdev enp1s0f1np1"],
        ["on enp1s0f0np0 only"],
    ),
    "stale GID index": (
        "gid-index-wrong",
        lambda: own_ports(
            ring(), 0, gid_index=3, gids=[{"index": 4, "gid": GID, "type": "RoCE v2", "netdev": "enp1s0f0np0"}]
        ),
        ["says 3", "at 4"],
        ["remove 'gid_index'"],
    ),
    "offload off": (
        "offload-off",
        lambda: own_ports(ring(), 3, hw_tc_offload=False),
        ["n3 enp1s0f0np0"],
        ["ethtool -K enp1s0f0np0 hw-tc-offload on"],
    ),
    "wrong steering mode": (
        "steering-mode",
        lambda: own_ports(ring(), 3, flow_steering_mode="smfs"),
        ["n3 enp1s0f0np0", "smfs"],
        ["devlink dev param set pci/0000:01:00.0 name flow_steering_mode value hmfs cmode runtime"],
    ),
    "hairpin size unknown": (
        "hairpin-unknown",
        lambda: ring(hairpin_queue_size=None),
        ["n0 enp1s0f0np0"],
        ["inventory"],
    ),
    "hairpin size impossible": ("bad-value", lambda: ring(hairpin_queue_size=5000), ["5000"], ["correct"]),
    "same address twice": (
        "duplicate-address",
        lambda: put(ring(), 1, 0, 1, "10.10.0.10/24"),
        ["n0 enp1s0f0np0", "n1 enp1s0f1np1"],
        ["n1 enp1s0f1np1"],
    ),
    "same MAC twice": (
        "duplicate-mac",
        lambda: put_mac(ring()),
        ["n0 enp1s0f0np0", "n1 enp1s0f0np0"],
        ["correct 'mac' of n1 enp1s0f0np0"],
    ),
    "same host twice": ("duplicate-host", lambda: rename(ring(), 1, "n0"), ["node 0 and node 1"], ["'host' of node 1"]),
    "host name that is a path": ("bad-value", lambda: rename(ring(), 1, "../x"), ["'../x'"], ["correct 'host'"]),
    "the same function twice": (
        "duplicate-function",
        lambda: own_ports(ring(), 0, rdma="roce01"),
        ["n0 enp1s0f0np0", "roce01"],
        ["'rdma'"],
    ),
    "two ports in one place": (
        "duplicate-function",
        lambda: own_ports(ring(), 0, port=1),
        ["enp1s0f0np0 and enp1s0f1np1"],
        ["phys_port_name"],
    ),
    "a subnet mask of one address": (
        "bad-value",
        lambda: put(ring(), 0, 0, 0, "10.1.0.1/32"),
        ["/32 prefix"],
        ["a /24"],
    ),
    "no such plane": ("bad-value", lambda: own_ports(ring(), 0, plane=2), ["plane 2"], ["correct 'plane'"]),
    "an address without a prefix that helps": (
        "bad-value",
        lambda: put(ring(), 0, 0, 0, "10.10.0.10"),
        ["10.10.0.10 has no prefix length"],
        ["subnet's length"],
    ),
    "not an address": (
        "bad-value",
        lambda: put(ring(), 0, 0, 0, "10.10.0.300/24"),
        ["'10.10.0.300/24'"],
        ["correct 'ipv4'"],
    ),
    "the network's own address": (
        "bad-value",
        lambda: put(ring(), 0, 0, 0, "10.10.0.0/24"),
        ["no host address"],
        ["another"],
    ),
    "a netdev name with a blank": ("bad-value", lambda: own_ports(ring(), 0, rdma="a b"), ["'a b'"], ["rdma link"]),
    "the address nobody has": (
        "bad-value",
        lambda: put(ring(), 0, 0, 0, "0.0.0.7/24"),
        ["no addresses for hosts"],
        ["another subnet"],
    ),
    "a loopback address": (
        "bad-value",
        lambda: put(ring(), 0, 0, 0, "127.0.0.1/24"),
        ["no addresses for hosts"],
        ["another subnet"],
    ),
    "a reserved address": (
        "bad-value",
        lambda: put(ring(), 0, 0, 0, "240.1.2.3/24"),
        ["no addresses for hosts"],
        ["another subnet"],
    ),
    "a multicast group": (
        "bad-value",
        lambda: put(ring(), 0, 0, 0, "224.0.0.5/24"),
        ["no addresses for hosts"],
        ["another subnet"],
    ),
    "the broadcast MAC": ("bad-value", lambda: put_mac(ring(), "ff:ff:ff:ff:ff:ff"), ["n1 enp", "ff:ff"], ["ip link"]),
    "a multicast MAC": ("bad-value", lambda: put_mac(ring(), "01:00:5e:00:00:01"), ["n1 enp", "01:00"], ["ip link"]),
    "a MAC of zeros": ("bad-value", lambda: put_mac(ring(), "00:00:00:00:00:00"), ["n1 enp", "00:00"], ["ip link"]),
    "an MTU of forty digits": ("bad-value", lambda: ring(mtu=10**40), ["n0 enp1s0f0np0", "mtu 1000"], ["'mtu'"]),
    "an MTU that no port takes": ("bad-value", lambda: ring(mtu=9979), ["mtu 9979"], ["correct 'mtu'"]),
    "a RoCE MTU that does not exist": ("bad-value", lambda: ring(roce_active_mtu=8192), ["8192"], ["roce_active_mtu"]),
    "a RoCE MTU between two": ("bad-value", lambda: ring(roce_active_mtu=3000), ["3000"], ["ibv_devinfo"]),
    "a RoCE MTU below a right MTU": ("mtu-small", lambda: ring(roce_active_mtu=1024), ["1024"], ["MTU is right"]),
    "a host name of 300 letters": ("bad-value", lambda: rename(ring(), 1, "n" * 300), ["(300 characters)"], ["'host'"]),
    "a plane of 4000 digits": (
        "bad-value",
        lambda: own_ports(ring(), 0, plane=10**3999),
        ["(4000 characters)"],
        ["'plane'"],
    ),
    "a GID index beyond any table": ("bad-value", lambda: ring(gid_index=256), ["gid_index 256"], ["'gid_index'"]),
    "a GID row below zero": ("bad-value", lambda: gids((-1, GID, "RoCE v2", "enp1s0f0np0")), ["index -1"], ["'gids'"]),
    "a hairpin size of nothing": ("bad-value", lambda: ring(hairpin_queue_size=0), ["size 0"], ["hairpin_queue_size"]),
    "a configured size too large": ("bad-value", lambda: ring(hairpin_configured=16384), ["16384"], ["configured"]),
    "no hairpin queue": ("bad-value", lambda: ring(hairpin_num_queues=0), ["num_queues 0"], ["hairpin_num_queues"]),
    "host names that differ in case": ("duplicate-host", lambda: rename(ring(), 1, "N0"), ["n0 and N0"], ["node 1"]),
    "one node": ("node-count", lambda: document(1, []), ["1 node"], ["every node"]),
    "seventeen nodes": ("node-count", lambda: ring(17), ["17 node"], ["at most 16"]),
}


def put_mac(raw: Raw, mac: str = "") -> Raw:
    """Give n1's first port ``mac``, or n0's MAC spelt otherwise."""
    raw["nodes"][1]["mac"][NETDEVS[0, 0]] = mac or raw["nodes"][0]["mac"][NETDEVS[0, 0]].upper()
    return raw


def without(raw: Raw, *nodes: int) -> Raw:
    raw["nodes"] = [node for number, node in enumerate(raw["nodes"]) if number not in nodes]
    return raw


def rename(raw: Raw, node: int, host: str) -> Raw:
    raw["nodes"][node]["host"] = host
    return raw


@pytest.mark.parametrize("name", CASES)
def test_refusal_names_the_place_and_the_fix(name: str) -> None:
    """A tired operator reads one line and knows which port to touch and how."""
    code, make, seen, fix = CASES[name]
    matching = [item for item in refusal(make()) if item.code == code]
    assert matching, f"no {code}"
    assert any(
        all(word in f"{item.where}: {item.seen}" for word in seen) and all(word in item.fix for word in fix)
        for item in matching
    ), "\n".join(map(str, matching))
    assert all(item.severity == "error" and item.expected for item in matching)


def test_nothing_long_is_echoed_whole() -> None:
    """What was mistyped fills no terminal: neither thousands of digits nor a name of a page."""
    for raw in (ring(mtu=10**3999), rename(ring(), 1, "n" * 5000), own_ports(ring(), 0, netdev="e" * 5000)):
        assert all(len(str(item)) < 700 for item in refusal(raw))


def test_what_is_no_ring_at_all_is_one_line() -> None:
    """Seventeen copies of one node clash everywhere; that they are seventeen is what matters."""
    raw = ring(17)
    raw["nodes"] = [{**raw["nodes"][0], "host": f"n{number}"} for number in range(17)]
    assert [item.code for item in refusal(raw)] == ["node-count"]


def test_all_problems_are_reported_together() -> None:
    """One run shows every mistake; fixing them one run at a time costs an evening."""
    raw = put(ring(), 2, 0, 0, None)
    own_ports(raw, 1, mtu=1500)
    own_ports(raw, 3, hw_tc_offload=False)
    assert {"port-alone", "mtu-small", "offload-off"} <= {item.code for item in refusal(raw)}


def test_the_proposed_change_is_enough() -> None:
    """The fix that is printed leads to a plan when it is carried out."""
    raw = swap(ring(), 1, (1, 0), (1, 1))
    assert "on n1 swap the plane 1 addresses of ports 0 and 1; nothing else has to change" in refusal(raw)[0].fix
    make_plan(facts(swap(raw, 1, (1, 0), (1, 1))))


@pytest.mark.parametrize(
    ("raw", "neighbours"),
    [
        (lambda: without(ring(), 3), "n0 and n2"),
        (lambda: without(document(4, ring_cables(4), planes=(0,)), 3), "n0 and n2"),
        (lambda: without(ring(6), 2, 3), "n1 and n4"),
        (lambda: without(ring(6), 1, 4), "n0 and n2 and n3 and n5"),
        (lambda: without(ring(3), 1), "n0 and n2"),
        (lambda: without(document(4, ring_cables(4, closed=False)), 1), "n0 and n2"),
    ],
)
def test_a_forgotten_node_is_asked_for_before_anything_is_readdressed(raw: Callable[[], Raw], neighbours: str) -> None:
    """Whoever left s4 out of the list must not be sent to give s1 and s3 other addresses."""
    found = refusal(raw())
    assert {item.code for item in found} == {"port-alone"}
    question = f"is a node missing from the list, next to {neighbours}? then add it; if not, "
    assert all(item.fix.startswith(question) for item in found), found[0].fix


def test_a_mistyped_subnet_is_no_forgotten_node() -> None:
    """The other plane shows that both ends of the cable are listed; an end without addresses shows it too."""
    for raw in (put(ring(), 2, 0, 0, "10.99.0.1/24"), put(put(ring(), 2, 0, 0, None), 2, 1, 0, None)):
        assert all(item.fix.startswith("give n2 enp1s0f0np0") for item in refusal(raw))


def test_a_fix_that_lines_share_is_said_once() -> None:
    """After the last of them, with their number: 'as below' sends the reader through ten lines."""
    *problems, fix, _ = report.refusal(refusal(without(ring(), 3)))
    assert len(problems) == 4
    assert all(line.startswith("error port-alone") and "fix" not in line for line in problems)
    assert fix.startswith("fix for these 4: is a node missing")


def test_an_address_is_planned_the_same_however_its_prefix_is_written() -> None:
    """A netmask says what /24 says; the plan and its hash must not tell them apart."""
    plan, _ = make_plan(facts(ring()))
    assert make_plan(facts(put(ring(), 0, 0, 0, "10.10.0.10/255.255.255.0")))[0] == plan


def test_equal_findings_share_a_line() -> None:
    """Sixteen functions with the same wrong MTU are one line, not a page."""
    lines = list(report.refusal(refusal(ring(mtu=1500))))
    assert len(lines) == 2
    assert "and 12 more" in lines[0]
    assert "16 error(s)" in lines[1]


@pytest.mark.parametrize("nodes", [2, 3])
def test_forwarding_settings_do_not_matter_where_nothing_is_forwarded(nodes: int) -> None:
    """A pair or triangle with plain NIC settings is planned: its hairpin queues are never used."""
    raw = ring(nodes, hw_tc_offload=False, flow_steering_mode="smfs", hairpin_queue_size=None)
    plan, _ = make_plan(facts(raw))
    assert plan.forwarding == "none"


def test_the_ends_of_a_chain_need_no_offload() -> None:
    """They send marked frames but pass none on: only the steering mode matters there."""
    raw = document(3, ring_cables(3, closed=False))
    raw["nodes"][0].update(hw_tc_offload=False, hairpin_queue_size=64)
    plan, _ = make_plan(facts(raw))
    assert plan.limits.hairpin_packets == 8192
    assert [len(node.hairpins) for node in plan.nodes] == [0, 4, 0]
    raw["nodes"][1]["hw_tc_offload"] = False
    assert {item.code for item in refusal(raw)} == {"offload-off"}
    raw["nodes"][0]["flow_steering_mode"] = "smfs"
    assert {item.code for item in refusal(raw)} == {"offload-off", "steering-mode"}


def test_two_mistakes_get_two_changes() -> None:
    """A mistyped subnet here and swapped planes there: each is named, in an order that works."""
    raw = swap(put(ring(6), 2, 0, 0, "10.99.0.1/24"), 4, (0, 1), (1, 1))
    fix = refusal(raw)[0].fix
    assert "n2 enp1s0f0np0" in fix
    assert "; then on n" in fix
    assert "swap the addresses of plane 0 and plane 1" in fix


def test_a_large_wrong_ring_is_judged_quickly() -> None:
    """Looking for the change that mends sixteen nodes must not feel like a hang."""
    loops = [(((base + i), 0), (base + (i + 1) % 8, 1)) for base in (0, 8) for i in range(8)]
    begin = time.process_time()
    assert "exchange the cable ends" in refusal(document(16, loops))[0].fix
    assert time.process_time() - begin < 3
