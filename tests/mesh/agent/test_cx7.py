"""The agent on ConnectX-7 cards: which commands, in which order, and what it refuses. The card is a fake (card.py), the
markers are the real program on a fake rdma-core: nothing here is proof about hardware."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from pathlib import Path

import pytest

from mesh.agent import making
from mesh.agent.sensors import error_counters
from mesh.agent.state import StateError
from mesh.finding import Refused
from mesh.loading import plan_text
from mesh.snapshot import CommandFailed
from tests.marker.lab import until
from tests.mesh.agent.conftest import Bench, plan_of, small_queues

Markers = Callable[[], dict[str, int]]
GOLDEN = Path(__file__).parent / "golden"


def refusal(work: Callable[[], object]) -> list[str]:
    """The codes of all findings."""
    with pytest.raises(Refused) as caught:
        work()
    assert all("\n" not in str(item) and item.fix for item in caught.value.findings)
    return [item.code for item in caught.value.findings]


def kinds(commands: list[str]) -> list[str]:
    """What each command is about, repetitions folded."""
    words = {"ip link": "link", "devlink dev": "hairpin", "ip address": "address", "ip neigh": "neighbour"}
    words |= {"ip route": "route", "tc qdisc": "clsact", "tc filter": "rule"}
    found = ["marker" if "roce-ring-marker" in one else words[" ".join(one.split()[:2])] for one in commands]
    return [kind for at, kind in enumerate(found) if at == 0 or found[at - 1] != kind]


def bare(bench: Bench) -> None:
    """As after a boot that brought nothing back."""
    for hca in bench.node.hcas:
        bench.card.lose(hca.netdev)
        bench.card.sizes[hca.pci] = [1024, 1024, 0]
    bench.card.ran.clear()


@pytest.mark.parametrize(
    ("bench", "name"), [(plan_of(name), name) for name in ("four-spark-ring", "six-ring")], indirect=["bench"],
    ids=["one relay", "counted relays"],
)  # fmt: skip
def test_the_exact_commands_on_a_bare_node(bench: Bench, name: str) -> None:
    """What an operator reads with --dry-run before trusting the agent with a card, word for word."""
    bare(bench)
    _, found, steps = bench.agent().validate(bench.document, bench.node.host)
    assert found == []
    assert bench.card.ran == []  # a look changes nothing
    assert "\n".join(map(str, steps)) + "\n" == (GOLDEN / f"{name}.txt").read_text()


@pytest.mark.parametrize("bench", [plan_of("four-spark-ring"), plan_of("six-ring")], indirect=True, ids=["four", "six"])
def test_what_a_dry_run_prints_is_what_a_commit_runs(bench: Bench, markers: Markers) -> None:
    """Queues that are right, ports as planned: neighbours, routes, clsact, rules, and markers last."""
    agent = bench.agent()
    _, _, steps = agent.validate(bench.document, bench.node.host)
    bench.up(agent)
    ran = [*bench.card.ran, *(str(step) for step in steps if step.detached)]
    assert ran == [str(step) for step in steps if step.argv]
    assert kinds(ran) == ["neighbour", "route", "clsact", "rule", "marker"]
    assert sorted(markers()) == sorted(marker.rdma for marker in bench.node.markers)
    status = agent.status()
    assert (status.phase, status.dataplane, status.findings, status.healthy) == ("active", "cx7", (), True)


def test_a_commit_on_a_bare_node_goes_in_order(bench: Bench) -> None:
    """A rule before its address, or a marker before its rule, loses frames."""
    bare(bench)
    agent = bench.up()
    ran = bench.card.ran
    assert kinds(ran)[-4:] == ["neighbour", "route", "clsact", "rule"]
    assert [thing.state for thing in agent.status().things] == ["same"] * len(agent.status().things)
    for hca in bench.node.hcas:  # one function at a time: its reload is over before the next begins
        at = ran.index(f"devlink dev reload pci/{hca.pci} action driver_reinit")
        assert ran[at - 1 : at + 3] == [
            f"devlink dev param set pci/{hca.pci} name hairpin_queue_size value 8192 cmode driverinit",
            f"devlink dev reload pci/{hca.pci} action driver_reinit",
            f"ip link set dev {hca.netdev} mtu {hca.mtu} up",
            f"ip address replace {hca.address} dev {hca.netdev}",
        ]


def test_down_leaves_what_was_there_before(bench: Bench, markers: Markers) -> None:
    """A teardown is no cleaner and no dirtier than the node was."""
    before = bench.card.state()
    agent = bench.up()
    assert bench.card.state() != before
    assert agent.teardown() == []
    assert bench.card.state() == before
    assert markers() == {}
    assert (agent.status().phase, agent.status().things) == ("idle", ())


def test_what_stood_before_is_adopted_and_stays(bench: Bench) -> None:
    """Somebody set the plan up by hand: nothing runs, and a teardown leaves theirs alone."""
    for step in bench.agent().validate(bench.document, bench.node.host)[2]:
        if not step.detached:
            bench.card.run(step.argv)
    before = bench.card.state()
    bench.card.ran.clear()
    agent = bench.up()
    assert bench.card.ran == []
    agent.teardown()
    assert bench.card.state() == before


# what it refuses, before anything runs


def break_offload(bench: Bench) -> None:
    bench.card.offload[bench.node.hcas[2].netdev] = "off [fixed]"


def break_steering(bench: Bench) -> None:
    bench.card.steering[bench.node.hcas[2].pci] = "dmfs"


def lose_netdev(bench: Bench) -> None:
    del bench.card.links[bench.node.hcas[1].netdev]


def lose_rdma(bench: Bench) -> None:
    device = bench.sysfs / "class" / "infiniband" / bench.node.hcas[1].rdma
    device.rename(device.with_name("mlx5_7"))


def other_mac(bench: Bench) -> None:
    bench.card.links[bench.node.hcas[1].netdev]["mac"] = "02:ff:ff:ff:ff:ff"


def other_node(bench: Bench) -> None:
    for hca in bench.plan.nodes[2].hcas:
        bench.card.links[hca.netdev]["mac"] = hca.mac


def other_route(bench: Bench) -> None:
    route = bench.node.routes[0]
    words = f"ip route add {route.destination}/32 dev {route.device} src {route.source} scope global proto static"
    bench.card.run(tuple(words.split()))


def other_neighbour(bench: Bench) -> None:
    near = bench.node.neighbours[0]
    words = f"ip neigh replace {near.address} lladdr 02:00:00:00:00:77 dev {near.device} nud permanent"
    bench.card.run(tuple(words.split()))


def software_rule(bench: Bench) -> None:
    """Left by a hand that forgot skip_sw."""
    for step in bench.agent().validate(bench.document, bench.node.host)[2]:
        if step.argv[:2] in (("tc", "qdisc"), ("tc", "filter")):
            bench.card.run(tuple(word for word in step.argv if word != "skip_sw"))


REFUSED = {
    "offload off": (break_offload, ["offload-off"]),
    "steering mode": (break_steering, ["steering-mode"]),
    "no such netdev": (lose_netdev, ["device-missing"]),
    "no such RDMA device": (lose_rdma, ["device-missing"]),
    "a port's MAC": (other_mac, ["mac-differs"]),
    "another node": (other_node, ["wrong-node"]),
    "another route": (other_route, ["object-differs"]),
    "another neighbour": (other_neighbour, ["object-differs"]),
    "rules in software": (software_rule, ["rule-not-in-hardware"] * 2),
}


@pytest.mark.parametrize("case", REFUSED.values(), ids=REFUSED)
def test_what_is_wrong_is_found_before_anything_runs(
    bench: Bench, case: tuple[Callable[[Bench], None], list[str]]
) -> None:
    """Each has one clear outcome, and a node that is refused is a node that is untouched."""
    damage, codes = case
    damage(bench)
    bench.card.ran.clear()
    agent = bench.agent()
    assert refusal(lambda: bench.up(agent)) == codes
    assert bench.card.ran == []
    assert (agent.status().phase, agent.status().staged_hash) == ("idle", "")


def test_a_wrong_node_is_named(bench: Bench) -> None:
    """The usual mistake is two addresses swapped: say whose ports these are, once, not four times what differs."""
    other_node(bench)
    with pytest.raises(Refused, match=f"ports here have the MACs of {bench.plan.nodes[2].host}; .*send the plan to"):
        bench.up()


def test_a_tool_that_is_missing_is_named(bench: Bench) -> None:
    """Not only 'hw_tc_offload is not given', which is what follows from it."""
    bench.card.missing = {"ethtool"}
    _, found, _ = bench.agent().validate(bench.document, bench.node.host)
    assert any("'ethtool' is not installed" in item.seen for item in found)
    assert "offload-off" in {item.code for item in found}


def test_all_that_is_wrong_is_told_at_once(bench: Bench) -> None:
    """One trip to the machine room, not three."""
    for damage in (break_offload, break_steering, other_mac, other_route):
        damage(bench)
    codes = refusal(lambda: bench.up())
    assert set(codes) == {"offload-off", "steering-mode", "mac-differs", "object-differs"}


# what goes wrong on the way


def test_rules_that_do_not_reach_the_card_are_taken_back(bench: Bench, markers: Markers) -> None:
    """tc took them, and says not_in_hw: forwarding would be software's or nobody's, so nothing may stay."""
    before = bench.card.state()
    bench.card.in_hw = False
    agent = bench.agent()
    assert refusal(lambda: bench.up(agent)) == ["rule-not-in-hardware"] * 2
    assert bench.card.state() == before
    assert markers() == {}
    assert agent.status().phase == "idle"


@pytest.mark.parametrize("beginning", ["ip neigh replace", "ip route add", "tc qdisc add", "tc filter add"])
def test_a_command_that_fails_takes_all_back(bench: Bench, beginning: str, markers: Markers) -> None:
    """Nothing half-applied, whichever command it is; the kernel's own words are in the finding."""
    before = bench.card.state()
    bench.card.broken = {beginning: "RTNETLINK answers: Operation not supported"}
    agent = bench.agent()
    with pytest.raises(Refused, match=f"'{beginning} .* failed: RTNETLINK answers: Operation not supported"):
        bench.up(agent)
    assert bench.card.state() == before
    assert (agent.status().phase, markers()) == ("idle", {})
    bench.card.broken = {}
    assert bench.up(agent).status().healthy


@pytest.mark.expected_warnings("object-failed")
def test_what_cannot_be_taken_back_is_told_and_tried_again(bench: Bench) -> None:
    """A teardown that fails in the middle is not forgotten with the rest."""
    agent = bench.up()
    before = len(bench.card.routes)
    bench.card.broken = {"ip route del": "RTNETLINK answers: Device or resource busy"}
    left = agent.teardown()
    assert [item.code for item in left] == ["object-failed"] * 2
    assert agent.status().phase == "removing"
    assert not any(thing.key.startswith("rule ") for thing in agent.status().things if thing.state == "same")
    bench.card.broken = {}
    agent.tick()
    assert (agent.status().phase, len(bench.card.routes)) == ("idle", before - 2)


@pytest.mark.expected_warnings("an apply was interrupted")
@pytest.mark.parametrize(
    "mended",
    [
        pytest.param(True, id="it works now"),
        pytest.param(False, id="it still fails", marks=pytest.mark.expected_warnings("apply-interrupted: .*says no")),
    ],
)
def test_an_apply_that_died_is_finished_or_taken_back_whole(bench: Bench, mended: bool) -> None:
    """Also what the first process had made before it died, not only what the second one made."""
    before = bench.card.state()

    def die(command: str) -> None:
        if command.startswith("tc filter add"):
            raise KeyboardInterrupt

    bench.card.before = die
    with pytest.raises(KeyboardInterrupt):
        bench.up()
    bench.card.before = lambda command: None
    if not mended:
        bench.card.broken = {"tc filter add": "Error: driver says no"}
    agent = bench.agent()
    assert agent.status().plan_hash == bench.plan.hash  # known before the first look
    if mended:
        agent.tick()
        assert agent.status().healthy
        assert agent.teardown() == []
    else:
        agent.tick()
        assert [item.code for item in agent.status().findings] == ["apply-interrupted"]
    assert bench.card.state() == before
    assert agent.status().phase == "idle"


# hairpin queues


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(making, "_BACK_POLL_S", 0.001)


def reloads(bench: Bench) -> list[str]:
    return [one for one in bench.card.ran if one.startswith("devlink dev reload")]


@pytest.mark.parametrize("bench", [small_queues()], indirect=True)
def test_a_reloaded_function_is_waited_for(bench: Bench, quick: None) -> None:
    """udev gives the netdev its name seconds after the reload is done."""
    bare(bench)
    bench.card.away = 5
    assert bench.up().status().healthy
    assert bench.card.away <= -4


@pytest.mark.parametrize("bench", [small_queues()], indirect=True)
def test_a_queue_is_resized_under_rules_that_stand(bench: Bench, markers: Markers) -> None:
    """The reload takes neighbours, routes and rules of the function with it: the same call makes them again. Its marker
    ends before, not under it."""
    agent = bench.up()
    held = markers()
    for size in bench.card.sizes.values():
        size[:] = [1024, 1024, 0]
    bench.card.ran.clear()
    bench.up(agent)
    assert len(reloads(bench)) == 4
    assert [one.split()[-1] for one in bench.card.ran[:2]] == ["--stop", "--stop"]
    assert agent.status().healthy
    assert {thing.state for thing in agent.status().things} == {"same"}
    assert markers().keys() == held.keys() and not set(markers().values()) & set(held.values())


@pytest.mark.parametrize("bench", [small_queues()], indirect=True)
def test_nothing_is_reloaded_under_a_lease_unless_forced(bench: Bench) -> None:
    """A reload kills the queue pairs of whoever runs."""
    agent = bench.up()
    bench.card.sizes[bench.node.hcas[0].pci] = [1024, 1024, 0]
    lease = agent.lease("decode", "rank 0 of decode", bench.plan.hash)
    bench.card.ran.clear()
    with pytest.raises(
        Refused, match=r"rank 0 of decode runs, and setting hairpin queue .* would cut it off"
    ) as caught:
        bench.up(agent)
    assert [item.code for item in caught.value.findings] == ["lease-held"]
    assert bench.card.ran == []
    bench.up(agent, force=True)
    assert len(reloads(bench)) == 1
    agent.leases.drop(lease)


@pytest.mark.expected_warnings("hairpin-small")
@pytest.mark.parametrize("bench", [small_queues()], indirect=True)
def test_a_reload_that_fails_is_told_once_and_tried_again_only_when_asked(bench: Bench) -> None:
    """The plan stands on the queue as it was; no watch, restart or boot brings the function down again."""
    pci = bench.node.hcas[0].pci
    for size in bench.card.sizes.values():
        size[:] = [1024, 1024, 0]
    bench.card.broken = {f"devlink dev reload pci/{pci}": "kernel answers: Input/output error"}
    agent = bench.up()
    (found,) = agent.status().findings
    assert (found.code, found.severity) == ("hairpin-small", "warning")
    assert "Input/output error" in found.seen
    assert agent.status().healthy
    told = [event for event in agent.events(0, 0) if "hairpin-small" in event.text]
    bench.card.broken = {}
    bench.card.ran.clear()
    agent.tick()
    agent = bench.agent()  # a restart
    agent.tick()
    bench.boot()
    agent = bench.agent()
    agent.tick()
    assert agent.status().phase == "active"
    assert not [one for one in reloads(bench) if pci in one]
    assert [item.code for item in agent.status().findings] == ["hairpin-small"]
    assert len(told) == 1
    bench.up(agent)
    assert [one for one in reloads(bench) if pci in one]
    assert agent.status().findings == ()


@pytest.mark.expected_warnings("an apply was interrupted", "hairpin-small")
@pytest.mark.parametrize("bench", [small_queues()], indirect=True)
def test_a_reload_that_takes_the_machine_down_is_not_repeated_at_boot(bench: Bench) -> None:
    """Else a card with bad firmware boots its node forever."""
    pci = bench.node.hcas[0].pci
    for size in bench.card.sizes.values():
        size[:] = [1024, 1024, 0]

    def die(command: str) -> None:
        if command.startswith("devlink dev reload"):
            raise KeyboardInterrupt

    bench.card.before = die
    with pytest.raises(KeyboardInterrupt):
        bench.up()
    bench.card.before = lambda command: None
    bench.boot()
    bench.card.ran.clear()
    agent = bench.agent()
    agent.tick()
    assert agent.status().phase == "active"
    assert not [one for one in reloads(bench) if pci in one]
    assert len(reloads(bench)) == 3


@pytest.mark.expected_warnings("hairpin-failed")
def test_a_queue_that_the_size_limits_count_on_is_an_error(bench: Bench) -> None:
    """Planned at 8192: sessions may send what 1024 would drop."""
    bench.card.sizes[bench.node.hcas[0].pci] = [1024, 1024, 0]
    bench.card.broken = {"devlink dev reload": "kernel answers: Input/output error"}
    agent = bench.up()
    assert [(item.code, item.severity) for item in agent.status().findings] == [("hairpin-failed", "error")]
    assert not agent.status().healthy


# a boot, and the watch


def kill(markers: Markers, count: int) -> None:
    left = len(markers()) - count
    for pid in list(markers().values())[:count]:
        os.kill(pid, signal.SIGKILL)
    until(lambda: len(markers()) == left, "markers end")


def test_after_a_boot_everything_comes_back(bench: Bench, markers: Markers) -> None:
    """MTUs, queues, addresses, rules and markers; only what the agent itself made is its own again."""
    agent = bench.up()
    wanted = bench.card.state()
    kill(markers, 2)
    bench.boot()
    for hca in bench.node.hcas:
        bench.card.links[hca.netdev]["addresses"] = []  # nothing configured them
    agent = bench.agent()
    agent.tick()
    assert agent.status().healthy, [str(item) for item in agent.status().findings]
    assert {thing.state for thing in agent.status().things} == {"same"}
    assert len(markers()) == 2
    assert sorted(map(str, bench.card.state()[0].items())) == sorted(map(str, wanted[0].items()))  # type: ignore[index]


def test_an_agent_that_dies_before_it_made_a_booted_node_whole_leaves_that_to_the_next(bench: Bench) -> None:
    """The next one finds the same boot id, and must not take the node for a running one, whose MTUs it leaves."""
    bench.up()
    bench.boot()
    bench.agent()  # looked at its state, and died
    agent = bench.agent()
    agent.tick()
    assert {thing.state for thing in agent.status().things} == {"same"}


@pytest.mark.expected_warnings("gone, and made again")
def test_the_watch_mends_what_interrupts_nobody(bench: Bench, markers: Markers) -> None:
    """Rules, routes, neighbours and a marker that was killed."""
    agent = bench.up()
    kill(markers, 1)
    netdev = bench.node.clsact[0]
    bench.card.filters.pop((netdev, "ingress"))
    bench.card.routes = [one for one in bench.card.routes if one["protocol"] == "kernel"]
    agent.tick()
    assert agent.status().healthy
    assert {thing.state for thing in agent.status().things} == {"same"}
    assert len(markers()) == 2


@pytest.mark.expected_warnings("object-missing")
def test_the_watch_sets_no_mtu_and_says_so(bench: Bench) -> None:
    """NetworkManager took it back: setting it would cut sessions off, so that waits for 'roce-ring up'."""
    agent = bench.up()
    bench.card.links[bench.node.hcas[0].netdev]["mtu"] = 1500
    bench.card.ran.clear()
    agent.tick()
    assert bench.card.ran == []
    assert [item.code for item in agent.status().findings] == ["object-missing"]


@pytest.mark.expected_warnings("device-missing", "gone, and made again")
def test_a_function_that_vanishes_ends_nothing_but_its_own_paths(bench: Bench) -> None:
    """Its netdev is gone while somebody reloads it: the agent lives, says it once, and still mends the others."""
    agent = bench.up()
    away = bench.node.clsact[0]
    link = bench.card.links.pop(away)
    other = next(route for route in bench.node.routes if route.device != away)
    bench.card.routes = [one for one in bench.card.routes if one["dst"] != other.destination]
    bench.card.filters = {place: found for place, found in bench.card.filters.items() if place[0] != away}
    bench.card.clsact.remove(away)
    for _ in range(3):
        agent.tick()
    assert "device-missing" in {item.code for item in agent.status().findings}
    assert other.destination in {one["dst"] for one in bench.card.routes}
    texts = [event.text for event in agent.events(0, 0)]
    assert len(texts) == len(set(texts))
    bench.card.links[away] = link
    agent.tick()
    agent.tick()
    assert agent.status().healthy


@pytest.mark.expected_warnings("rdma-errors")
def test_rising_counters_are_findings_until_they_rest(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """Drops of a full hairpin queue show in no RDMA counter, only in 'ethtool -S' of the relay."""
    agent = bench.up()
    hca = bench.node.hcas[2]
    path = bench.sysfs / "class" / "infiniband" / hca.rdma / "ports" / "1" / "hw_counters" / "out_of_sequence"
    path.write_text("3\n")
    bench.card.links[hca.netdev]["dropped"] = 7
    agent.tick()
    seen = {item.where: item.seen for item in agent.status().findings}
    assert any("out_of_sequence" in where and "rose by 3" in text for where, text in seen.items())
    assert any("rx_out_of_buffer" in where and "rose by 7" in text for where, text in seen.items())
    assert error_counters(bench.node, bench.sysfs)[f"{hca.rdma} out_of_sequence"] == 3
    assert agent.status().healthy  # a warning
    monkeypatch.setattr("mesh.agent.sensors.RISE_SHOWN_S", 0.0)
    agent.tick()
    assert agent.status().findings == ()


# whose agent, which plan


def test_another_plan_is_refused_while_one_stands(bench: Bench) -> None:
    """Never half of one and half of the other; a restart does not open a gap."""
    bench.up()
    other = plan_of("four-ring-in-order")
    agent = bench.agent()  # has not looked yet
    codes = refusal(lambda: agent.stage(plan_text(other), other.nodes[0].host))
    assert "plan-conflict" in codes
    assert agent.status().plan_hash == bench.plan.hash


def test_teardown_right_after_a_restart_takes_back_everything(bench: Bench) -> None:
    """A call may come before the first look; it must not find an agent that remembers nothing."""
    before = bench.card.state()
    bench.up()
    assert bench.agent().teardown() == []
    assert bench.card.state() == before


@pytest.mark.expected_warnings("device-missing")
def test_devices_that_are_not_there_yet_forget_no_plan(bench: Bench) -> None:
    """At boot the driver may load after the agent has started."""
    bench.up()
    hidden = bench.sysfs / "class" / "hidden"
    (bench.sysfs / "class" / "infiniband").rename(hidden)
    agent = bench.agent()
    agent.tick()
    assert (agent.status().phase, agent.status().plan_hash) == ("active", bench.plan.hash)
    assert refusal(agent.teardown) == ["device-missing"]
    hidden.rename(bench.sysfs / "class" / "infiniband")
    agent.tick()
    assert agent.status().healthy


def test_what_was_staged_is_what_is_committed(bench: Bench) -> None:
    """A hash that nobody staged changes nothing."""
    agent = bench.agent()
    assert refusal(lambda: agent.commit(bench.plan.hash)) == ["not-staged"]
    agent.stage(bench.document, bench.node.host)
    assert refusal(lambda: agent.commit("0" * 64)) == ["not-staged"]
    assert bench.card.ran == []


def test_staging_again_does_not_hide_what_is_known(bench: Bench) -> None:
    """'roce-ring up' on a plan that stands: whoever watches meanwhile still sees its things."""
    agent = bench.up()
    agent.stage(bench.document, bench.node.host)
    assert agent.status().things
    assert agent.status().staged_hash == bench.plan.hash


@pytest.mark.expected_warnings("no space left on device")
def test_a_full_disk_refuses_and_changes_nothing(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is not written down may not be made: nobody would know whose it is."""

    def full(*_: object) -> None:
        raise StateError("state file x cannot be written: no space left on device")

    before = bench.card.state()
    agent = bench.agent()
    agent.stage(bench.document, bench.node.host)
    monkeypatch.setattr("mesh.agent.agent.save", full)
    with pytest.raises(Refused, match="no space left on device"):
        agent.commit(bench.plan.hash)
    assert bench.card.state() == before
    assert agent.status().phase == "idle"


@pytest.mark.expected_warnings("object-failed: .*'ip' is not installed here")
def test_an_agent_whose_tools_are_gone_says_so_and_lives(bench: Bench) -> None:
    """iproute2 was removed under it."""
    agent = bench.up()

    def gone(*_: object, **__: object) -> str:
        raise CommandFailed("'ip' is not installed here; it comes with iproute2")

    bench.card._answer = gone  # type: ignore[method-assign]
    agent.tick()
    assert not agent.status().healthy
    assert {item.code for item in agent.status().findings} == {"object-failed"}
