"""Windows of slow operations, found in traces of which the truth is known."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from roce_ring.stall.windows import find_windows

PERIOD, PHASE = 2.30, 0.7
Trace = tuple[NDArray[np.float64], NDArray[np.float64]]


def trace(seconds: float, width: float = 0.18, noise: float = 0.01, seed: int = 1, skip: tuple[int, ...] = ()) -> Trace:
    """Operations of 20 us back to back, 1.2 ms within a window. `noise`: this share is slow anywhere, and all times
    vary by as much. `skip`: windows that do not come."""
    random = np.random.default_rng(seed)
    begins, took, now = [], [], 0.0
    while now < seconds:
        number, into = divmod(now - PHASE, PERIOD)
        stalls = 0 <= into < width and now >= PHASE and int(number) not in skip
        us = 1200.0 if stalls or random.random() < noise else 20.0
        us *= 1 + noise * random.standard_normal()
        begins.append(now)
        took.append(us)
        now += us * 1e-6 + 50e-6
    return np.array(begins), np.array(took)


def test_period_width_and_phase_of_the_published_windows() -> None:
    found = find_windows(*trace(12.0))
    assert found.period == pytest.approx(PERIOD, abs=0.02)
    assert 0.150 <= found.width <= 0.200
    assert found.phase == pytest.approx(PHASE, abs=0.02)
    assert len(found.at) == 5
    assert found.alone == pytest.approx(0.01, abs=0.003)


def test_a_window_that_does_not_come_does_not_change_the_beat() -> None:
    found = find_windows(*trace(14.0, skip=(1, 3)))
    assert len(found.at) == 4
    assert found.period == pytest.approx(PERIOD, abs=0.02)


@pytest.mark.parametrize("noise", [0.0, 0.01, 0.05])
def test_single_slow_operations_are_no_window(noise: float) -> None:
    found = find_windows(*trace(3.0, width=0.0, noise=noise))
    assert found.at == ()
    assert found.alone == pytest.approx(noise, abs=0.01)


def test_two_windows_have_no_period() -> None:
    """Two points lie on every line."""
    found = find_windows(*trace(4.0))
    assert (len(found.at), found.period) == (2, 0.0)


def test_one_operation_that_lasts_a_whole_window_is_one_window() -> None:
    begin, took = trace(3.0, width=0.0, noise=0.0)
    at = int(len(begin) / 2)
    took[at] = 150_000.0
    begin[at + 1 :] += 0.15
    found = find_windows(begin, took)
    assert found.at == () or found.width == pytest.approx(0.15, abs=0.02)
    assert found.period == 0.0


def test_no_trace_is_no_window() -> None:
    none = np.array([])
    assert find_windows(none, none).at == ()
    with pytest.raises(ValueError, match="ascending"):
        find_windows(np.array([1.0, 0.0]), np.array([1.0, 1.0]))


Run = Callable[..., tuple[int, str, str]]


@pytest.fixture
def run(typed: Run) -> Run:
    return partial(typed, "stall", "find")


def test_the_command_says_how_often_and_how_long(run: Run, tmp_path: Path) -> None:
    file = tmp_path / "trace.csv"
    np.savetxt(file, np.stack(trace(7.0), 1), delimiter=",", header="begin_s,us")
    code, out, _ = run(str(file))
    assert code == 1
    assert "3 windows, every 2.30 s" in out
    code, out, _ = run(str(file), "--json")
    assert (json.loads(out)["schema"], len(json.loads(out)["windows"])) == ("roce-ring/stall/v1", 3)
    np.savetxt(file, np.stack(trace(2.0, width=0.0), 1), delimiter=",")
    code, out, _ = run(str(file))
    assert (code, "no windows" in out) == (0, True)


@pytest.mark.parametrize(
    ("raw", "said"),
    [
        (b"1,2,3\n", "line 1: '1,2,3' is not two numbers"),
        (b"0,1\n1;2\n", "line 2"),
        (b"1,1\n0,1\n", "begins in order"),
        (b"0,nan\n", "finite"),
        (b"0,-1\n", "durations from 0"),
        (b"\xff\xfe", "is not text"),
    ],
)
def test_a_wrong_trace_gets_a_sentence(run: Run, tmp_path: Path, raw: bytes, said: str) -> None:
    (tmp_path / "t.csv").write_bytes(raw)
    code, _, err = run(str(tmp_path / "t.csv"))
    assert code == 2
    assert said in err


def test_an_empty_trace_has_no_windows(run: Run, tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_bytes(b"begin_s,us\n")
    assert run(str(tmp_path / "t.csv"))[:2] == (0, "0 operations: no windows; 0.0% slow in them, 0.0% elsewhere\n")
