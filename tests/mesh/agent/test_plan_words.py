"""A plan comes from a file, and its words go into commands that root runs: none may be more than its field says."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest

from mesh.finding import Refused
from mesh.loading import load_facts, plan_from_json, plan_text
from mesh.model import Plan, with_hash
from mesh.planner import make_plan
from tests.mesh.agent.conftest import plan_of
from tests.mesh.rings import EXAMPLES


def signed(raw: dict[str, Any]) -> str:
    """The document with the hash that belongs to it: anybody can compute one."""
    return plan_text(with_hash(msgspec.convert(raw, Plan)))


@pytest.mark.parametrize(
    ("path", "word"),
    [
        (("nodes", 0, "hcas", 0, "netdev"), "eth0 up; reboot"),
        (("nodes", 0, "hcas", 0, "rdma"), "../../../etc/cron.d/x"),
        (("nodes", 0, "hcas", 0, "pci"), "0000:01:00.0 action"),
        (("nodes", 0, "hcas", 0, "address"), "10.0.0.1/24 dev lo"),
        (("nodes", 0, "hcas", 0, "mac"), "02:00:00:00:00:01 promisc on"),
        (("nodes", 0, "markers", 0, "rdma"), "-x"),
        (("nodes", 0, "markers", 0, "rdma"), "a" * 64),
        (("nodes", 0, "routes", 0, "destination"), "default"),
        (("nodes", 0, "routes", 0, "source"), "10.0.0.1 table 7"),
        (("nodes", 0, "neighbours", 0, "device"), "lo\nlink del eth0"),
        (("nodes", 0, "clsact", 0), "lo clsact"),
        (("nodes", 0, "rules", 0, "output"), "lo pipe"),
        (("nodes", 0, "rules", 0, "set_target_mac"), "x"),
        (("nodes", 0, "host"), "-oProxyCommand=x"),
        (("hosts", 0), "s1 s2"),
    ],
)
def test_a_word_that_is_more_than_its_field_says_is_refused(path: tuple[str | int, ...], word: str) -> None:
    raw: Any = json.loads(plan_text(plan_of("four-spark-ring")))
    place = raw
    for step in path[:-1]:
        place = place[step]
    place[path[-1]] = word
    with pytest.raises(Refused) as caught:
        plan_from_json(signed(raw), "the plan")
    (found,) = caught.value.findings
    assert found.code == "bad-value"
    assert "\n" not in str(found)


@pytest.mark.parametrize("name", [path.stem for path in sorted(EXAMPLES.glob("*.yaml"))])
def test_plans_of_the_planner_pass(name: str) -> None:
    plan, _ = make_plan(load_facts(EXAMPLES / f"{name}.yaml"))
    assert plan_from_json(plan_text(plan), "the plan") == plan
