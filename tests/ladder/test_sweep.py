"""A sweep on real ranks: what it writes is a ladder, and what was measured once is not measured again."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path

import msgspec
import pytest

from roce_ring.bench.cases import Case, Spec, build
from roce_ring.bench.check import Wrong
from roce_ring.bench.job import RankFacts, Result, Row
from roce_ring.bench.timing import Times
from roce_ring.direct import LOADS, NO_ACCESS
from roce_ring.errors import ConfigError
from roce_ring.ladder.loading import load
from roce_ring.ladder.model import Key
from roce_ring.ladder.sweep import SIZES, cells, ladder_of, measure

Run = Callable[..., tuple[int, str, str]]


def fitting(fabric: str, world: int) -> set[str]:
    access = LOADS if fabric.startswith("pcie") else NO_ACCESS
    spec = Spec([64], ["bfloat16"], ["all_reduce"], [], 10, sweep=True)
    return {case.mode for case in build(spec, world, lambda size: "full", access, fabric)}


def test_the_class_says_what_is_measured() -> None:
    """Not what the session could do: reads work across quadrants, too, and stall."""
    assert fitting("pcie-hostbridge", 4) >= {"full_phased", "bulk_push_phased"}
    assert not fitting("pcie-hostbridge", 4) & {"pull", "bulk_pull"}
    assert fitting("pcie-switch", 4) >= {"pull", "bulk_pull"}
    assert not {mode for mode in fitting("pcie-switch", 4) if mode.endswith("_phased")}
    assert fitting("roce-ring-neighbour", 4) == {"ring", "ring_bidir", "halving"}


@pytest.fixture
def run(typed: Run) -> Run:
    return partial(typed, "ladder", "sweep")


@pytest.mark.parametrize(("provider", "fabric"), [("shm", "shm"), ("pcie", "pcie-hostbridge")])
def test_a_sweep_writes_a_ladder(run: Run, tmp_path: Path, provider: str, fabric: str) -> None:
    file = tmp_path / "mine.json"
    arguments = ("--out", str(file), "--local", "2", "--iters", "10", "--sizes", "64,4K", "--provider", provider)
    code, out, _ = run(*arguments)
    assert code == 0
    assert out.splitlines()[1].split()[0] == "64"
    made = load(file)
    assert (made.file.fabric, made.file.key, made.capacity) == (fabric, Key(world=2, device="cpu"), 1 << 30)
    assert set(made.file.buckets[0].median_us) == fitting(fabric, 2)
    assert not file.with_name("mine.json.part").exists()


def row(mode: str, size: int, median: float, wrong: int = 0) -> Row:
    times = Times(median, median, median, median, 10, median)
    return Row(Case("all_reduce", "bfloat16", size, size // 2, mode), Wrong(wrong), times)


def result(rows: list[Row], fabric: str = "shm") -> Result:
    facts = RankFacts(
        0, "host", 1, "shm", "cpu", {}, "v3", 2, True, 0.5, 50, 20, 0.1, fabric, Key(world=2, device="cpu")
    )
    return Result(2, [facts], rows)


def test_an_interrupted_sweep_goes_on_where_it_was(tmp_path: Path) -> None:
    keep, asked = tmp_path / "part", []

    def work(sizes: list[int]) -> Result:
        asked.append(sizes)
        if len(asked) == 2:
            raise KeyboardInterrupt
        return result([row("full", size, 1.0) for size in sizes])

    sizes = list(SIZES[:9])
    with pytest.raises(KeyboardInterrupt):
        list(measure(sizes, "a", keep, work))
    with keep.open("ab") as file:
        file.write(b'{"asked": "a", "siz')  # and the machine went down while it wrote
    found = [row for part in measure(sizes, "a", keep, work) for row in part.rows]
    assert [one.case.bytes for one in found] == sizes
    assert asked == [sizes[:6], sizes[6:], sizes[6:]]


def test_another_sweeps_rest_is_not_mixed_in(tmp_path: Path) -> None:
    keep = tmp_path / "part"
    list(measure([64], "4 ranks", keep, lambda sizes: result([row("full", 64, 1.0)])))
    with pytest.raises(ConfigError, match="is of another sweep"):
        list(measure([64], "2 ranks", keep, lambda sizes: result([])))
    with pytest.raises(ConfigError, match="is of another machine: it is of fabric shm, this is pcie-switch"):
        list(measure([64, 128], "4 ranks", keep, lambda sizes: result([], "pcie-switch")))
    keep.write_bytes(b"?\n")
    with pytest.raises(ConfigError, match="no file of a sweep"):
        list(measure([64], "2 ranks", keep, lambda sizes: result([])))


def test_a_size_without_a_right_mode_ends_it() -> None:
    with pytest.raises(ConfigError, match="no mode is right at 64 bytes"):
        cells([row("full", 64, 1.0, wrong=1)], "shm", 2)


def test_buckets_end_at_what_was_measured_and_the_last_goes_on() -> None:
    rows = [row("full", 64, 1.0), row("ring", 64, 2.0), row("full", 4096, 5.0), row("ring", 4096, 4.0)]
    file = ladder_of(cells(rows, "shm", 2), "shm", Key(world=2), "this test")
    assert [(one.upto, one.profiles[0].mode, one.at_bytes) for one in file.buckets] == [
        (64, "full", 64), (1 << 30, "ring", 4096),
    ]  # fmt: skip
    assert msgspec.json.decode(msgspec.json.encode(file), type=type(file)) == file


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ((), "sweep needs to know where the ladder goes"),
        (("--quick", "--out", "/x"), "--quick writes no ladder"),
        (("--out", "/x", "--sizes", "17"), "17 is no multiple of 16 bytes"),
        (("--out", "/x", "--dtype", "all"), "one dtype"),
        (("--out", "/x", "--provider", "tcp"), "'tcp' is not one of shm, pcie"),
        (("--out", "/x", "--provider", "verbs"), "'verbs' is not one of shm, pcie"),
        (("--out", "/x", "--rank", "1"), "--rank is for several hosts, but --join is not there"),
        (("--out", "/x", "--join", "unix:/m", "--provider", "shm"), "'shm' is not one of verbs"),
        (("--out", "/x", "--join", "unix:/m"), "--join needs the plan"),
        (("--out", "/nowhere/x", "--sizes", "64", "--local", "2", "--iters", "10"), "cannot be written"),
    ],
)
def test_what_cannot_work_is_said(run: Run, arguments: tuple[str, ...], said: str) -> None:
    code, _, err = run(*arguments)
    assert code == 2
    assert said in err
