"""Evidence of four healthy Sparks with their plan set up, to be spoilt by tests, one thing at a time."""

from __future__ import annotations

import json
from typing import Any

from mesh.doctor.evidence import Evidence, evidence_from_json
from mesh.functions import ROCE_V2
from mesh.loading import load_facts
from mesh.model import Hca, NodePlan, Plan, RelayRule
from mesh.planner import make_plan
from mesh.text import variables
from tests.mesh.rings import SAMPLE

Json = dict[str, Any]
MANAGEMENT = "enP7s7"

PLAN: Plan = make_plan(load_facts(SAMPLE))[0]


def healthy(rank: int = 0, plan: Plan = PLAN) -> Json:
    """What `look` prints on that rank's node."""
    part = plan.nodes[rank]
    return {
        "schema": "roce-ring/evidence/v1",
        "host": part.host,
        "interval_s": 1.0,
        "functions": [_function(hca) for hca in part.hcas],
        "problems": [],
        "iproute": {"address": _address(part), "qdisc": _qdisc(part), "filters": _filters(part)},
        "far_macs": {hca.netdev: [_far(plan, part.rank, hca).mac] for hca in part.hcas},
        "silent": {},
        "netdevs": [MANAGEMENT, *(hca.netdev for hca in part.hcas), "lo", "wlP9s9"],
        "wifi": [{"netdev": "wlP9s9", "power_save": True}],  # it has no address: nobody uses it
        "ip_forward": True,  # docker sets it; the card does not need it, and it does no harm
        "others_forward": ["docker0"],
        "firewall": ["-P FORWARD DROP"],
        "config_files": [{"path": "/etc/netplan/40-cx7.yaml", "ports": [hca.netdev for hca in part.hcas]}],
        "ssh_address": "192.168.77.1",
        "memlock": {"login": -1, "login_may_exceed": False, "systemd": -1, "docker": -1},
        "kernel": {"release": "6.17.0-1008-nvidia", "machine": "aarch64", "kho": False, "cma_kib": 32768},
        "libraries": {"libibverbs": "1.14.50.0", "nccl": "2.30.7"},
        "nccl_files": [],
        "processes": [
            {"pid": None, "what": "this login", "environment": {}, "memlock": None, "libraries": {}, "plan_hash": None},
            engine({**_told(rank), **variables(plan, "nccl", rank)}, plan_hash=plan.hash),
        ],
        "markers": {item.rdma: [_mark(mark) for mark in item.marks] for item in part.markers},
        "agent_plan": plan.hash,
        "forwarded_growth": 0,
        "unknown": {},
    }


def _told(rank: int) -> dict[str, str]:
    return {"NCCL_SOCKET_IFNAME": MANAGEMENT, "SGLANG_HOST_IP": f"192.168.77.{rank + 1}"}


def engine(environment: dict[str, str], **facts: Any) -> Json:
    """A running SGLang."""
    fine = {
        "pid": 4711,
        "what": "sglang",
        "memlock": -1,
        "libraries": {"nccl": "2.30.7 of 123456789 bytes"},
        "plan_hash": PLAN.hash,
    }
    return {**fine, "environment": environment, **facts}


def evidence(raw: Json) -> Evidence:
    return evidence_from_json(json.loads(json.dumps(raw)), "test")


def _function(hca: Hca) -> Json:
    address = [int(octet) for octet in hca.address.split("/")[0].split(".")]
    mapped = "0000:0000:0000:0000:0000:ffff:{:02x}{:02x}:{:02x}{:02x}".format(*address)
    link_local = "fe80:0000:0000:0000:0000:00ff:fe00:0001"
    rows = [(0, link_local, "IB/RoCE v1"), (1, link_local, ROCE_V2), (2, mapped, "IB/RoCE v1"), (3, mapped, ROCE_V2)]
    return {
        "rdma": hca.rdma,
        "netdev": hca.netdev,
        "pci": hca.pci,
        "plane": hca.plane,
        "port": hca.port,
        "mac": hca.mac,
        "mtu": 9000,
        "link_up": True,
        "gids": [{"index": at, "gid": gid, "type": kind, "netdev": hca.netdev} for at, gid, kind in rows],
        "ipv4": [hca.address],
        "roce_active_mtu": 4096,
        "firmware": "28.45.4028",
        "hw_tc_offload": True,
        "offload_fixed": False,
        "flow_steering_mode": "hmfs",
        "hairpin_num_queues": 4,
        "hairpin_queue_size": 8192,
        "reload_failed": False,
        "eswitch": {"mode": "legacy", "inline-mode": "none", "encap-mode": "basic"},
        "pcie": {"current_speed": 32.0, "current_width": 4, "max_speed": 32.0, "max_width": 16},
        "aer": {"fatal": 0, "nonfatal": 0, "correctable": 3},
        "counters": {"rx_out_of_buffer": 12, "out_of_sequence": 0},
        "growth": {"rx_out_of_buffer": 0, "out_of_sequence": 0},
    }


def _far(plan: Plan, rank: int, hca: Hca) -> Hca:
    for cable in plan.cables:
        for near, far in (cable.ends, cable.ends[::-1]):
            if (near.rank, near.port) == (rank, hca.port):
                there = plan.nodes[far.rank].hcas
                return next(item for item in there if (item.plane, item.port) == (hca.plane, far.port))
    raise AssertionError(f"no cable at {hca.netdev} of rank {rank}")


# what ip and tc print, one JSON document per line of a batch


def _address(part: NodePlan) -> str:
    links: list[tuple[str, str, list[str]]] = [("lo", "00:00:00:00:00:00", ["127.0.0.1/8"])]
    links += [
        (MANAGEMENT, "02:00:00:00:77:01", [f"192.168.77.{part.rank + 1}/24"]),
        ("wlP9s9", "02:00:00:00:99:01", []),
    ]
    links += [(hca.netdev, hca.mac, [hca.address]) for hca in part.hcas]
    addresses = [
        {
            "ifname": name,
            "flags": ["UP", "LOWER_UP"],
            "mtu": 9000,
            "address": mac,
            "addr_info": [
                {"family": "inet", "local": own.split("/")[0], "prefixlen": int(own.split("/")[1])} for own in ipv4
            ],
        }
        for name, mac, ipv4 in links
    ]
    routes: list[Json] = [{"dst": "default", "gateway": "192.168.77.254", "dev": MANAGEMENT, "flags": []}]
    routes += [
        {"dst": item.destination, "dev": item.device, "protocol": "82", "scope": "link", "prefsrc": item.source}
        for item in part.routes
    ]
    neighbours = [
        {"dst": item.address, "dev": item.device, "lladdr": item.mac, "state": ["PERMANENT"]}
        for item in part.neighbours
    ]
    return "\n".join(map(json.dumps, (addresses, routes, neighbours)))


def _qdisc(part: NodePlan) -> str:
    return json.dumps([{"kind": "clsact", "dev": device} for device in part.clsact])


def _filters(part: NodePlan) -> str:
    documents: list[list[Json]] = []
    for device in part.clsact:
        documents += [[_rule(rule) for rule in part.rules if rule.device == device], []]  # ingress, egress
    return "\n".join(map(json.dumps, documents))


def _rule(rule: RelayRule) -> Json:
    mac = rule.set_target_mac.replace(":", "")
    kind = {"htype": "eth", "offset": 12, "cmd": "set", "val": f"{rule.set_ethertype:04x}0000", "mask": "ffff"}
    head = {"htype": "eth", "offset": 0, "cmd": "set", "val": mac[:8], "mask": "0"}
    tail = {"htype": "eth", "offset": 4, "cmd": "set", "val": f"{mac[8:]}0000", "mask": "ffff"}
    keys = {"src_mac": rule.match_source_mac, "dst_mac": rule.match_target_mac, "eth_type": f"{rule.ethertype:x}"}
    actions = [
        {"kind": "pedit", "keys": [kind], "stats": {"packets": 5, "bytes": 500}},
        {"kind": "pedit", "keys": [head, tail]},
        {"kind": "mirred", "mirred_action": "redirect", "direction": "egress", "to_dev": rule.output},
    ]
    given = {name: value for name, value in keys.items() if value is not None}
    options = {"handle": rule.handle, "keys": given, "skip_sw": True, "in_hw": True, "actions": actions}
    return {"protocol": f"[{rule.ethertype}]", "pref": rule.preference, "kind": "flower", "options": options}


def _mark(mark: Any) -> Json:
    return {"destination": mark.destination, "udp_source_port": mark.udp_source_port, "ethertype": mark.ethertype}
