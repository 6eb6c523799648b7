"""Quadrants by measurement, on traces of which the truth is known."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import msgspec
import numpy as np

from roce_ring.cli.stall_quadrants import as_yaml
from roce_ring.fabric.quadrants import load
from roce_ring.fabric.tree import Tree
from roce_ring.stall.quadrants import measured
from roce_ring.stall.trace import Trace
from tests.fabric.hosts import frank2
from tests.stall.test_windows import trace

TRUTH = frank2().quadrants
GPUS = dict.fromkeys(TRUTH, 2)
STALLS, QUIET = trace(5.0, noise=0.0), trace(5.0, width=0.0, noise=0.0)


def recorded(truth: dict[str, str]) -> Callable[[Sequence[str], str], Trace]:
    """Reads across quadrants of `truth` stall, and writing to several at once takes seven times as long there."""

    def record(bridges: Sequence[str], pattern: str) -> Trace:
        across = len({truth[one] for one in bridges}) > 1
        begin, us = STALLS if across and pattern == "read_pair" else QUIET
        us = us * 7 if across and pattern == "push" else us
        one = np.stack([begin, begin + 5e-6, begin + 5e-6 + us * 1e-6], 1)
        return Trace(pattern, 81920, np.stack([one] * len(bridges)))

    return record


def same(found: dict[str, str], truth: dict[str, str]) -> bool:
    """Names do not matter."""
    return all((found[a] == found[b]) == (truth[a] == truth[b]) for a in truth for b in truth)


def test_the_published_host_is_found() -> None:
    """Two host bridges a quadrant, which no file of the kernel's says."""
    assert same(measured(GPUS, recorded(TRUTH), 9), TRUTH)


def test_where_only_writes_tell_each_bridge_stays_alone() -> None:
    """On another published host reads never stall, and writes to two host bridges at once collapse all the same."""
    reads_fine = recorded(TRUTH)

    def record(bridges: Sequence[str], pattern: str) -> Trace:
        return reads_fine(bridges[:1] * 2 if pattern == "read_pair" else bridges, pattern)

    assert len(set(measured(GPUS, record, 9).values())) == len(TRUTH)


def test_a_host_without_quadrants_is_one() -> None:
    assert set(measured(GPUS, recorded(dict.fromkeys(TRUTH, "x")), 9).values()) == {"q0"}


def test_one_witness_against_is_enough() -> None:
    """a and b look alike, b and c, but not a and c: then c is apart."""

    def record(bridges: Sequence[str], pattern: str) -> Trace:
        apart = dict.fromkeys("abc", "x") | ({"c": "y"} if set(bridges) == {"a", "c"} else {})
        return recorded(apart)(bridges, pattern)

    found = measured(dict.fromkeys("abc", 1), record, 9)
    assert found["a"] == found["b"] != found["c"]


def test_what_is_written_can_be_read(tmp_path: Path) -> None:
    """By sessions; unquoted, YAML would take some names for numbers."""
    found = measured(GPUS, recorded(TRUTH), 9)
    file = tmp_path / "quadrants.yaml"
    file.write_text(as_yaml(found))
    assert load(file) == found
    assert Tree(msgspec.structs.replace(frank2(), quadrants={}), load(file)).quadrants["0000:20"].name == "q0"


def test_without_several_host_bridges_there_is_nothing_to_tell(typed: Callable[..., tuple[int, str, str]]) -> None:
    code, _, err = typed("stall", "quadrants")
    assert code == 2
    assert "there is nothing to tell apart" in err
