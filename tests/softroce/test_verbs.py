"""Sessions over real verbs come up on what works of the plan, say what does not, and refuse in words what cannot."""

from __future__ import annotations

import itertools
import json
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from mesh.model import Hca, Plan
from tests.softroce import byhand, faults
from tests.softroce.guest import Job
from tests.softroce.ring import Node, Ring, plan_of

RANK = Path(__file__).with_name("verbs_node.py")
PYTHON = f"PYTHONPATH={RANK.parents[2]} {sys.executable}"
_sessions = itertools.count()


def start(ring: Ring, plan: Plan, how: str = "", seconds: float = 0.2) -> tuple[Path, list[Job]]:
    """Every rank of one session; and the folder in which they meet."""
    folder = f"session.{next(_sessions)}"
    (ring.guest.share / f"{folder}.json").write_bytes(msgspec.json.encode(plan))
    ring.guest.run(f"mkdir /ring/{folder}").check()
    jobs = [
        node.spawn(f"{PYTHON} {RANK} /ring/{folder} {rank} /ring/{folder}.json {seconds} {how}", 60)
        for rank, node in enumerate(ring.nodes)
    ]
    return ring.guest.share / folder, jobs


def session(ring: Ring, how: str = "") -> list[dict[str, Any]]:
    """What every rank says of one session."""
    return outcomes(start(ring, ring.plan, how)[1])


def outcomes(jobs: list[Job]) -> list[dict[str, Any]]:
    return [json.loads(job.wait().check().splitlines()[-1]) for job in jobs]


def all_right(said: list[dict[str, Any]]) -> None:
    for one in said:
        assert "error" not in one and one["wrong"] == 0 and one["ops"] > 0, one
        assert one["ops"] == said[0]["ops"]


def warnings(one: dict[str, Any]) -> list[str]:
    return [line for line in one["log"] if not line.startswith("INFO")]


def hca_of(node: Node, plane: int, port: int) -> Hca:
    [found] = [hca for hca in node.plan.hcas if (hca.plane, hca.port) == (plane, port)]
    return found


@pytest.fixture
def whole(planned_ring: Ring) -> Iterator[Ring]:
    """Mends every port afterwards."""
    yield planned_ring
    byhand.again(*planned_ring.nodes)


def test_a_moved_gid_and_a_second_address_do_not_disturb(whole: Ring) -> None:
    """The GID is looked up by the planned address at every start, wherever a flap has moved it."""
    node, hca = whole.nodes[0], whole.nodes[0].plan.hcas[0]
    before = node.gid_index(hca)
    faults.move_gid(node, hca)
    assert node.gid_index(hca) != before
    other = whole.nodes[1].plan.hcas[2]
    whole.nodes[1].run(f"ip address add 10.77.0.1/24 dev {other.netdev}").check()
    byhand.again(node)
    said = session(whole)
    whole.nodes[1].run(f"ip address del 10.77.0.1/24 dev {other.netdev}").check()
    all_right(said)
    for one in said:
        assert (one["arrival"], one["reason"]) == ("polled flag", "")
        assert one["litmus"] == "no flag overtook its payload on 12 paths"
        assert not warnings(one)


def test_where_a_flag_overtakes_all_ranks_change_to_immediate_data(planned_ring: Ring) -> None:
    said = session(planned_ring, "torn")
    all_right(said)
    for one in said:
        assert one["arrival"] == "write with immediate"
        [warning] = warnings(one)
        assert "flags arrive by write-with-immediate: a flag overtook its payload on s1 " in warning
        assert "write-with-immediate" in one["reason"]


def test_a_port_without_a_link_is_left_out_and_named_at_both_ends(whole: Ring) -> None:
    """Rank 0's port to rank 3 on plane 0 carries the direct path and one to rank 2."""
    [cable] = [c for c in whole.plan.cables if {end.rank for end in c.ends} == {0, 3}]
    [port] = [end.port for end in cable.ends if end.rank == 0]
    hca = hca_of(whole.nodes[0], 0, port)
    faults.link_down(whole.nodes[0], hca)
    said = session(whole)
    all_right(said)
    assert [len(warnings(one)) for one in said] == [2, 0, 1, 1]
    [direct] = warnings(said[3])
    far_port = hca_of(whole.nodes[3], 0, next(end.port for end in cable.ends if end.rank == 3)).netdev
    edge = f"s1 {hca.netdev} - s4 {far_port} (plane 0)"
    assert direct == (
        f"WARNING rank 3: ranks 0 and 3 use 1 of 2 paths: {edge}: the port at rank 0 and rank 3 is not active"
    )
    [far] = warnings(said[2])
    assert "ranks 0 and 2 use 1 of 2 paths: s1 " in far and "(plane 0): the port at rank 0 is not active" in far
    assert edge in said[0]["reason"] and edge in said[3]["reason"] and said[1]["reason"] == ""
    assert said[1]["litmus"] == "no flag overtook its payload on 10 paths"


def test_a_relay_without_its_rule_costs_that_path_only(whole: Ring) -> None:
    [path] = [p for p in whole.plan.paths if (p.source, p.target, p.plane) == (0, 2, 1)]
    relay = whole.nodes[path.via[0]]
    devices = {
        rule.device for rule in relay.plan.rules if rule.device in {h.netdev for h in relay.plan.hcas if h.plane}
    }
    for device in devices:
        relay.run(f"tc filter del dev {device} ingress").check()
    said = session(whole)
    byhand.again(relay)
    all_right(said)
    assert [len(warnings(one)) for one in said] == [1, 0, 1, 0]
    assert "ranks 0 and 2 use 1 of 2 paths: s1 " in said[0]["reason"]
    assert f" - {relay.name} - s3 " in said[0]["reason"] and "(plane 1): nothing got through" in said[0]["reason"]


def test_two_ranks_without_any_path_are_refused_on_all_in_the_same_words(whole: Ring) -> None:
    [cable] = [c for c in whole.plan.cables if {end.rank for end in c.ends} == {0, 1}]
    [port] = [end.port for end in cable.ends if end.rank == 0]
    for plane in (0, 1):
        faults.link_down(whole.nodes[0], hca_of(whole.nodes[0], plane, port))
    said = session(whole)
    assert {one["code"] for one in said} == {"setup"} and len({one["error"] for one in said}) == 1
    error = said[0]["error"]
    assert "ranks 0 and 1 cannot reach each other: s1 " in error and "(plane 0)" in error and "(plane 1)" in error
    assert "not active" in error and "fix: check these cables" in error
    assert all("ops" not in one for one in said)


def test_only_devices_that_the_plan_uses_are_opened(planned_ring: Ring) -> None:
    """The others may have no cable, and a session that touches them could fail for it."""
    folder, jobs = start(planned_ring, plan_of(4, planes=1), seconds=1)
    deadline = time.monotonic() + 30
    while len(list(folder.glob("up.*"))) < len(jobs):
        assert time.monotonic() < deadline, [job.output for job in jobs]
        time.sleep(0.02)
    opened = json.loads(planned_ring.nodes[0].run("rdma -j resource show qp").check())
    all_right(outcomes(jobs))
    devices = {one["ifname"] for one in opened if one.get("comm", "").startswith("python")}
    assert devices == {hca.rdma for hca in planned_ring.nodes[0].plan.hcas if hca.plane == 0}


def probing(node: Node, code: str, prefix: str = "") -> str:
    """The sentence with which a probe on this node's first port is refused."""
    hca = node.plan.hcas[0]
    script = (
        "import subprocess\n"
        "from roce_ring.probe import Probe, SetupError\n"
        f"rdma, address, netdev = '{hca.rdma}', '{hca.address.split('/')[0]}', '{hca.netdev}'\n"
        f"try:\n    {code}\nexcept SetupError as failed:\n    print(failed)\n"
    )
    return node.run(f"{prefix}env {PYTHON} - <<'END'\n{script}END").check()


def test_a_lock_limit_that_is_too_small_is_named_with_its_remedy(ring: Ring) -> None:
    said = probing(
        ring.nodes[0], "Probe(rdma, address, size=1 << 20)", "prlimit --memlock=65536 setpriv --bounding-set=-ipc_lock "
    )
    assert "may lock 64 KiB of memory and needs 2048 KiB" in said
    assert "LimitMEMLOCK=infinity" in said and "--ulimit memlock=-1:-1" in said


def test_an_absent_libibverbs_is_named_with_its_package(ring: Ring) -> None:
    found = ring.nodes[0].run("ldconfig -p | grep -o '/.*libibverbs.so.1$' | xargs -n 1 readlink -f").check().split()
    hide = "".join(f"mount --bind /dev/null {file} && " for file in found)
    said = probing(ring.nodes[0], "Probe(rdma, address)", f"unshare -m sh -c '{hide}exec \"$@\"' - ")
    assert "needs libibverbs.so.1, which cannot be loaded" in said and "libibverbs1 and ibverbs-providers" in said


def test_an_address_that_goes_while_ranks_meet_is_named(ring: Ring) -> None:
    """The slot of the GID table is empty then, and the kernel would only say 'no data available'."""
    hca = ring.nodes[0].plan.hcas[0]
    said = probing(
        ring.nodes[0],
        "probe = Probe(rdma, address); "
        f"subprocess.run(['ip', 'address', 'del', '{hca.address}', 'dev', netdev], check=True); "
        "probe.connect(probe.endpoint)",
    )
    ring.nodes[0].run(f"ip address add {hca.address} dev {hca.netdev}").check()
    assert f"the GID {hca.address.split('/')[0]} of {hca.rdma} vanished" in said and "set up again" in said
