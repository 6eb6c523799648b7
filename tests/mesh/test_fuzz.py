"""Whatever is wrong with the facts, the planner answers with findings and never with another exception."""

from __future__ import annotations

from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from mesh import report
from mesh.finding import Finding, Refused
from mesh.planner import make_plan
from tests.mesh.rings import document, facts, ring_cables

junk = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-1, 10**6),
    st.floats(allow_nan=False),
    st.text(max_size=8),
    st.sampled_from(["10.10.0.10/24", "10.10.1.10/24", "10.20.0.11/24", "10.0.0.0/8", "::1/64", "n1"]),
    st.just([]),
    st.just({}),
)  # fmt: skip


def leaves(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """The path of every node of a parsed document, containers included."""
    children = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [path, *(found for key, child in children for found in leaves(child, (*path, key)))]


def attempt(raw: Any) -> None:
    findings: tuple[Finding, ...] = ()
    try:
        plan, found = make_plan(facts(raw))
    except Refused as refused:
        findings = refused.findings
    else:
        assert list(report.summary(plan, found))
        return
    assert findings
    assert all(item.where and item.seen and item.expected and item.fix for item in findings)
    assert list(report.refusal(findings))


@settings(max_examples=80, deadline=None)
@given(st.data())
def test_any_value_anywhere(data: st.DataObject) -> None:
    """Replace or remove up to three values of a good document by anything."""
    size = data.draw(st.integers(2, 5))
    raw: Any = document(size, ring_cables(size))
    for _ in range(data.draw(st.integers(1, 3))):
        path = data.draw(st.sampled_from(leaves(raw)[1:]))
        target = raw
        for key in path[:-1]:
            target = target[key]
        if data.draw(st.booleans()):
            target[path[-1]] = data.draw(junk)
        else:
            del target[path[-1]]
        if not leaves(raw)[1:]:
            break
    attempt(raw)


@settings(max_examples=80, deadline=None)
@given(st.data())
def test_any_cabling(data: st.DataObject) -> None:
    """Shuffle, repeat and drop addresses among all ports of a ring: a plan or findings."""
    size = data.draw(st.integers(2, 6))
    raw: Any = document(size, ring_cables(size))
    places = [(node["ipv4"], name) for node in raw["nodes"] for name in list(node["ipv4"])]
    for _ in range(data.draw(st.integers(1, 4))):
        (one, a), (two, b) = data.draw(st.sampled_from(places)), data.draw(st.sampled_from(places))
        kind = data.draw(st.sampled_from(["swap", "copy subnet", "drop"]))
        if a not in one or b not in two:
            continue
        if kind == "swap":
            one[a], two[b] = two[b], one[a]
        elif kind == "copy subnet":
            one[a] = f"{two[b].rsplit('.', 1)[0]}.{data.draw(st.integers(20, 250))}/24"
        else:
            del one[a]
    attempt(raw)
