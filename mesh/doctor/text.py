"""The doctor's report in words: what was found on each node, what could not be looked at, and the verdict."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence

from ..finding import Finding
from .checks import Report, Unlooked

_ORDER = ("error", "warning", "note")


def lines(report: Report, failures: Sequence[str]) -> Iterator[str]:
    """Everything but the verdict. ``failures``: a sentence for each host that could not be asked."""
    for node in report.nodes:
        yield f"{node.host}: {_summary(node.findings, node.unknown)}"
        yield from _findings(node.findings, node.host)
        yield from _unknown(node.unknown)
        if node.running and node.findings:
            yield f"  {'runs':<8}{', '.join(node.running)}: see that a fix does not interrupt them"
    if report.ring:
        yield f"ring: {_summary(report.ring, ())}"
        yield from _findings(report.ring, "")
    for failure in failures:
        yield f"{failure.partition(':')[0]}: not looked at"
        yield f"  {failure}"


def verdict(report: Report, failures: Sequence[str]) -> str:
    """One line: what was found over all nodes."""
    found = [*report.ring, *(item for node in report.nodes for item in node.findings)]
    unknown = sum(len(item.codes) for node in report.nodes for item in node.unknown)
    parts = [part for part in (_counts(found),) if part]
    if unknown:
        parts.append(f"{unknown} check(s) could not look everywhere")
    if failures:
        parts.append(f"{len(failures)} host(s) could not be asked")
    where = f"{len(report.nodes)} node(s)"
    if not parts:
        return f"{where}: fine"
    explained = "; docs/troubleshooting.md explains each code" if found else ""
    return f"{where}: {', '.join(parts)}{explained}"


def _summary(found: Sequence[Finding], unknown: Sequence[Unlooked]) -> str:
    parts = [part for part in (_counts(found),) if part]
    if unknown:
        parts.append(f"{sum(len(item.codes) for item in unknown)} unknown")
    return ", ".join(parts) or "fine"


def _counts(found: Iterable[Finding]) -> str:
    kinds = [item.severity for item in found]
    return ", ".join(f"{kinds.count(kind)} {kind}(s)" for kind in _ORDER if kind in kinds)


def _findings(found: Sequence[Finding], host: str) -> Iterator[str]:
    """Errors first. Findings that differ in their place only are one. ``host`` stands above them already."""
    groups: dict[tuple[str, str, str, str], list[Finding]] = defaultdict(list)
    for item in sorted(found, key=lambda item: _ORDER.index(item.severity)):
        groups[item.code, item.seen, item.expected, item.severity].append(item)
    for group in groups.values():
        first = group[0]
        where = ", ".join(dict.fromkeys(item.where.removeprefix(host).strip() for item in group))
        place = f"{where}: " if where else ""
        yield f"  {first.severity:<8}{first.code}: {place}{first.seen}; expected {first.expected}"
        likewise = "" if len({item.fix for item in group}) == 1 else "; the others likewise"
        yield f"  {'':<8}fix: {first.fix}{likewise}"


def _unknown(unknown: Sequence[Unlooked]) -> Iterator[str]:
    by_reason: dict[str, list[str]] = defaultdict(list)
    for item in unknown:
        by_reason[item.reason] += item.codes
    for reason, codes in by_reason.items():
        yield f"  {'unknown':<8}{', '.join(codes)}: {reason}"
