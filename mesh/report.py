"""The plan and the findings in words, for a terminal."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby

import msgspec

from .commands import down, up
from .finding import Finding
from .limits import HAIRPIN_STRIDE
from .model import Limits, Plan
from .propose import Proposal


def summary(plan: Plan, findings: Sequence[Finding]) -> Iterator[str]:
    """What was planned: ring, cables, counts per node, limits, and everything worth knowing."""
    size = f"{len(plan.hosts)} nodes, {_planes(plan)}, {len(plan.cables)} cable(s)"
    yield f"plan {plan.hash[:12]}: {plan.shape} of {size}"
    walk = [f"{plan.hosts[rank]} (rank {rank})" for rank in plan.ring]
    if plan.shape == "ring":
        walk.append(plan.hosts[plan.ring[0]])
    yield f"ring order: {' -> '.join(walk)}"
    yield ""
    yield from _table(
        ["cable", "", *(f"plane {plane}" for plane in plan.planes)],
        [
            [*(f"{plan.hosts[end.rank]} port {end.port}" for end in cable.ends), *cable.networks]
            for cable in plan.cables
        ],
    )
    yield ""
    yield from _table(_COUNT_HEAD, [*_counts(plan), _total(plan)])
    yield ""
    yield f"forwarding: {plan.forwarding}; {plan.proven}"
    yield from _limit_lines(plan.limits)
    if findings:
        yield ""
        yield from in_words(findings)


_MOST_PLACES = 4  # places named in one line of a finding that many ports share
_COUNT_HEAD = ["node", "rank", "position", "functions", "routes", "neighbours", "tc rules", "markers"]


def _counts(plan: Plan) -> Iterator[list[str]]:
    for node in plan.nodes:
        parts = (node.hcas, node.routes, node.neighbours, node.rules, node.markers)
        yield [node.host, str(node.rank), str(node.position), *(str(len(part)) for part in parts)]


def _total(plan: Plan) -> list[str]:
    columns = list(zip(*(row[3:] for row in _counts(plan)), strict=True))
    return ["total", "", "", *(str(sum(map(int, column))) for column in columns)]


def _limit_lines(limits: Limits) -> Iterator[str]:
    if limits.hairpin_packets is None:
        yield f"size cap: {limits.max_bytes} bytes per operation (nothing is forwarded, so no queue limits it)"
        return
    queue = f"hairpin queues of {limits.hairpin_packets} x {HAIRPIN_STRIDE} bytes, load {limits.load:g}"
    yield f"size cap: {limits.max_bytes} bytes per operation ({queue})"
    chunks = f"in chunks of {limits.chunk_bytes}"
    yield f"forward window: {limits.window_bytes} bytes unacknowledged per forwarded path, {chunks}"


def commands(plan: Plan) -> Iterator[str]:
    """The exact commands of every node, up and down."""
    for node in plan.nodes:
        yield f"# {node.host} (rank {node.rank}): up"
        yield from map(str, up(node))
        yield f"# {node.host} (rank {node.rank}): down"
        yield from map(str, down(node))
        yield ""


def proposal(found: Proposal) -> Iterator[str]:
    """The proposed order; its last line is what ``--tp-order`` takes."""
    if found.changed:
        now, then = found.relays_now, found.relays_then
        yield f"from each rank to the next, summed: {now} relay(s) in the present order, {then} in this one:"
    else:
        yield f"the present order has the fewest relays between consecutive ranks ({found.relays_now}):"
    yield ",".join(found.hosts)


def refusal(findings: Iterable[Finding]) -> Iterator[str]:
    """Every finding, errors first, then what to read."""
    found = tuple(findings)
    yield from in_words(found)
    errors = sum(item.severity == "error" for item in found)
    yield f"no plan: {errors} error(s); docs/troubleshooting.md explains each code"


def in_words(findings: Iterable[Finding]) -> Iterator[str]:
    """One line per finding, errors first; equal ones at several places in one line, and a fix they share only once."""
    order = {"error": 0, "warning": 1, "note": 2}
    groups: dict[tuple[str, str, str], list[Finding]] = {}
    for item in sorted(findings, key=lambda item: order[item.severity]):
        groups.setdefault((item.code, item.seen, item.expected), []).append(item)
    for fix, neighbours in groupby(map(_together, groups.values()), key=lambda item: item.fix):
        items = tuple(neighbours)
        if len(items) == 1:
            yield str(items[0])
        else:
            yield from (item.problem for item in items)
            yield f"fix for these {len(items)}: {fix}"


def _together(group: list[Finding]) -> Finding:
    first = group[0]
    if len(group) == 1:
        return first
    places = list(dict.fromkeys(item.where for item in group))
    where = ", ".join(places[:_MOST_PLACES])
    if len(places) > _MOST_PLACES:
        where += f" and {len(places) - _MOST_PLACES} more (--json lists all)"
    likewise = "" if len({item.fix for item in group}) == 1 else "; the others likewise"
    return msgspec.structs.replace(first, where=where, fix=first.fix + likewise)


def _planes(plan: Plan) -> str:
    return "two planes" if len(plan.planes) == 2 else f"plane {plan.planes[0]} only"


def _table(head: list[str], rows: list[list[str]]) -> Iterator[str]:
    widths = [max(len(row[column]) for row in [head, *rows]) for column in range(len(head))]
    for row in [head, *rows]:
        yield "  " + "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
