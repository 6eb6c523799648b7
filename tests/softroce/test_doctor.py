"""The doctor on a soft ring with its plan set up: what is wrong on a real kernel is found, and only that."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import msgspec

from mesh.doctor import bundle
from mesh.doctor.checks import check_all
from mesh.doctor.evidence import evidence_from_json
from mesh.model import Hca
from tests.softroce import byhand, faults
from tests.softroce.guest import Job
from tests.softroce.ring import MANAGEMENT, Node, Ring
from tests.softroce.traffic import start

ROOT = Path(__file__).parents[2]
ALWAYS = {"soft-roce"}  # true of every soft ring


class Seen(NamedTuple):
    codes: set[str]
    text: str


def look(ring: Ring, *ranks: int, before: str = "", options: str = "--interval 0") -> Seen:
    """What the doctor finds on these nodes, by the program that it sends over ssh. ``before``: words in front of it."""
    jobs = [begin(ring, rank, before, options) for rank in ranks]
    for job in jobs:
        job.wait().check()
    return judge(ring, *ranks)


def begin(ring: Ring, rank: int, before: str = "", options: str = "") -> Job:
    (ring.guest.share / "look.py").write_text(bundle.program())
    name = ring.nodes[rank].name
    return ring.nodes[rank].spawn(
        f"{before} {sys.executable} -I /ring/look.py --host {name} {options} > /ring/{name}.json"
    )


def judge(ring: Ring, *ranks: int) -> Seen:
    files = [ring.guest.share / f"{ring.nodes[rank].name}.json" for rank in ranks]
    nodes = [evidence_from_json(json.loads(file.read_bytes()), file.name) for file in files]
    report = check_all(nodes, ring.plan)
    found = [*report.ring, *(item for node in report.nodes for item in node.findings)]
    return Seen({item.code for item in found} - {"node-not-asked"} - ALWAYS, "\n".join(map(str, found)))


@contextmanager
def and_back(node: Node, *more: str) -> Iterator[None]:
    """What the plan sets up on the node is as before afterwards; ``more``: commands that undo the rest."""
    yield
    undo = [f"tc qdisc del dev {hca.netdev} clsact; ip neigh flush dev {hca.netdev} nud all" for hca in node.plan.hcas]
    node.run("; ".join([*undo, "ip route flush proto 82", *more]))
    byhand.apply(node)


def first(node: Node) -> Hca:
    return node.plan.hcas[0]


def test_a_ring_without_its_plan(ring: Ring) -> None:
    """After a reboot: one finding, not one for each of the eight things that are missing."""
    found = look(ring, 0)
    assert found.codes == {"plan-not-applied"}
    assert found.text.count("plan-not-applied") == 1


def test_a_healthy_ring(planned_ring: Ring) -> None:
    """Nothing but what is true of every soft ring."""
    assert look(planned_ring, 0, 1, 2, 3) == (set(), "\n".join(_soft(node) for node in planned_ring.nodes))


def _soft(node: Node) -> str:
    return (
        f"note soft-roce: {node.name}: all RDMA devices are Soft-RoCE; expected ConnectX-7 functions, outside tests; "
        "fix: none if this is a test; else look why the card's driver is not loaded"
    )


def test_the_program_itself(planned_ring: Ring) -> None:
    """In a node, from the clone, with the interval: ends with 0 and its verdict."""
    (planned_ring.guest.share / "plan.json").write_bytes(msgspec.json.encode(planned_ring.plan))
    command = f"{sys.executable} {ROOT}/mesh/doctor/doctor.py --host s1 --plan /ring/plan.json --interval 0.3"
    done = planned_ring.nodes[0].run(command)
    assert done.status == 0, done.output
    assert done.output.splitlines()[-1].startswith("1 node(s): 1 note(s)")


def test_a_link_that_is_down_took_what_hung_on_it(planned_ring: Ring) -> None:
    node = planned_ring.nodes[0]
    with and_back(node):
        faults.link_down(node, first(node))
        found = look(planned_ring, 0)
        faults.link_up(node, first(node))
    assert found.codes == {"link-down", "object-missing"}
    assert f"neighbour {node.plan.neighbours[0].address}" in found.text


def test_a_small_mtu_and_a_gid_that_moved(planned_ring: Ring) -> None:
    """A moved GID is fine for roce-ring, and fatal for an engine that was told one index for all."""
    node = planned_ring.nodes[2]
    small = node.plan.hcas[1].netdev
    with and_back(node, f"ip link set {small} mtu 9000"):
        node.run(f"ip link set {small} mtu 1500").check()
        faults.move_gid(node, first(node))
        found = look(planned_ring, 2, before="NCCL_IB_GID_INDEX=1")
    assert found.codes == {"mtu-small", "gid-index-differs", "env-gid-index"}, found.text
    assert f"ip link set dev {small} mtu 9000" in found.text


def test_what_is_gone_is_named(planned_ring: Ring) -> None:
    node = planned_ring.nodes[0]
    plan = node.plan
    marking = next(hca.netdev for hca in plan.hcas if hca.rdma == plan.markers[0].rdma)
    with and_back(node):
        node.run(
            f"set -e; ip route del {plan.routes[0].destination} dev {plan.routes[0].device}\n"
            f"ip neigh del {plan.neighbours[1].address} dev {plan.neighbours[1].device}\n"
            f"tc filter del dev {plan.rules[0].device} ingress\n"
            f"tc filter del dev {marking} egress"
        ).check()
        found = look(planned_ring, 0)
    assert found.codes == {"object-missing"}
    for thing in (
        f"route {plan.routes[0].destination}",
        f"neighbour {plan.neighbours[1].address}",
        f"rule 0x88b5 pref 49152 dev {plan.rules[0].device}",
        f"mark UDP source port 65535 -> EtherType 0x88b5 dev {marking}",
    ):
        assert f"error object-missing: s1 {thing}" in found.text
    assert found.text.count("object-missing") == 4


def test_what_should_not_be_there_is_named(planned_ring: Ring) -> None:
    node = planned_ring.nodes[0]
    plan, port = node.plan, first(node)
    wrong = planned_ring.nodes[2].plan.hcas[0].mac  # the opposite node's: at none of this node's cables
    far, near = faced(planned_ring, port), port.address.replace(".11/", ".77/")
    undo = ("ip route del 10.9.0.0/24", "ip route del default", f"ip address del {near} dev {MANAGEMENT}")
    with and_back(node, "sysctl -qw net.ipv4.ip_forward=1", *undo):
        node.run(
            f"set -e; ip neigh replace {plan.neighbours[0].address} dev {plan.neighbours[0].device}"
            " lladdr 02:00:00:00:00:99 nud permanent\n"
            f"tc filter add dev {plan.rules[0].device} ingress pref 7 protocol ip flower action drop\n"
            f"ip route add 10.9.9.9 dev {port.netdev} proto 82\n"
            f"sysctl -qw net.ipv4.ip_forward=0; ip route add 10.9.0.0/24 via {far} dev {port.netdev} onlink\n"
            f"ip route add default via {far} dev {port.netdev} onlink\n"
            f"ip address add {near} dev {MANAGEMENT} noprefixroute\n"
            f"ip neigh replace {far} lladdr {wrong} dev {port.netdev} nud stale"
        ).check()
        found = look(planned_ring, 0)
    for code, words in {
        "object-differs": "02:00:00:00:00:99",
        "object-foreign": "preference 7",
        "ip-forward-off": "sysctl",
        "default-route": "one node only",
        "same-node-subnet": MANAGEMENT,
        "cable-moved": f"({wrong}) answers at the other end",
    }.items():
        assert any(f" {code}: " in line and words in line for line in found.text.splitlines()), found.text
        found.codes.discard(code)
    assert found.codes == set()
    assert "10.9.9.9" in found.text


def faced(ring: Ring, port: Hca) -> str:
    """The address at the far end of a cable of the first node."""
    [far] = [
        end
        for item in ring.plan.cables
        for end, near in (item.ends, item.ends[::-1])
        if (near.rank, near.port) == (0, port.port)
    ]
    there = ring.nodes[far.rank].plan.hcas
    return next(hca for hca in there if (hca.plane, hca.port) == (port.plane, far.port)).address.partition("/")[0]


def test_what_the_kernel_forwards_is_noticed(planned_ring: Ring) -> None:
    """Datagrams between two planes of a node's neighbours, which no rule of the plan carries."""
    node, sender = planned_ring.nodes[0], planned_ring.nodes[1]
    through = next(hca for hca in node.plan.hcas if hca.port == 1 and hca.plane == 0).address.partition("/")[0]
    sender.run(f"ip route add 192.168.77.200 via {through}").check()
    job = sender.spawn("until [ -e /tmp/enough ]; do echo x > /dev/udp/192.168.77.200/9; sleep 0.05; done")
    found = look(planned_ring, 0, options="--interval 0.5")
    sender.run(f"touch /tmp/enough; ip route del 192.168.77.200 via {through}").check()
    job.wait()
    assert found.codes == {"kernel-forwards"}, found.text


def test_losses_show_in_counters_that_grow(planned_ring: Ring) -> None:
    node = planned_ring.nodes[0]
    far = planned_ring.nodes[3]
    a, b = (node, first(node)), (far, next(hca for hca in far.plan.hcas if (hca.plane, hca.port) == (0, 1)))
    traffic = start("ibv_rc_pingpong -e -m 4096", "-g", a, b, "-n 1000000", 20)
    faults.impair(*a, "loss 5%")  # not before: ARP would suffer too
    while not node.counters(a[1].rdma)["completer_retry_err"]:  # they take a second to begin
        time.sleep(0.1)
    found = look(planned_ring, 0, options="--interval 0.5")
    node.run("pkill -KILL ibv_rc_pingpong").check()
    traffic.wait()
    faults.heal(*a)
    assert found.codes == {"rdma-errors"}, found.text
    assert "completer_retry_err +" in found.text or "out_of_seq_request +" in found.text


def test_settings_that_lead_astray(planned_ring: Ring) -> None:
    """What an engine would be told by this login's environment and NCCL's file, and may lock, all at once. A user has
    not the capability that lifts the limit."""
    node = planned_ring.nodes[0]
    environment = {
        "NCCL_SOCKET_IFNAME": "eth0",
        "GLOO_SOCKET_IFNAME": first(node).netdev,
        "NCCL_IB_HCA": "mlx5_0",
        "B12X_ROCE_GID_INDEX": "",
        "SGLANG_HOST_IP": "192.168.77.2",
    }
    told = " ".join(f"{name}={value}" for name, value in environment.items())
    node.run("echo NCCL_DEBUG=INFO > /etc/nccl.conf").check()
    found = look(planned_ring, 0, before=f"ulimit -l 64; {told} exec setpriv --bounding-set=-ipc_lock")
    node.run("rm /etc/nccl.conf").check()
    wanted = {"nccl-conf", "env-interface", "env-bootstrap", "env-hca", "env-empty", "env-host-ip", "env-not-planned"}
    assert found.codes == {*wanted, "memlock-small"}, found.text
    assert "this login may lock 64 KiB" in found.text
