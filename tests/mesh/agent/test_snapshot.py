"""Looks at the kernel: what iproute2 6.1 really printed (recorded/), what other versions print, and what is no answer.
And the fake card answers in the same form."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from mesh.agent.dataplane import Soft
from mesh.agent.seeing import look
from mesh.finding import Refused
from mesh.model import NodePlan
from mesh.snapshot import CommandFailed, Route, Snapshot, read, run_command
from mesh.things import Address, Clsact, LinkUp, Thing, in_software
from tests.mesh.agent.card import Card
from tests.mesh.agent.conftest import plan_of

RECORDED = Path(__file__).parent / "recorded"
Edit = Callable[[str, str], str]  # (command, its output) -> what another iproute2 would have printed


def recorded(name: str, edit: Edit = lambda command, text: text) -> Snapshot:
    """What a look saw on a Soft-RoCE ring."""
    said = json.loads((RECORDED / f"{name}.json").read_text())

    def run(argv: tuple[str, ...], stdin: str = "") -> str:
        command = " ".join(argv).removesuffix(" -")
        return edit(command, "\n".join(said[command]) + "\n")

    return read(run)


def node(name: str) -> NodePlan:
    return plan_of(name).nodes[0]


def sights(name: str, now: Snapshot) -> dict[str, str]:
    return {thing.key: thing.sight(now).state for thing in in_software(node(name))}


@pytest.mark.parametrize(("name", "plan"), [("four-ring-up", "four-spark-ring"), ("six-ring-up", "six-ring")])
def test_a_plan_that_stands_is_seen_to_stand(name: str, plan: str) -> None:
    """Every kind of thing, as a real kernel showed it."""
    seen = sights(plan, recorded(name))
    assert len(seen) > 12
    assert set(seen.values()) == {"same"}


def test_what_somebody_else_has_is_read_without_confusion() -> None:
    """A matchall filter, an unreachable route, a neighbour that failed, a port that is down: none of it is ours."""
    now = recorded("four-ring-foreign")
    plan = node("four-spark-ring")
    seen = {key for key, state in sights("four-spark-ring", now).items() if state != "same"}
    down = plan.hcas[1].netdev
    assert seen == {f"link {down} mtu 9000"}
    assert (now.links[down].up, now.links[down].mtu) == (False, 1500)
    assert now.routes["10.98.0.0/16"] == (Route("", "", "global", "boot", ""),)
    assert now.routes["10.99.0.0/24"][0].gateway == "10.10.0.77"
    assert ("10.99.0.2", plan.hcas[0].netdev) not in now.neighbours  # it has no MAC
    kinds = {item.kind for found in now.filters.values() for item in found}
    assert kinds == {"flower", "matchall"}
    assert Clsact(plan.hcas[0].netdev).in_use(now) == "2 filter(s) of somebody else hang on it"


def old_handles(command: str, text: str) -> str:
    """tc before 5.x printed a handle as hexadecimal text."""
    for number in (49152, 49153):
        text = text.replace(f'"handle":{number},', f'"handle":"{number:#x}",')
    return text


def no_empty_documents(command: str, text: str) -> str:
    """Some print nothing at all where there is nothing."""
    return "" if command == "tc -j qdisc show" else text


def spread_out(command: str, text: str) -> str:
    """-p, or a build that prints one value a line."""
    return "\n".join(json.dumps(json.loads(line), indent=2) for line in text.splitlines() if line)


@pytest.mark.parametrize("edit", [old_handles, spread_out])
def test_other_versions_say_the_same_in_other_words(edit: Edit) -> None:
    assert recorded("four-ring-up", edit) == recorded("four-ring-up")


def test_no_qdisc_at_all_is_no_error() -> None:
    now = recorded("four-ring-up", no_empty_documents)
    assert (now.clsact, now.filters) == (frozenset(), {})


def cut(command: str, text: str) -> str:
    return text[: len(text) // 2]


def words(command: str, text: str) -> str:
    return 'Object "-j" is unknown, try "ip help".\n'


def one_less(command: str, text: str) -> str:
    return "\n".join(text.splitlines()[1:])


def numbers(command: str, text: str) -> str:
    return "\n".join("[1, 2]" for line in text.splitlines())


def no_names(command: str, text: str) -> str:
    return text.replace('"dst":', '"to":').replace('"dev":', '"on":')


def odd_pedit(command: str, text: str) -> str:
    return text.replace('"val":"88b50000"', '"val":"what"')


@pytest.mark.parametrize("edit", [cut, words, one_less, numbers, no_names, odd_pedit])
def test_an_answer_that_is_none_is_one_sentence(edit: Edit) -> None:
    """An agent on an unknown iproute2 says so and lives."""
    with pytest.raises(CommandFailed, match=r"^iproute2 printed ") as caught:
        recorded("four-ring-up", edit)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("argv", "said"),
    [
        (("no-such-tool", "x"), "'no-such-tool' is not installed here"),
        (("sh", "-c", "echo oh >&2; echo no >&2; exit 3"), "failed: oh no"),
        (("false",), "'false' failed: exit status 1"),
        (("sleep", "9"), "'sleep 9' did not end within 0.2 s"),
        (("/etc",), "'/etc' cannot be run: permission denied"),
    ],
)
def test_a_command_that_fails_is_one_sentence(argv: tuple[str, ...], said: str) -> None:
    with pytest.raises(CommandFailed) as caught:
        run_command(argv, timeout_s=0.2 if argv[0] == "sleep" else 10)
    assert said in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_node_that_is_too_busy_is_not_told_to_install_anything() -> None:
    def stuck(argv: tuple[str, ...], stdin: str = "") -> str:
        return run_command(("sleep", "9"), timeout_s=0.05)

    with pytest.raises(Refused) as refused:
        look(Soft(stuck), node("four-spark-ring"))
    (item,) = refused.value.findings
    assert (item.code, item.fix.split(",")[0]) == ("object-failed", "the node is overloaded")


def test_a_child_that_keeps_the_pipe_does_not_keep_us() -> None:
    """What a hook of ip leaves in the background must not hold the agent beyond the time limit."""
    with pytest.raises(CommandFailed, match="did not end within"):
        run_command(("sh", "-c", "sleep 2 & exit 0"), timeout_s=0.3)


@pytest.mark.parametrize(("name", "plan"), [("four-ring-up", "four-spark-ring"), ("six-ring-up", "six-ring")])
def test_the_fake_card_shows_what_a_kernel_showed(name: str, plan: str, tmp_path: Path) -> None:
    """The same commands, the same look: what the tests on the fake card see has the form of the real thing."""
    card = Card(node(plan), tmp_path)
    for thing in in_software(node(plan)):
        if not isinstance(thing, LinkUp | Address):
            for step in thing.make():
                card.run(step.argv)
    real, fake = recorded(name), read(card.run)
    ports = {hca.netdev for hca in node(plan).hcas}
    assert {key: link for key, link in real.links.items() if key in ports} == fake.links
    assert {key: found for key, found in real.routes.items() if found[0].device in ports} == fake.routes
    assert real.neighbours == fake.neighbours
    assert real.clsact == fake.clsact
    assert {k: tuple(map(uncounted, v)) for k, v in real.filters.items() if v} == {
        k: v for k, v in fake.filters.items() if v
    }


def uncounted(item: Any) -> Any:
    return msgspec.structs.replace(item, packets=0, bytes=0)


# how a thing is told from what only looks like it

NODE = node("four-spark-ring")
SAME = recorded("four-ring-up")


def thing(kind: str) -> Thing:
    return next(one for one in in_software(NODE) if one.key.startswith(kind))


def without(now: Snapshot, kind: str) -> Snapshot:
    empty: dict[str, Any] = {
        "route ": {"routes": {}}, "neighbour ": {"neighbours": {}}, "qdisc ": {"clsact": frozenset()},
        "rule ": {"filters": {}}, "mark ": {"filters": {}},
        "address ": {"links": {name: msgspec.structs.replace(link, addresses=()) for name, link in now.links.items()}},
        "link ": {"links": {name: msgspec.structs.replace(link, mtu=1500) for name, link in now.links.items()}},
    }  # fmt: skip
    return msgspec.structs.replace(now, **empty[kind])


@pytest.mark.parametrize("kind", ["link ", "address ", "neighbour ", "route ", "qdisc ", "rule ", "mark "])
def test_each_kind_is_the_same_or_absent(kind: str) -> None:
    assert thing(kind).sight(SAME).state == "same"
    assert thing(kind).sight(without(SAME, kind)).state == "absent"


def changed_filters(**values: Any) -> Snapshot:
    changed = {
        place: tuple(msgspec.structs.replace(one, **values) for one in found) for place, found in SAME.filters.items()
    }
    return msgspec.structs.replace(SAME, filters=changed)


FILTERS = {
    "another kind": {"kind": "u32"},
    "another EtherType": {"ethertype": 0x88B6},
    "another handle": {"handle": 7},
    "a narrower match": {"match": {"src_mac": "02:00:00:00:00:99"}},
    "another rewrite": {"rewrite": {12: 8, 13: 0}},
    "one more action": {"other": ("police",)},
    "another way out": {"output": "egress lo"},
}


@pytest.mark.parametrize("values", FILTERS.values(), ids=FILTERS)
@pytest.mark.parametrize("kind", ["rule ", "mark "])
def test_a_filter_in_our_place_that_differs_is_not_ours(kind: str, values: dict[str, Any]) -> None:
    """Adopting it would pass frames elsewhere, replacing it would break somebody's."""
    sight = thing(kind).sight(changed_filters(**values))
    assert (sight.state, sight.code) == ("other", "object-differs")
    assert sight.seen


def test_two_filters_at_our_preference_are_not_ours() -> None:
    twice = msgspec.structs.replace(SAME, filters={place: found * 2 for place, found in SAME.filters.items()})
    assert thing("rule ").sight(twice).seen == "2 filters at preference 49152"


ROUTE, NEAR = NODE.routes[0], NODE.neighbours[0]


def routed(device: str = ROUTE.device, protocol: str = "82", gateway: str = "") -> dict[str, Any]:
    return {"routes": {ROUTE.destination: (Route(device, ROUTE.source, "link", protocol, gateway),)}}


def with_address(netdev: str) -> dict[str, Any]:
    link = msgspec.structs.replace(SAME.links[netdev], addresses=(NODE.hcas[0].address,))
    return {"links": {**SAME.links, netdev: link}}


OTHERS: dict[str, tuple[str, dict[str, Any]]] = {
    "a route by a gateway": ("route ", routed(gateway="10.0.0.1")),
    "a route by another port": ("route ", routed(device="lo")),
    "a route of another protocol": ("route ", routed(protocol="boot")),
    "another MAC for good": (
        "neighbour ",
        {"neighbours": {(NEAR.address, NEAR.device): ("02:00:00:00:00:99", True)}},
    ),
    "the older qdisc": ("qdisc ", {"ingress": frozenset(NODE.clsact), "clsact": frozenset()}),
    "the address on two ports": ("address ", with_address("lo")),
    "no such port": ("link ", {"links": {}}),
}


@pytest.mark.parametrize("case", OTHERS.values(), ids=OTHERS)
def test_something_else_in_a_things_place_is_said(case: tuple[str, dict[str, Any]]) -> None:
    kind, values = case
    sight = thing(kind).sight(msgspec.structs.replace(SAME, **values))
    assert sight.state == "other"
    assert sight.seen


def test_what_the_kernel_learnt_by_itself_may_be_replaced() -> None:
    """It asked for the far port's MAC before the plan stood: not a conflict."""
    place = (NODE.neighbours[0].address, NODE.neighbours[0].device)
    now = msgspec.structs.replace(SAME, neighbours={place: ("02:00:00:00:00:99", False)})
    assert thing("neighbour ").sight(now).state == "absent"
