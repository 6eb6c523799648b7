"""The nodes of a plan, a line each: what `up`, `verify` and `status PLAN` print."""

from __future__ import annotations

from typing import TYPE_CHECKING

from .ranks import text_table

if TYPE_CHECKING:
    from ..mesh.agent.model import NodeStatus

COLUMNS = {"node": "<", "rank": ">", "plan": "<", "routes": ">", "rules": ">", "marks": ">", "made": ">", "state": "<"}


def table(states: dict[str, NodeStatus]) -> str:
    """One line per node, and the sum."""
    rows, total = [], [0, 0, 0, 0]
    for host, state in states.items():
        counts = [_count(state, "route "), _count(state, "rule "), _count(state, "mark"), _ours(state)]
        total = [a + b for a, b in zip(total, counts, strict=True)]
        shown = (host, str(state.rank), state.plan_hash[:12], *map(str, counts), state_of(state))
        rows.append(shown)
    rows.append(("total", "", "", *map(str, total), ""))
    return text_table(COLUMNS, rows)


def state_of(state: NodeStatus) -> str:
    """In a word, or with what is wrong."""
    if state.phase != "active":
        return state.phase
    errors = [item.code for item in state.findings if item.severity == "error"]
    return "ok" if not errors else ", ".join(dict.fromkeys(errors))


def as_dicts(states: dict[str, NodeStatus]) -> list[dict[str, object]]:
    import msgspec

    return [msgspec.to_builtins(state) for state in states.values()]


def _count(state: NodeStatus, kind: str) -> int:
    return sum(thing.key.startswith(kind) and thing.state == "same" for thing in state.things)


def _ours(state: NodeStatus) -> int:
    return sum(thing.ours and thing.state == "same" for thing in state.things)
