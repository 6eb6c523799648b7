"""The Soft-RoCE ring is what it claims to be: the plan's devices, its paths, and faults that do what they say."""

from __future__ import annotations

import contextlib
import re
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from mesh.model import Hca
from tests.softroce import byhand, faults
from tests.softroce.guest import GuestError
from tests.softroce.ring import Node, Ring, gid_of, plan_of
from tests.softroce.traffic import End, pingpong, start, write


def cable(ring: Ring, number: int = 0, plane: int = 0) -> tuple[End, End]:
    """Both ends of a cable on one plane."""
    a, b = (ring.nodes[end.rank] for end in ring.plan.cables[number].ends)
    ports = [end.port for end in ring.plan.cables[number].ends]
    return (a, port_of(a, plane, ports[0])), (b, port_of(b, plane, ports[1]))


def port_of(node: Node, plane: int, port: int) -> Hca:
    [hca] = [hca for hca in node.plan.hcas if (hca.plane, hca.port) == (plane, port)]
    return hca


def ends(ring: Ring, source: int, target: int) -> list[tuple[End, End]]:
    """Both ends of every planned path between two ranks."""
    a, b = ring.nodes[source], ring.nodes[target]
    chosen = [path for path in ring.plan.paths if (path.source, path.target) == (source, target)]
    return [((a, a.plan.hcas[path.source_hca]), (b, b.plan.hcas[path.target_hca])) for path in chosen]


def state(end: End) -> str:
    node, hca = end
    return node.run(f"cat /sys/class/infiniband/{hca.rdma}/ports/1/state").check().split(": ")[1].strip()


def until_state(end: End, wanted: str) -> None:
    until(lambda: state(end) == wanted, f"the port of {end[0].name} {end[1].rdma} is not {wanted}")


def until(what: Callable[[], bool], otherwise: str) -> None:
    deadline = time.monotonic() + 5
    while not what():
        assert time.monotonic() < deadline, otherwise
        time.sleep(0.05)


def check_as_planned(ring: Ring) -> None:
    gids = "grep -s . /sys/class/infiniband/*/ports/1/gids/{0..3}"
    seen = ring.all(f"ls /sys/class/infiniband; echo; ip -o link; ip -o -4 address; rdma link; {gids}")
    for node, result in zip(ring.nodes, seen, strict=True):
        devices, _, details = result.check().partition("\n\n")
        assert sorted(devices.split()) == sorted(hca.rdma for hca in node.plan.hcas)
        lines = details.splitlines()
        for hca in node.plan.hcas:
            assert any(f" {hca.netdev}@" in line and f"mtu {hca.mtu} " in line and hca.mac in line for line in lines)
            assert any(f" {hca.netdev} " in line and f"inet {hca.address} " in line for line in lines)
            assert any(f"link {hca.rdma}/1 state ACTIVE" in x and f"netdev {hca.netdev} " in x for x in lines)
            assert sum(f"/{hca.rdma}/" in line and line.endswith(f":{gid_of(hca)}") for line in lines) == 1


def test_every_node_has_its_planned_devices_and_no_other(ring: Ring) -> None:
    check_as_planned(ring)


@pytest.mark.parametrize("plane", [0, 1])
@pytest.mark.parametrize("number", range(4))
def test_neighbours_write_over_every_cable(ring: Ring, number: int, plane: int) -> None:
    write(*cable(ring, number, plane)).check()


def test_a_command_gives_its_status_its_output_and_no_more_than_its_time(ring: Ring) -> None:
    node = ring.nodes[1]
    done = node.run("echo out; echo err >&2; exit 7")
    assert (done.status, done.output) == (7, "out\nerr\n")
    began = time.monotonic()
    assert node.run("sleep 30 & sleep 30", limit_s=0.5).timed_out
    assert time.monotonic() - began < 3
    assert not node.run("ip netns pids s2 | grep -v $$ | xargs -r ps -o comm= -p | grep sleep").output


def test_a_background_program_is_watched_and_signalled(ring: Ring) -> None:
    node = ring.nodes[0]
    program = "import signal, time; signal.signal(15, lambda *_: exit(3)); print('ready', flush=True); time.sleep(60)"
    job = node.spawn(f'echo starting; python3 -c "{program}"', limit_s=60)
    assert job.until("^ready") == "ready"
    assert job.output == "starting\nready\n"
    assert not job.ended()
    assert "ready\n[still running]" in ring.guest.report()
    job.signal("TERM")
    assert job.wait().status == 3
    assert job.ended()
    with pytest.raises(GuestError, match="No such process"):
        job.signal("KILL")
    with pytest.raises(GuestError, match="'later' did not come before it ended"):
        node.spawn("echo now").until("later")


def test_the_host_stays_as_it_was(ring: Ring) -> None:
    """The guest sees the host's files and may write; nothing of it reaches the host."""
    mark = Path(__file__).with_name("written-in-the-guest")
    ring.nodes[0].run(f"touch {mark} && ls {mark}").check()
    assert not mark.exists()
    assert "enp1s0f0np0" not in subprocess.run(["ip", "netns", "list"], capture_output=True, text=True).stdout


def test_loss_is_loss_and_rdma_recovers(ring: Ring) -> None:
    a, b = cable(ring)
    faults.impair(*a, "loss 10%")
    pingpong(a, b, count=50).check()
    faults.heal(*a)
    assert dropped(a) > 0
    before = dropped(a)
    pingpong(a, b, count=50).check()
    assert dropped(a) == before


def dropped(end: End) -> int:
    shown = end[0].run(f"tc -s qdisc show dev {end[1].netdev} root").check()
    return int(re.search(r"dropped (\d+)", shown)[1])  # type: ignore[index]


def test_total_loss_is_silence(ring: Ring) -> None:
    """No error, no end: the queue pair retries (Soft-RoCE for ever at retry count 7) and the port stays up."""
    a, b = cable(ring)
    faults.impair(*a, "loss 100%")
    assert pingpong(a, b, limit_s=2).timed_out
    assert state(a) == state(b) == "ACTIVE"
    faults.heal(*a)
    pingpong(a, b).check()


def test_delay_is_added_to_every_round_trip(ring: Ring) -> None:
    a, b = cable(ring)
    faults.impair(*a, "delay 5ms")
    slow = us_per_round(pingpong(a, b).check())
    faults.heal(*a)
    assert us_per_round(pingpong(a, b).check()) < 5000 <= slow


def us_per_round(output: str) -> float:
    return float(re.search(r"= ([\d.]+) usec/iter", output)[1])  # type: ignore[index]


def test_duplicates_arrive_and_are_ignored(ring: Ring) -> None:
    a, b = cable(ring)
    before = b[0].counters(b[1].rdma)["duplicate_request"]
    faults.impair(*a, "duplicate 50%")
    pingpong(a, b, count=50).check()
    faults.heal(*a)
    assert b[0].counters(b[1].rdma)["duplicate_request"] > before


def test_a_link_goes_down_at_both_ends_and_comes_back(ring: Ring) -> None:
    a, b = cable(ring)
    before = b[0].counters(b[1].rdma)["link_downed"]
    faults.link_down(*a)
    until_state(a, "DOWN")
    until_state(b, "DOWN")
    assert b[0].counters(b[1].rdma)["link_downed"] == before + 1
    faults.link_up(*a)
    until_state(a, "ACTIVE")
    until_state(b, "ACTIVE")
    write(a, b).check()


def test_a_pulled_cable_stops_traffic_until_it_is_back(ring: Ring) -> None:
    """Both ports go down, nothing else: what is under way is late, and not lost."""
    a, b = cable(ring)
    routes = ring.nodes[0].run("ip route | sed 's/ linkdown//'").check()
    job = start("ibv_rc_pingpong -e -m 4096", "-g", a, b, "-n 2000000 -s 4096", 30)
    sent = a[0].counters(a[1].rdma)["sent_pkts"]
    until(lambda: a[0].counters(a[1].rdma)["sent_pkts"] > sent + 100, "no traffic")
    gap = faults.unplug_for(*a, seconds=1)
    until_state(a, "DOWN")
    until_state(b, "DOWN")
    assert ring.nodes[0].run("ip route | sed 's/ linkdown//'").check() == routes
    gap.wait().check()
    until_state(a, "ACTIVE")
    until_state(b, "ACTIVE")
    sent = a[0].counters(a[1].rdma)["sent_pkts"]
    until(lambda: a[0].counters(a[1].rdma)["sent_pkts"] > sent + 100, "the traffic does not go on")
    assert not job.ended()
    job.signal("KILL")


def test_a_flap_moves_the_gid(ring: Ring) -> None:
    a, b = cable(ring, 1)
    before = a[0].gid_index(a[1])
    faults.move_gid(*a)
    until_state(b, "ACTIVE")
    assert a[0].gid_index(a[1]) != before
    write(a, b).check()


@pytest.mark.parametrize(("nodes", "planes"), [(2, 2), (2, 1), (3, 2), (4, 1), (6, 1), (8, 2)])
def test_rings_of_other_sizes(soft_ring: type[Ring], nodes: int, planes: int) -> None:
    """As planned, neighbours at once, and far ends (where the plan marks by destination) once the plan is applied."""
    with soft_ring(plan_of(nodes, planes)) as ring:
        check_as_planned(ring)
        pingpong(*cable(ring)).check()
        if ring.plan.forwarding == "counted-relays":
            for node in ring.nodes:
                byhand.apply(node)
            for a, b in ends(ring, 0, nodes // 2):
                pingpong(a, b).check()


def test_a_killed_node_is_dark(soft_ring: type[Ring]) -> None:
    with soft_ring(plan_of(3, 1)) as ring:
        a, b = cable(ring)
        victim = b[0].spawn("sleep 30")
        knock = f"exec 3<> /dev/tcp/{b[0].management_address}/22"
        assert "refused" in a[0].run(knock, limit_s=1).output
        faults.kill(b[0])
        assert victim.wait().status == 137
        until_state(a, "DOWN")
        assert a[0].run(knock, limit_s=1).timed_out


def test_a_rebooted_node_has_its_ports_and_nothing_planned(soft_ring: type[Ring]) -> None:
    with soft_ring(plan_of(3, 1)) as ring:
        a, b = cable(ring)
        byhand.apply(b[0])
        b[0].run("ip neigh replace 192.0.2.1 lladdr 02:00:00:00:00:99 dev enp1s0f0np0 nud permanent").check()
        b[0].run("ip route replace 192.0.2.1 dev enp1s0f0np0").check()
        b[0].run("tc qdisc replace dev enp1s0f0np0 clsact").check()
        faults.reboot(b[0])
        until_state(a, "ACTIVE")
        left = b[0].run("ip route; ip neigh; tc qdisc").check()
        assert "192.0.2.1" not in left
        assert "clsact" not in left
        check_as_planned(ring)
        pingpong(a, b).check()


def test_a_full_relay_queue_drops_what_is_passed_on(soft_ring: type[Ring]) -> None:
    """More than it holds: frames are lost and sent again. Less: none. The relay's own frames: never."""
    with soft_ring(plan_of(6, 1)) as ring:
        for node in ring.nodes:
            byhand.apply(node)
        [(a, b)] = ends(ring, 0, 2)
        relay = ring.nodes[1]
        out = next(hca for hca in relay.plan.hcas if relay.plan.rules and hca.port == 0)
        faults.relay_queue(relay, out, mbit=100, limit_bytes=64 << 10)
        pingpong(a, b, count=5, size=16 << 10).check()
        assert faults.relay_drops(relay, out) == 0
        pingpong(a, b, count=5, size=256 << 10).check()
        drops = faults.relay_drops(relay, out)
        assert drops > 0
        near = (ring.nodes[2], port_of(ring.nodes[2], 0, 1))
        pingpong((relay, out), near, count=5, size=256 << 10).check()
        assert faults.relay_drops(relay, out) == drops


def test_rings_leave_nothing_behind(soft_ring: type[Ring]) -> None:
    """Two in turn, one of them left by an error: no process, no file, no name space on the host."""
    for fail in (False, True):
        expected = pytest.raises(ZeroDivisionError) if fail else contextlib.nullcontext()
        with expected, soft_ring(plan_of(2, 1)) as ring:
            share = ring.guest.share
            ring.nodes[0].spawn("sleep 60")
            assert leftovers(share)
            if fail:
                raise ZeroDivisionError
        assert not share.exists()
        assert not leftovers(share)


def leftovers(share: Path) -> list[str]:
    """Processes of the guest that has this directory."""
    found = []
    for line in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            if str(share).encode() in line.read_bytes():
                found.append(line.parent.name)
        except OSError:  # ended meanwhile
            continue
    return found
