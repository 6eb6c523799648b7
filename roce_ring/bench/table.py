"""The result as text: a table in nccl-tests' manner, or JSON."""

from __future__ import annotations

import os
from collections.abc import Iterable

from .cases import GLOO, GRAPH_OPS, Case, Spec
from .job import Result, Row
from .parts import NAMES

SCHEMA = "roce-ring/bench/v1"
_SHARED = {
    "processes": "a process each",
    "mps": "processes under an MPS daemon of this run",
}
TARGET = 3.0  # times as fast as gloo, at every size


def render(result: Result, spec: Spec) -> str:
    compare = gloo_medians(result)
    lines = [*_preamble(result, spec), "#", _head(bool(compare))]
    lines += [_line(row, result.world, compare) for row in result.rows]
    lines += _profile(result)
    return "\n".join([*lines, "#", *("# " + line for line in summary(result))])


def _preamble(result: Result, spec: Spec) -> list[str]:
    first = result.ranks[0]
    why = "; threads outnumber the CPUs, so those that wait sleep" if first.crowded else ""
    more = ", alignments and repeats" if spec.thorough else ""
    on = (
        f"{first.cpus} CPUs, kernels cpu-{first.isa}"
        if spec.device == "cpu"
        else f"{first.device}, {_SHARED[spec.share]}"
    )
    sample = "samples" if spec.device == "cpu" else f"replays of {GRAPH_OPS} operations in a graph"
    return [
        f"# roce-ring bench: {result.world} ranks over {first.provider} on {on}",
        *(f"#   rank {one.rank:2} on {one.host} pid {one.pid}" for one in result.ranks),
        f"# idle policy: {first.idle_spins} polls, then naps of {first.nap_us} us{why}",
        f"# memory of a rank, bytes: {', '.join(f'{name} {size:,}' for name, size in first.memory.items())}",
        f"# other programs used {result.others:.0%} of the CPUs while this ran",
        f"# {result.rows[0].us.samples} {sample} a row, out of place; ranks meet before each, the slowest rank counts",
        "# size in bytes, rounded up to whole elements; count per rank for all_gather and reduce_scatter",
        f"# time in us, bandwidth in GB/s; wrong: elements, over all checked results of all ranks{more}",
        "# * the mode that all_reduce takes by itself",
    ]


def _profile(result: Result) -> list[str]:
    """Where the time goes: means over all samples and ranks, as block 0's lead thread saw it."""
    rows = [row for row in result.rows if row.parts and not row.wrong.total]
    if not rows:
        return []
    lines = [
        "#",
        "# where an operation's time goes, us, mean of all ranks: staging the payload; other blocks and command;",
        "# waiting for peers; adding up and copying on and out; then, on a GPU, until the next operation of the graph",
        f"#{'size':>10} {'dtype':>9} {'op':>14} {'mode':<22}" + "".join(f" {one:>9}" for one in (*NAMES, "between")),
    ]
    for row in rows:
        assert row.parts
        case = row.case
        parts = "".join(f" {'-' if us is None else f'{us:.2f}':>9}" for us in row.parts.us().values())
        lines.append(f" {case.bytes:>10} {case.dtype:>9} {case.op:>14} {case.label or '-':<22}{parts}")
    return lines


def _head(compare: bool) -> str:
    names = f"{'size':>10} {'count':>10} {'dtype':>9} {'op':>14} {'mode':<22}"
    times = f"{'median':>9} {'p99':>9} {'max':>9} {'algbw':>8} {'busbw':>8}"
    wrong = f"{'wrong':>7} {'in place':>8} {'bits':>6}"
    return f"#{names} {times} {wrong}{' vs gloo' if compare else ''}"


def _line(row: Row, world: int, gloo: dict[tuple[str, int], float]) -> str:
    case, us, wrong = row.case, row.us, row.wrong
    text = f" {case.bytes:>10} {case.count:>10} {case.dtype:>9} {case.op:>14} {case.label or '-':<22}"
    if wrong.total:
        # How fast a wrong answer came is nobody's business.
        text += f" {'-':>9} {'-':>9} {'-':>9} {'-':>8} {'-':>8}"
    else:
        text += f" {us.median:9.1f} {us.p99:9.1f} {us.maximum:9.1f} {row.algbw():8.3f} {row.busbw(world):8.3f}"
    text += f" {wrong.out:>7} {wrong.in_place:>8} {wrong.bits:>6}"
    if _cell(case) in gloo and case.mode not in ("", GLOO) and not wrong.total:
        text += f" {gloo[_cell(case)] / us.median:6.1f}x"
    return text


def gloo_medians(result: Result) -> dict[tuple[str, int], float]:
    return {(row.case.dtype, row.case.bytes): row.us.median for row in result.rows if row.case.mode == GLOO}


def summary(result: Result) -> list[str]:
    bad = [row for row in result.rows if row.wrong.total]
    if bad:
        worst = max(bad, key=lambda row: row.wrong.total)
        lines = [f"wrong values: {result.wrong}, in {len(bad)} of {len(result.rows)} rows"]
        lines.append(f"worst: {name(worst.case)} with {worst.wrong.total}")
    else:
        lines = [f"wrong values: 0 (ok), rows: {len(result.rows)}"]
    ours = [row for row in result.rows if row.case.mode not in ("", GLOO) and not row.wrong.total]
    best = fastest(ours)
    if len(ours) > len(best):
        lines.append("fastest mode by median:")
        lines += [
            f"  {row.case.bytes:>10} B {row.case.dtype:>9}: {row.case.mode}, {row.us.median:.1f} us"
            for row in best.values()
        ]
    compare = gloo_medians(result)
    ratios = {key: compare[key] / row.us.median for key, row in best.items() if key in compare}
    if ratios:
        slow = [f"{size} B {dtype} ({ratio:.1f}x)" for (dtype, size), ratio in ratios.items() if ratio < TARGET]
        lines.append(f"{min(ratios.values()):.1f}x to {max(ratios.values()):.1f}x as fast as gloo")
        lines.append(f"below the target of {TARGET:.0f}x: {', '.join(slow) or 'nowhere'}")
    return lines


def name(case: Case) -> str:
    return f"{case.op} {case.bytes} B {case.dtype} {case.label}".rstrip()


def _cell(case: Case) -> tuple[str, int]:
    return case.dtype, case.bytes


def fastest(rows: Iterable[Row]) -> dict[tuple[str, int], Row]:
    """(dtype, bytes) -> the row with the lowest median."""
    best: dict[tuple[str, int], Row] = {}
    for row in rows:
        key = _cell(row.case)
        if key not in best or row.us.median < best[key].us.median:
            best[key] = row
    return best


def as_dict(result: Result, spec: Spec) -> dict[str, object]:
    """Bandwidths in GB/s, times in microseconds; both null where a value was wrong."""
    import msgspec

    def one(row: Row) -> dict[str, object]:
        right = not row.wrong.total
        return {
            **msgspec.to_builtins(row.case),
            "wrong": msgspec.to_builtins(row.wrong),
            "us": msgspec.to_builtins(row.us) if right else None,
            "parts_us": row.parts.us() if right and row.parts else None,
            "algbw": row.algbw() if right else None,
            "busbw": row.busbw(result.world) if right else None,
        }

    return {
        "schema": SCHEMA,
        "world": result.world,
        "host": os.uname().nodename,
        "spec": msgspec.to_builtins(spec),
        "ranks": msgspec.to_builtins(result.ranks),
        "others_cpu_share": result.others,
        "rows": [one(row) for row in result.rows],
        "wrong": result.wrong,
        "summary": summary(result),
    }
