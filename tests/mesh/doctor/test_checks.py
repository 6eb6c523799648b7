"""Every check of the doctor: one healthy ring, spoilt in one place, and what the doctor says of it."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from mesh.doctor.checks import CHECKS, RING_CHECKS, check_all, check_node
from mesh.loading import load_facts
from mesh.planner import make_plan
from tests.mesh.doctor.healthy import MANAGEMENT, PLAN, Json, engine, evidence, healthy
from tests.mesh.rings import EXAMPLES

Spoil = Callable[[Json], Any]  # changes a node's evidence in place

FIRST, RDMA = PLAN.nodes[0].hcas[0].netdev, PLAN.nodes[0].hcas[0].rdma
RELAY = PLAN.nodes[0].rules[0].device


def function(**values: Any) -> Spoil:
    """The node's first function, or the one at ``netdev``, has other values."""
    netdev = values.pop("netdev", FIRST)
    return lambda raw: next(item for item in raw["functions"] if item["netdev"] == netdev).update(values)


def told(**environment: str) -> Spoil:
    """The engine has other variables."""
    return lambda raw: raw["processes"][1]["environment"].update(environment)


def node(**values: Any) -> Spoil:
    return lambda raw: raw.update(values)


def ip(change: Callable[[list[Json], list[Json], list[Json]], Any]) -> Spoil:
    """Addresses, routes, neighbours changed in place."""

    def spoil(raw: Json) -> None:
        documents = [json.loads(line) for line in raw["iproute"]["address"].splitlines()]
        change(*documents)
        raw["iproute"]["address"] = "\n".join(map(json.dumps, documents))

    return spoil


def tc(change: Callable[[list[list[Json]]], Any]) -> Spoil:
    """The filters of each place (ingress, egress of each device) changed in place."""

    def spoil(raw: Json) -> None:
        documents = [json.loads(line) for line in raw["iproute"]["filters"].splitlines()]
        change(documents)
        raw["iproute"]["filters"] = "\n".join(map(json.dumps, documents))

    return spoil


def moved_gid(raw: Json) -> None:
    """A flap while a program held the entry: the address is at 4 and 5 now."""
    for row in raw["functions"][0]["gids"][2:]:
        row["index"] += 2


def nothing_set_up(raw: Json) -> None:
    ip(lambda _, routes, near: (routes.__delitem__(slice(1, None)), near.clear()))(raw)
    tc(lambda places: [place.clear() for place in places])(raw)
    raw["markers"] = {}


def routed_by_the_kernel(raw: Json) -> None:
    ip(lambda _, routes, __: routes.append({"dst": "10.10.2.0/24", "gateway": "10.10.3.10", "dev": FIRST}))(raw)


def both(*spoils: Spoil) -> Spoil:
    return lambda raw: [spoil(raw) for spoil in spoils]


CASES: dict[str, tuple[Spoil, set[str], str]] = {
    # functions
    "no card": (node(functions=[]), {"device-missing"}, "modprobe"),
    "device gone": (lambda raw: raw["functions"].pop(0), {"device-missing"}, "no RDMA device rocep1s0f0"),
    "odd function": (node(problems=["mlx5_9: left out"]), {"inventory-problem"}, "mlx5_9"),
    "link down": (function(link_up=False), {"link-down"}, "seat the cable"),
    "link down, address gone": (
        both(function(link_up=False, ipv4=[]), ip(lambda links, *_: links[3].update(addr_info=[]))),
        {"link-down", "object-missing"},
        "seat the cable",
    ),
    "mtu 1500 after a reboot": (function(mtu=1500, roce_active_mtu=1024), {"mtu-small"}, "mtu 9000"),
    "roce mtu stale": (function(roce_active_mtu=1024), {"mtu-small"}, "RoCE active MTU 1024"),
    "gid hole": (lambda raw: raw["functions"][0]["gids"].__delitem__(slice(2, None)), {"gid-missing"}, "fe80"),
    "gid v1 only": (lambda raw: raw["functions"][0]["gids"].pop(), {"gid-wrong-type"}, "IB/RoCE v1"),
    "gid elsewhere": (
        lambda raw: [row.update(netdev="br0") for row in raw["functions"][0]["gids"]],
        {"gid-wrong-netdev"},
        "br0",
    ),
    "card replaced": (function(mac="02:00:00:00:00:99"), {"mac-differs"}, "plan again"),
    "address lost": (
        both(function(ipv4=[]), ip(lambda links, *_: links[3].update(addr_info=[]))),
        {"object-missing"},
        "address",
    ),
    "subnet on management too": (
        ip(
            lambda links, *_: links[1]["addr_info"].append(
                {"family": "inet", "local": PLAN.nodes[0].hcas[0].address[:-4] + "99", "prefixlen": 24}
            )
        ),
        {"same-node-subnet"},
        MANAGEMENT,
    ),
    "x2 from an old firmware": (
        function(pcie={"current_speed": 32.0, "current_width": 2, "max_speed": 32.0, "max_width": 16}),
        {"pcie-slow"},
        "x2",
    ),
    "gen 4": (
        function(pcie={"current_speed": 16.0, "current_width": 4, "max_speed": 32.0, "max_width": 4}),
        {"pcie-slow"},
        "16 GT/s",
    ),
    "aer": (function(aer={"fatal": 1, "nonfatal": 0, "correctable": 9}), {"pcie-errors"}, "1 fatal"),
    "offload off": (function(netdev=RELAY, hw_tc_offload=False), {"offload-off"}, "ethtool -K"),
    "offload fixed": (
        function(netdev=RELAY, hw_tc_offload=False, offload_fixed=True),
        {"offload-off"},
        "cannot forward",
    ),
    "smfs": (function(flow_steering_mode="smfs"), {"steering-mode"}, "hmfs"),
    "switchdev": (
        function(eswitch={"mode": "switchdev", "inline-mode": "none", "encap-mode": "basic"}),
        {"eswitch-mode"},
        "eswitch set pci/",
    ),
    "hairpin default": (function(netdev=RELAY, hairpin_queue_size=1024), {"hairpin-small"}, "counts on 8192"),
    "hairpin pending": (
        function(netdev=RELAY, hairpin_queue_size=1024, hairpin_configured=8192),
        {"hairpin-pending"},
        "driver_reinit",
    ),
    "reload failed": (function(netdev=RELAY, reload_failed=True), {"hairpin-failed"}, "dmesg"),
    # what the plan sets up
    "nothing set up": (nothing_set_up, {"plan-not-applied"}, "roce-ring up"),
    "route gone": (ip(lambda _, routes, __: routes.pop()), {"object-missing"}, "route"),
    "route elsewhere": (
        ip(lambda _, routes, __: routes[-1].update(dev=MANAGEMENT)),
        {"object-differs"},
        "in its place",
    ),
    "neighbour gone": (ip(lambda *tables: tables[2].pop()), {"object-missing"}, "neighbour"),
    "neighbour of an old card": (
        ip(lambda *tables: tables[2][0].update(lladdr="02:00:00:00:00:99")),
        {"object-differs"},
        "02:00:00:00:00:99",
    ),
    "rule gone": (tc(lambda places: places[0].clear()), {"object-missing"}, "rule"),
    "rule in software": (
        tc(lambda places: places[0][0]["options"].pop("in_hw")),
        {"rule-not-in-hardware"},
        "hw-tc-offload",
    ),
    "rule for another mac": (
        tc(lambda places: places[0][0]["options"]["keys"].update(src_mac="02:00:00:00:00:99")),
        {"object-differs"},
        "02:00:00:00:00:99",
    ),
    "marker dead": (lambda raw: raw["markers"].popitem(), {"object-missing"}, "marker"),
    "marker of an old plan": (
        lambda raw: [mark.update(ethertype=0x88B6) for marks in raw["markers"].values() for mark in marks],
        {"object-differs"},
        "0x88b6",
    ),
    "somebody's filter": (
        tc(
            lambda places: places[1].append(
                {"protocol": "all", "pref": 7, "kind": "matchall", "options": {"handle": 1}}
            )
        ),
        {"object-foreign"},
        "matchall filter at egress",
    ),
    "old route": (
        ip(lambda _, routes, __: routes.append({"dst": "10.9.9.9", "dev": FIRST, "protocol": "82"})),
        {"object-foreign"},
        "10.9.9.9",
    ),
    "old neighbour": (
        ip(
            lambda *t: t[2].append(
                {"dst": "10.9.9.9", "dev": FIRST, "lladdr": "02:00:00:00:00:99", "state": ["PERMANENT"]}
            )
        ),
        {"object-foreign"},
        "ip neigh del",
    ),
    "kernel forwards": (node(forwarded_growth=900, others_forward=[]), {"kernel-forwards"}, "900 datagrams"),
    "routed, not forwarding": (
        both(routed_by_the_kernel, node(ip_forward=False, firewall=["-P FORWARD ACCEPT"])),
        {"ip-forward-off"},
        "sysctl",
    ),
    "routed, dropped by docker": (routed_by_the_kernel, {"forward-dropped"}, "DOCKER-USER"),
    "routed, one way only": (
        both(
            routed_by_the_kernel,
            node(
                firewall=["-P FORWARD DROP", "-A DOCKER-USER -i enp1s0f0np0 -j ACCEPT", "-A FORWARD -i enP2+ -j ACCEPT"]
            ),
        ),
        {"forward-dropped"},
        "nothing accepts enp1s0f1np1 -> enp1s0f0np0;",
    ),
    "default route over the ring": (
        ip(lambda _, routes, __: routes.append({"dst": "default", "gateway": "10.10.3.10", "dev": FIRST})),
        {"default-route", "forward-dropped"},
        "one node only",
    ),
    "ssh over the ring": (node(ssh_address=PLAN.nodes[0].hcas[0].address[:-3]), {"admin-on-fabric"}, "management"),
    "drops": (function(growth={"rx_out_of_buffer": 64}), {"rdma-errors"}, "rx_out_of_buffer +64 in 1 s"),
    "resends": (function(growth={"local_ack_timeout_err": 2}), {"rdma-errors"}, "local_ack_timeout_err +2"),
    # host
    "login may lock little": (
        lambda raw: raw["memlock"].update(login=8 << 20),
        {"memlock-small"},
        "this login may lock 8 MiB",
    ),
    "engine may lock little": (
        lambda raw: raw["processes"][1].update(memlock=64 << 10),
        {"memlock-small"},
        "sglang (pid 4711) may lock 64 KiB",
    ),
    "containers may lock little": (
        lambda raw: raw["memlock"].update(docker=0, systemd=8 << 20),
        {"memlock-default"},
        "docker",
    ),
    "kho": (lambda raw: raw["kernel"].update(kho=True), {"kho-on"}, "kho=off"),
    "no cma": (lambda raw: raw["kernel"].update(cma_kib=0), {"cma-none"}, "CmaTotal 0"),
    "sleepy wifi, used for management": (
        ip(
            lambda links, routes, _: (
                links[2]["addr_info"].append({"family": "inet", "local": "192.168.1.5", "prefixlen": 24}),
                routes[0].update(dev="wlP9s9"),
            )
        ),
        {"wifi-powersave", "wifi-management"},
        "power_save off",
    ),
    "address in no file": (node(config_files=[]), {"address-volatile"}, "netplan file"),
    "address in a volatile profile": (
        node(config_files=[{"path": "/run/NetworkManager/system-connections/x", "ports": [FIRST]}]),
        {"address-volatile"},
        "gone after a reboot",
    ),
    "netplan leftover": (
        lambda raw: raw["config_files"].append({"path": "/etc/netplan/90-NM-1.yaml", "ports": [FIRST]}),
        {"netplan-leftover"},
        "90-NM-1.yaml",
    ),
    # software
    "stray nccl.conf": (
        node(nccl_files=[{"path": "/etc/nccl.conf", "lines": ["NCCL_IB_GID_INDEX=0", "NCCL_ALGO=Ring"]}]),
        {"nccl-conf"},
        "NCCL_IB_GID_INDEX=0",
    ),
    "leaking nccl": (
        lambda raw: raw["processes"][1]["libraries"].update(nccl="2.28.9 of 1 bytes"),
        {"nccl-leak"},
        "2.30",
    ),
    "empty index": (told(NCCL_IB_GID_INDEX=""), {"env-empty"}, "unset NCCL_IB_GID_INDEX"),
    "no such interface": (told(GLOO_SOCKET_IFNAME="eth0"), {"env-interface"}, MANAGEMENT),
    "bootstrap over the ring": (told(NCCL_SOCKET_IFNAME="enp1s0"), {"env-bootstrap"}, "one node only"),
    "bootstrap over wifi": (told(GLOO_SOCKET_IFNAME="wlP9s9"), {"env-bootstrap"}, "Wi-Fi"),
    "rendezvous over the ring": (told(MASTER_ADDR="10.10.3.10"), {"env-bootstrap"}, "no neighbours"),
    "no such device": (told(B12X_ROCE_HCA="mlx5_0"), {"env-hca", "env-not-planned"}, "no RDMA device mlx5_0"),
    "uncabled device": (
        both(
            told(NCCL_IB_HCA="=rocep1s0f0,rocep1s0f9"),
            lambda raw: raw["functions"].append({**raw["functions"][0], "rdma": "rocep1s0f9", "ipv4": []}),
        ),
        {"env-hca", "env-not-planned"},
        "rocep1s0f9 has no address",
    ),
    "one index for all, one moved": (
        both(moved_gid, told(NCCL_IB_GID_INDEX="3")),
        {"env-gid-index"},
        "not at 3 on rocep1s0f0 (5)",
    ),
    "another node's address": (told(SGLANG_HOST_IP="192.168.77.9"), {"env-host-ip"}, "192.168.77.1"),
    "cap of an old plan": (told(SGLANG_ROCE_MAX_SIZE="524288"), {"env-not-planned"}, "262144"),
    "trees in a ring": (
        lambda raw: raw["processes"][1]["environment"].pop("NCCL_ALGO"),
        {"env-not-planned"},
        "trees need cables",
    ),
    "ucx on a device that is not there": (
        told(UCX_NET_DEVICES="enP7s7,mlx5_0:1"),
        {"env-hca"},
        "no RDMA device mlx5_0",
    ),
    "an agent with an old plan": (node(agent_plan="e" * 64), {"plan-differs"}, "agent"),
    "an engine with an old plan": (
        lambda raw: raw["processes"][1].update(plan_hash="f" * 64),
        {"plan-differs"},
        "ffffffffffff",
    ),
}


def test_a_healthy_ring_is_fine() -> None:
    """No finding and nothing unknown, on four Sparks with what a Spark usually has: docker, Wi-Fi, engines."""
    report = check_all([evidence(healthy(rank)) for rank in range(4)], PLAN)
    assert report.ring == ()
    assert [(item.findings, item.unknown) for item in report.nodes] == [((), ())] * 4


@pytest.mark.parametrize("example", sorted(path.stem for path in EXAMPLES.glob("*.yaml")))
def test_every_geometry_is_fine_when_it_is_healthy(example: str) -> None:
    """Pairs to eight nodes, flipped cages, chains: with the plan given, and with the one that follows."""
    plan = make_plan(load_facts(EXAMPLES / f"{example}.yaml"))[0]
    nodes = [evidence(healthy(rank, plan)) for rank in range(len(plan.hosts))]
    for given in (plan, None):
        report = check_all(nodes, given)
        assert {item.code for item in report.ring} <= {"open-chain"}  # a chain that nobody planned may be an accident
        assert [item for node in report.nodes for item in (*node.findings, *node.unknown)] == []


@pytest.mark.parametrize("name", CASES)
def test_one_thing_wrong_is_one_finding(name: str) -> None:
    """Its own code and no other, with what was seen or how to mend it in its words."""
    spoil, codes, words = CASES[name]
    raw = healthy()
    spoil(raw)
    report = check_node(evidence(raw), PLAN)
    assert {item.code for item in report.findings} == codes
    assert any(words in str(item) for item in report.findings), [str(item) for item in report.findings]
    assert report.unknown == ()


def ring(spoils: dict[int, Spoil], plan: bool = True) -> set[str]:
    nodes = [healthy(rank) for rank in range(4)]
    for rank, spoil in spoils.items():
        spoil(nodes[rank])
    report = check_all(list(map(evidence, nodes)), PLAN if plan else None)
    return {item.code for item in (*report.ring, *(item for node in report.nodes for item in node.findings))}


def test_both_planes_are_heard_on_one_cable() -> None:
    """Neighbour discovery of one function is heard by its sibling, here and at the far end: no cable was moved."""
    raw = healthy()
    both_planes = sorted(mac for hca in PLAN.nodes[0].hcas if hca.port == 0 for mac in raw["far_macs"][hca.netdev])
    for hca in PLAN.nodes[0].hcas:
        if hca.port == 0:
            raw["far_macs"][hca.netdev] = [*both_planes, *(own.mac for own in PLAN.nodes[0].hcas if own.port == 0)]
    assert check_all([evidence(raw)], PLAN).ring == ()


def swapped_cables(raw: Json) -> None:
    a, b = (hca.netdev for hca in PLAN.nodes[0].hcas[:2])
    raw["far_macs"][a], raw["far_macs"][b] = raw["far_macs"][b], raw["far_macs"][a]


RING_CASES: dict[str, tuple[dict[int, Spoil], set[str]]] = {
    "4200 at one end": ({2: function(netdev=PLAN.nodes[2].hcas[0].netdev, mtu=4200)}, {"mtu-mismatch"}),
    "gid moved on one node": ({0: moved_gid}, {"gid-index-differs"}),
    "cables swapped after planning": ({0: swapped_cables}, {"cable-moved"}),
    "nobody at the far end": (
        {0: node(silent={FIRST: [PLAN.nodes[3].hcas[1].address.partition("/")[0]]})},
        {"peer-silent"},
    ),
    "one engine without the patched nccl": (
        {3: lambda raw: raw["processes"][1]["libraries"].update(nccl="2.30.7 of 123450000 bytes")},
        {"nccl-differs"},
    ),
    "older nccl installed on one node": ({3: lambda raw: raw["libraries"].update(nccl="2.27.3")}, {"versions-differ"}),
    "another kernel": ({1: lambda raw: raw["kernel"].update(release="6.14.0")}, {"versions-differ"}),
    "a stranger": (
        {1: both(node(host="other"), lambda raw: [item.update(mac="02:00:00:00:00:99") for item in raw["functions"]])},
        {"host-not-planned", "node-not-asked"},
    ),
}


@pytest.mark.parametrize("name", RING_CASES)
def test_what_only_shows_across_nodes(name: str) -> None:
    spoils, codes = RING_CASES[name]
    assert ring(spoils) == codes


def test_without_a_plan_all_nodes_together_make_one() -> None:
    """What forwarding needs is asked although no plan was given; wrong cabling is told as the planner tells it."""
    assert ring({}, plan=False) == set()
    assert ring({0: nothing_set_up}, plan=False) == {"plan-not-applied"}
    readdressed = function(ipv4=["10.99.0.1/24"])
    assert {"port-alone"} <= ring({0: readdressed}, plan=False)


def test_ranks_with_different_plans_are_told_without_one() -> None:
    other = lambda raw: raw["processes"][1].update(plan_hash="f" * 64)  # noqa: E731
    nodes = [evidence(healthy(0)), healthy(1)]
    other(nodes[1])
    report = check_all([nodes[0], evidence(nodes[1])])
    assert "plan-differs" in {item.code for item in report.ring}


def test_one_node_without_a_plan_says_what_it_cannot_know() -> None:
    """Whether it forwards is not known, so nothing about rules is called fine."""
    report = check_node(evidence(healthy()))
    unknown = {code: item.reason for item in report.unknown for code in item.codes}
    assert {"offload-off", "hairpin-small", "object-missing", "kernel-forwards"} <= set(unknown)
    assert "--plan" in unknown["object-missing"]
    assert report.findings == ()


@pytest.mark.parametrize(
    "section", ["offload", "devlink", "counters", "growth", "active_mtu", "config_files", "iproute"]
)
def test_what_could_not_be_read_is_unknown_and_never_fine(section: str) -> None:
    raw = healthy()
    raw["unknown"] = {section: "no permission"}
    if section == "active_mtu":
        raw["functions"][0]["roce_active_mtu"] = None
    if section == "iproute":
        raw["iproute"] = None
    report = check_node(evidence(raw), PLAN)
    assert "no permission" in {item.reason for item in report.unknown}


def test_markers_that_only_root_sees_are_not_called_missing() -> None:
    raw = healthy()
    raw["markers"], raw["unknown"] = {}, {"markers": "/run/roce-ring is closed to this user"}
    report = check_node(evidence(raw), PLAN)
    assert report.findings == ()
    assert ["object-missing" in item.codes for item in report.unknown] == [True]


def test_containers_make_the_forward_counter_unreadable() -> None:
    raw = healthy()
    raw["forwarded_growth"] = 5
    (unknown,) = check_node(evidence(raw), PLAN).unknown
    assert (unknown.codes, "docker0" in unknown.reason) == (("kernel-forwards",), True)


def test_a_node_is_known_by_its_macs() -> None:
    """Hosts have short names, long names and addresses; the plan's part is found all the same."""
    raw = healthy()
    raw["host"] = "192.168.77.1"
    assert check_all([evidence(raw)], PLAN).nodes[0].unknown == ()


def test_every_check_has_a_case() -> None:
    """A code in the table that nothing here makes appear may be one that nothing can make appear."""
    made = {code for _, codes, _ in CASES.values() for code in codes}
    made |= {code for _, codes in RING_CASES.values() for code in codes} | {"soft-roce"}  # the soft ring's
    listed = {code for codes in (*CHECKS, *RING_CHECKS) for code in codes}
    assert listed - made == set()


def test_an_unknown_environment_is_no_reason_to_complain() -> None:
    """An engine of another user: its variables cannot be read, so none is missing."""
    raw = healthy()
    raw["processes"][1] = engine({}, plan_hash=None)
    raw["unknown"] = {"processes": "as root only"}
    report = check_node(evidence(raw), PLAN)
    assert report.findings == ()
    assert {item.reason for item in report.unknown} == {"as root only"}
