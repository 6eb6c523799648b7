"""Traces: what each rank is told to do, one time line of clocks that differ, and real ranks on this machine's CPUs."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np
import pytest

from roce_ring.native import STALL_STEPS, STALL_WRITE
from roce_ring.stall.clocks import aligned
from roce_ring.stall.cpu import Threads
from roce_ring.stall.patterns import PATTERNS
from roce_ring.stall.record import meetings, record
from roce_ring.stall.trace import Trace
from tests.stall.test_windows import trace

SIZE = 4096


@pytest.mark.parametrize("world", [2, 3, 4, 9])
def test_ranks_meet_equally_often_and_steps_fit(world: int) -> None:
    """One meeting more on one rank, and all wait for ever."""
    for name, pattern in PATTERNS.items():
        steps = [pattern.steps(rank, world, SIZE) for rank in range(world)]
        assert len({meetings(one) for one in steps}) == 1, name
        assert all(len(one) <= STALL_STEPS for one in steps), name
        assert all(step.bytes % 16 == 0 and step.bytes for one in steps for step in one), name
        assert all(0 <= peer < world for one in steps for step in one for peer in step.peers), name


@pytest.mark.parametrize("name", ["push_phased", "rsag_phased", "ring", "write_ring"])
def test_one_stream_out_and_one_in(name: str) -> None:
    """What makes a phase one; two would be the fan-out that collapses."""
    steps = [PATTERNS[name].steps(rank, 5, SIZE) for rank in range(5)]
    for at in zip(*steps, strict=True):
        if at[0].kind == STALL_WRITE:
            assert sorted(peer for step in at for peer in step.peers) == list(range(5))


def test_clocks_that_begin_elsewhere_and_run_apart_become_one() -> None:
    random = np.random.default_rng(1)
    begun = np.cumsum(random.integers(15_000, 25_000, 20_000))
    at = np.stack([begun, begun + 5_000, begun + 12_000], 1)
    late = random.integers(0, 400, (3, len(begun), 1))  # leaving a meeting takes each rank a little longer or shorter
    late[1, 5_000:5_400] += 2_000_000  # and one of them was held up for some time
    stamps = at + late
    stamps[1] += 7_000_000_000
    stamps[2] = (stamps[2] * 1.00002).astype(np.int64) - 3_000_000_000
    found = aligned(stamps)
    quiet = np.r_[0:5_000, 5_400:20_000]
    assert np.abs(found[:, quiet, 1] - found[0, quiet, 1]).max() < 1.5e-6
    assert found[0, 0, 0] == 0.0


@pytest.fixture(scope="module")
def threads() -> Threads:
    return Threads(3, SIZE)


@pytest.mark.parametrize("name", PATTERNS)
def test_every_pattern_runs_on_cpu_ranks(threads: Threads, name: str) -> None:
    """The kernel is the GPU's; the clock is one, so after every meeting all ranks are there."""
    steps = [PATTERNS[name].steps(rank, 3, SIZE) for rank in range(3)]
    stamps = threads.run(steps, 50)
    assert (np.diff(stamps, axis=2) >= 0).all() and (np.diff(stamps[:, :, 0]) > 0).all()
    assert (stamps[:, :, 1].min(axis=0) >= stamps[:, :, 0].max(axis=0)).all(), "somebody left before all had come"


def test_a_trace_lasts_as_long_as_asked(threads: Threads) -> None:
    found = record(threads, "push_phased", 0.3)
    assert 0.05 < found.at_s[0, -1, 2] < 3.0
    one = found.summary(1)
    assert 0 < one.meeting < one.mean < one.maximum


def test_windows_are_found_on_the_rank_that_has_them(tmp_path: Path) -> None:
    """Rank 1 reads from a quadrant that stalls, rank 0 does not; it waits for rank 1 at each meeting."""
    begin, us = trace(9.0)
    met = begin + 5e-6
    slow, quick = np.stack([begin, met, met + us * 1e-6], 1), np.stack([begin, met, met + 15e-6], 1)
    both = Trace("read_ring", SIZE, np.stack([quick, slow]))
    assert both.summary(0).windows.at == ()
    found = both.summary(1)
    assert found.windows.period == pytest.approx(2.30, abs=0.02) and found.over_1ms > 100
    assert found.median < 30 < found.mean
    both.write(tmp_path)
    assert sorted(file.name for file in tmp_path.iterdir()) == ["read_ring-4096-0.csv", "read_ring-4096-1.csv"]


Run = Callable[..., tuple[int, str, str]]


@pytest.fixture
def run(typed: Run) -> Run:
    return partial(typed, "stall")


def test_what_is_recorded_can_be_looked_at_again(run: Run, tmp_path: Path) -> None:
    picture = tmp_path / "a.svg"
    arguments = ("--pattern", "read_ring", "--ranks", "2", "--size", "4K", "--seconds", "0.2", "--json")
    code, out, _ = run("record", *arguments, "--out", str(tmp_path), "--plot", str(picture))
    told = json.loads(out)
    assert (told["schema"], [one["rank"] for one in told["traces"]]) == ("roce-ring/stall-record/v1", [0, 1])
    assert code == any(one["windows"] for one in told["traces"])
    assert "<svg" in picture.read_text()
    _, out, _ = run("find", str(tmp_path / "read_ring-4096-1.csv"), "--json")
    assert json.loads(out)["operations"] == told["traces"][1]["operations"]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--pattern", "read_rin"), "'read_rin' is not a pattern"),
        (("--size", "17"), "expected one size that is a multiple of 16 bytes"),
        (("--size", "1K,2K"), "expected one size"),
        (("--device", "tpu"), "device is 'tpu', expected cpu, cuda or cuda:N"),
        (("--device", "cpu:1"), "device is 'cpu:1'"),
        (("--device", "cuda:0,1", "--ranks", "4"), "names 2 GPUs for 4 ranks"),
        (("--out", "/nowhere/x"), "there is no directory /nowhere/x"),
        (("--plot", "a.txt"), "should end in one of"),
    ],
)
def test_what_cannot_work_is_said(run: Run, arguments: tuple[str, ...], said: str) -> None:
    code, _, err = run("record", *arguments)
    assert code == 2
    assert said in err
