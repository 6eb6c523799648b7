"""`roce-ring bench`: whole runs with real ranks, and the checker that decides what is right."""

from __future__ import annotations

import itertools
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from typer.testing import CliRunner

from roce_ring.bench import data
from roce_ring.bench.cases import Case, Spec, build, parse_dtypes, parse_sizes
from roce_ring.bench.check import Wrong, check_once, exact_answer, sides
from roce_ring.bench.job import RankFacts, Result, Row
from roce_ring.bench.member import place as place_of
from roce_ring.bench.member import rank_here
from roce_ring.bench.parts import NAMES, Parts
from roce_ring.bench.process import CpuTime
from roce_ring.bench.runners import Ours
from roce_ring.bench.table import as_dict, render
from roce_ring.bench.timing import Times, summarize
from roce_ring.cli.bench import try_to_write
from roce_ring.cli.main import build as build_program
from roce_ring.errors import ConfigError
from roce_ring.native import Profile
from roce_ring.settings import Settings
from roce_ring.topology import plan_of

BENCH = [sys.executable, "-m", "roce_ring.cli.main", "bench"]
PATIENCE_S = 40.0


class Place:
    """Where a bench runs with everything that it might leave behind: its temporary files and its control sockets."""

    def __init__(self, root: Path) -> None:
        self.temporary, self.run_dir = root / "tmp", root / "run"
        self.temporary.mkdir()
        self.env = {**os.environ, "TMPDIR": str(self.temporary), "ROCE_RING_RUN_DIR": str(self.run_dir)}
        self.started: list[subprocess.Popen[str]] = []

    def start(self, *arguments: str, **env: str) -> subprocess.Popen[str]:
        # A group of its own, as a shell gives to a job.
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
        process = subprocess.Popen([*BENCH, *arguments], env=self.env | env, text=True, process_group=0, **pipes)  # type: ignore[call-overload]
        self.started.append(process)
        return process

    def run(self, *arguments: str, **env: str) -> tuple[int, str, str]:
        process = self.start(*arguments, **env)
        out, err = process.communicate(timeout=PATIENCE_S)
        return process.returncode, out, err

    def ranks(self, world: int) -> list[int]:
        """Process ids by rank, once all of them serve their control socket: then they are connected."""
        deadline = time.monotonic() + PATIENCE_S
        while time.monotonic() < deadline:
            locks = {int(re.findall(r"-r(\d+)\.", one.name)[0]): one for one in self.run_dir.glob("*.sock.lock")}
            pids = {rank: re.search(r"pid (\d+)", lock.read_text()) for rank, lock in locks.items()}
            if len(pids) == world and all(pids.values()):
                time.sleep(0.3)
                return [int(found[1]) for _, found in sorted(pids.items()) if found]
            time.sleep(0.02)
        raise AssertionError(f"not all of {world} ranks came up")

    def left_behind(self) -> list[str]:
        pids = {process.pid for process in self.started}
        processes = [
            f"pid {entry.name}"
            for entry in Path("/proc").iterdir()
            if entry.name.isdigit() and _parent(entry) in pids | {1} and str(self.temporary) in _command(entry)
        ]
        return [*processes, *(str(one) for place in (self.temporary, self.run_dir) for one in place.glob("*"))]

    def close(self) -> None:
        for process in self.started:
            if process.poll() is None:
                process.kill()
            process.communicate()


def _parent(entry: Path) -> int:
    try:
        return int((entry / "stat").read_text().rsplit(")", 1)[1].split()[1])
    except OSError:
        return -1


def _command(entry: Path) -> str:
    try:
        return (entry / "cmdline").read_text().replace("\0", " ")
    except OSError:
        return ""


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Place]:
    place = Place(tmp_path)
    yield place
    place.close()


# ---- whole runs ----


@pytest.mark.parametrize(("world", "dtype"), [(2, "all"), (3, "bf16")])
def test_every_mode_dtype_and_operation_is_right(place: Place, world: int, dtype: str) -> None:
    """The claim of the project: exact sums at odd sizes and addresses, in place, and the same bits every time."""
    wanted = ["--sizes", "1,17,4096", "--dtype", dtype, "--op", "all", "--mode", "all", "--check", "--iters", "1"]
    status, out, err = place.run("--local", str(world), *wanted, "--json")
    assert status == 0, err
    result = json.loads(out)
    assert result["schema"] == "roce-ring/bench/v1"
    assert [row for row in result["rows"] if any(row["wrong"].values())] == []
    modes = {row["mode"] for row in result["rows"]} - {""}
    assert ("halving" in modes) == (world == 2)
    assert {"full", "full_phased", "payload_rsag", "payload_rsag_phased", "ring", "ring_bidir"} <= modes
    counts = {row["count"] for row in result["rows"] if row["op"] == "all_reduce" and row["dtype"] == "bfloat16"}
    assert counts == {1, 9, 2048}
    assert place.left_behind() == []


def test_a_profile_splits_an_operation_of_every_kind(place: Place) -> None:
    """Who tunes a mode must see all of an operation: staging, commands, waits and sums, and nothing twice."""
    status, out, err = place.run(
        "--local", "2", "--sizes", "64K", "--op", "all", "--mode", "all", "--iters", "5", "--profile", "--json"
    )
    assert status == 0, err
    for row in json.loads(out)["rows"]:
        parts = row["parts_us"]
        assert parts.pop("between") is None  # one operation at a time on a CPU
        assert all(parts[name] > 0 for name in NAMES), row
        # Each rank's own clock, so the mean of the parts cannot be longer than the slowest rank's longest sample.
        assert sum(parts.values()) < row["us"]["maximum"], row


def test_fp32_partials_and_several_paths_are_right(place: Place) -> None:
    """Options that change what travels must not change what is right."""
    status, out, err = place.run(
        "--local", "3", "--sizes", "70000", "--dtype", "bf16", "--mode", "ring,ring_bidir,full", "--check",
        "--iters", "1", "--paths", "2", "--fp32-partials",
    )  # fmt: skip
    assert status == 0, err
    assert "ring/fp32" in out and "ring_bidir/fp32" in out and "full/fp32" not in out
    assert "wrong values: 0 (ok), rows: 3" in out


def test_a_wrong_value_fails_the_run_and_hides_its_bandwidth(place: Place, tmp_path: Path) -> None:
    """Whoever reads only the exit status, or only the bandwidth, must not take a broken run for a good one."""
    (tmp_path / "sitecustomize.py").write_text(
        "import sys\n"
        "if 'roce_ring.bench.rank' in sys.orig_argv and sys.orig_argv[-1] == '1':\n"
        "    from roce_ring.communicator import AllReduce\n"
        "    right = AllReduce.all_reduce\n"
        "    def broken(self, x, out=None, **options):\n"
        "        right(self, x, out, **options)\n"
        "        if options['mode'] == 'ring':\n"
        "            out[-1] += 1\n"
        "        return out\n"
        "    AllReduce.all_reduce = broken\n"
    )
    path = os.pathsep.join([str(tmp_path), *os.environ.get("PYTHONPATH", "").split(os.pathsep)])
    status, out, err = place.run(
        "--local", "2", "--sizes", "2K", "--mode", "full,ring", "--iters", "5", PYTHONPATH=path
    )
    assert status == 1, err
    lines = {line.split()[4]: line.split() for line in out.splitlines() if not line.startswith("#")}
    assert lines["ring"][-8:-3] == ["-"] * 5
    assert lines["ring"][-3:] == ["6", "1", "0"]  # one check out of place and five visits of timing; one check in place
    assert float(lines["full"][-5]) > 0
    assert "wrong values: 7, in 1 of 2 rows" in out


def test_a_killed_rank_is_named_and_nothing_is_left(place: Place) -> None:
    """An out-of-memory kill must not look like a hang, nor leave ranks that hold memory and cores."""
    bench = place.start("--local", "3", "--sizes", "2K,64K", "--iters", "100000")
    victim = place.ranks(3)[1]
    os.kill(victim, signal.SIGKILL)
    _, err = bench.communicate(timeout=10)
    assert bench.returncode == 2
    assert f"rank 1 (pid {victim}) was killed by SIGKILL" in err
    assert "Traceback" not in err
    assert place.left_behind() == []


@pytest.mark.parametrize(("number", "status"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_an_interrupted_run_leaves_nothing(place: Place, number: signal.Signals, status: int) -> None:
    """Ctrl-C is how most runs end."""
    bench = place.start("--local", "2", "--sizes", "2K", "--iters", "100000")
    place.ranks(2)
    bench.send_signal(number)
    out, err = bench.communicate(timeout=10)
    assert bench.returncode == status
    assert (out, err.splitlines()[-1:]) == ("", ["interrupted"] if number == signal.SIGINT else [])
    assert place.left_behind() == []


def test_ranks_die_with_a_killed_launcher(place: Place) -> None:
    """A launcher that cannot clean up (kill -9) must not leave ranks that measure for ever."""
    bench = place.start("--local", "2", "--sizes", "2K", "--iters", "100000")
    pids = place.ranks(2)
    bench.kill()
    deadline = time.monotonic() + 10
    while any(Path(f"/proc/{pid}").exists() and _state(pid) != "Z" for pid in pids):
        assert time.monotonic() < deadline, "a rank outlived its launcher by 10 s"
        time.sleep(0.05)


def _state(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0]
    except OSError:
        return "Z"


def test_a_rank_that_cannot_start_says_why_once(place: Place) -> None:
    """All ranks fail together with the same sentence; the user wants to read it once."""
    status, _, err = place.run("--local", "2", "--provider", "verbs", "--sizes", "2K")
    assert status == 2
    assert err.count("set-up failed") == 1 and "Traceback" not in err


# ---- bad input ----


def test_all_problems_of_the_sizes_come_at_once() -> None:
    with pytest.raises(ConfigError) as caught:
        parse_sizes("2K,0,3X,8-4,-1,1T")
    assert all(repr(bad) in caught.value.message for bad in ("0", "3X", "8-4", "-1", "1T"))
    assert "2K" not in caught.value.message


def test_sizes_and_dtypes_mean_what_the_help_says() -> None:
    assert parse_sizes("1, 2K,4k,16KiB,1M,2K") == [1, 2048, 4096, 16384, 1 << 20]
    assert parse_sizes("2K-16K") == [2048, 4096, 8192, 16384]
    assert parse_sizes("3-13") == [3, 6, 12]
    assert parse_dtypes("bf16,float32,fp32") == ["bfloat16", "float32"]
    assert parse_dtypes("all") == ["float32", "bfloat16", "float16"]
    with pytest.raises(ConfigError, match=r"'bf61' is not a dtype; did you mean bf16\?"):
        parse_dtypes("bf61")


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["--mode", "rnig"], "'rnig' is not a mode; did you mean ring?"),
        (["--local", "3", "--mode", "halving"], "mode halving needs a world that is a power of two; this one is 3"),
        (["--compare", "nccl"], "--compare: 'nccl' is not known"),
        (["--plot", "a.jpeg"], "--plot: a.jpeg should end in one of .png, .svg, .pdf"),
        (["--plot", "/nowhere/a.png", "--report", "/nowhere/b.md"], "there is no directory /nowhere; --report"),
        (["--report", "/proc/x"], "--report: /proc/x cannot be written: no such file or directory"),
        (["--report", "/"], "--report: / cannot be written: is a directory"),
    ],
)
def test_bad_arguments_get_a_sentence_before_anything_starts(
    monkeypatch: pytest.MonkeyPatch, arguments: list[str], sentence: str
) -> None:
    monkeypatch.setattr("roce_ring.bench.local.run_local", None)
    error = CliRunner().invoke(build_program(), ["bench", *arguments]).exception
    assert isinstance(error, ConfigError)
    assert sentence in error.message


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["--device", "gpu"], "device is 'gpu', expected cpu, cuda or cuda:N"),
        (["--device", "cuda", "--share", "threads"], "--share: 'threads' is not known"),
        (["--share", "mps"], "--share mps is for the ranks of one GPU"),
        (["--device", "cuda", "--compare", "gloo"], "--compare gloo is for --device cpu"),
    ],
)
def test_what_a_gpu_cannot_do_is_said_before_anything_starts(place: Place, arguments: list[str], sentence: str) -> None:
    status, _, err = place.run(*arguments)
    assert status == 2 and sentence in err and "Traceback" not in err


@pytest.mark.skipif(find_spec("cupy") is not None, reason="CuPy is here; tests/gpu runs the bench")
def test_without_cupy_the_bench_says_what_to_install(place: Place) -> None:
    status, _, err = place.run("--device", "cuda")
    assert status == 2
    assert err.count("a communicator for cuda needs CuPy") == 1 and "pip install 'roce-ring[cuda]'" in err


def test_trying_to_write_changes_nothing(tmp_path: Path) -> None:
    kept, fresh = tmp_path / "kept.md", tmp_path / "fresh.md"
    kept.write_text("last week's")
    for file in (kept, fresh):
        try_to_write("--report", file)
    assert kept.read_text() == "last week's" and not fresh.exists()


def test_a_disk_that_fills_while_measuring_keeps_the_table(place: Place) -> None:
    """Minutes of measuring must not end in a traceback: the table is there, and a sentence says what is not."""
    few = ("--local", "2", "--sizes", "2K", "--iters", "1")
    status, out, err = place.run(*few, "--report", "/dev/full", "--json")
    assert (status, json.loads(out)["schema"]) == (2, "roce-ring/bench/v1")  # one document
    status, out, err = place.run(*few, "--report", "/dev/full")
    assert status == 2
    assert "wrong values: 0 (ok)" in out
    assert "roce-ring: --report: /dev/full cannot be written: no space left on device" in err
    assert "Traceback" not in err


def test_sizes_round_up_to_whole_elements_and_equal_ones_are_measured_once() -> None:
    spec = Spec([1, 2, 1_000_003], ["bfloat16"], ["all_reduce", "reduce_scatter"], [], 10)
    cases = build(spec, 3, lambda size: "full" if size < 4096 else "ring")
    assert [(case.op, case.bytes, case.count, case.mode) for case in cases] == [
        ("all_reduce", 2, 1, "full"),
        ("all_reduce", 1_000_004, 500_002, "ring"),
        ("reduce_scatter", 6, 1, ""),
        ("reduce_scatter", 1_000_008, 166_668, ""),
    ]


# ---- the checker ----


class Broken(Ours):
    """Gives the right answer of one `turn`, then breaks it."""

    def __init__(self, rank: int, world: int, turn: int, breaks: Callable[[Any], None]) -> None:
        self.rank, self.world, self.turn, self.breaks = rank, world, turn, breaks

    def bind(self, case: Case, x: Any, out: Any) -> Callable[[], object]:
        def call() -> None:
            out[:] = exact_answer(case, self.rank, self.world, self.turn).view(out.dtype)
            self.breaks(out)

        return call


def flip_one_bit(out: Any) -> None:
    out.view(np.uint8)[-1] ^= 1


def skip_the_last(out: Any) -> None:
    out.view(f"u{out.itemsize}")[-1] = (1 << 8 * out.itemsize) - 1


def write_past_the_end(out: Any) -> None:
    past = np.lib.stride_tricks.as_strided(out.view(np.uint8), (out.nbytes + 1,), (1,))
    past[-1] = 0


@pytest.mark.parametrize(
    "case", [Case("all_reduce", d, 0, 7) for d in data.STORAGE] + [Case("all_gather", "float32", 0, 7)]
)
@pytest.mark.parametrize("to", [0, 3, None])
def test_the_checker_counts_what_is_wrong_and_nothing_else(case: Case, to: int | None) -> None:
    for breaks, wanted in ((lambda out: None, 0), (flip_one_bit, 1), (skip_the_last, 1), (write_past_the_end, 1)):
        assert check_once(Broken(1, 3, 5, breaks), case, 1, 3, 5, 1, to) == wanted, breaks


def test_a_result_of_the_turn_before_is_wrong() -> None:
    """A kernel that reads a slot too early delivers old data: inputs must differ from turn to turn."""
    case = Case("all_reduce", "bfloat16", 0, 1000)
    assert check_once(Broken(0, 2, 4, lambda out: None), case, 0, 2, 5, 0, 0) > 900


@pytest.mark.parametrize("world", range(2, 9))
@pytest.mark.parametrize("dtype", data.STORAGE)
def test_exact_inputs_stay_exact_however_partial_sums_round(dtype: str, world: int) -> None:
    """Otherwise a mode that rounds at every hop, as it may, would be called wrong."""
    inputs = [data.decode(data.integers(dtype, 4096, rank, world, 3), dtype) for rank in range(world)]
    wanted = data.sum_of_integers(dtype, 4096, world, 3)
    for order in itertools.islice(itertools.permutations(range(world)), 24):
        total = inputs[order[0]]
        for rank in order[1:]:
            total = data.decode(data.encode(total + inputs[rank], dtype), dtype)
        assert data.differing(data.encode(total, dtype), wanted) == 0


def test_bfloat16_rounds_to_nearest_even() -> None:
    above = np.nextafter(np.float32(1.00390625), np.float32(2))
    values = np.array([1.0, 1.00390625, 1.01171875, -1.00390625, above, 3.0e38], np.float32)
    assert data.encode(values, "bfloat16").tolist() == [0x3F80, 0x3F80, 0x3F82, 0xBF80, 0x3F81, 0x7F62]
    assert data.decode(np.array([0x3F82], np.uint16), "bfloat16")[0] == 1.015625


# ---- numbers and words ----


def result(*rows: Row) -> Result:
    facts = [
        RankFacts(rank, "host", 100 + rank, "shm", "cpu", {"flags": 8192}, "v3", 2, True, 0.5, 50, 20, 0.1)
        for rank in range(4)
    ]
    return Result(4, facts, list(rows), 0.25)


def row(mode: str, median: float, wrong: int = 0, size: int = 1 << 20) -> Row:
    times = Times(median / 2, median, median * 2, median * 3, 100)
    return Row(Case("all_reduce", "float32", size, size // 4, mode), Wrong(out=wrong), times)


SPEC = Spec([1 << 20], ["float32"], ["all_reduce"], ["full", "ring"], 100)


def test_bandwidths_follow_nccl_tests() -> None:
    """1 MiB in 1 ms is 1.05 GB/s; with 4 ranks a link carries 2 x 3/4 of it."""
    one = row("full", 1000.0)
    assert one.algbw() == pytest.approx(1.048576)
    assert one.busbw(4) == pytest.approx(1.572864)
    assert Case("all_gather", "float32", 8, 1).bus_factor(4) == 0.75
    assert sides(Case("reduce_scatter", "float32", 32, 2), 4) == (8, 2)


def test_no_bandwidth_for_a_wrong_row() -> None:
    told = result(row("full", 1000.0), row("ring", 10.0, wrong=3))
    assert "10.0" not in render(told, SPEC)
    json_rows: Any = as_dict(told, SPEC)["rows"]
    assert (json_rows[1]["us"], json_rows[1]["algbw"], json_rows[1]["busbw"]) == (None, None, None)
    assert json_rows[0]["busbw"] == pytest.approx(1.572864)


def test_a_slower_size_than_the_target_is_said() -> None:
    told = render(
        result(row("full", 100.0), row("gloo", 250.0), row("full", 10.0, 0, 2048), row("gloo", 90.0, 0, 2048)), SPEC
    )
    assert "below the target of 3x: 1048576 B float32 (2.5x)" in told
    assert "2.5x to 9.0x as fast as gloo" in told


def test_parts_of_a_profile_add_up() -> None:
    """Two operations of 10 us with 3 us between them, seen by two ranks."""
    noted = [Profile(1, 0, 1000, 2000, 3000, 4000), Profile(2, 13_000, 3000, 2000, 1000, 4000)]
    parts = Parts()
    parts.add(noted)
    us = {"stage": 2.0, "command": 2.0, "wait": 2.0, "reduce": 4.0, "between": 3.0}
    assert (parts + parts).us() == parts.us() == us
    told = render(result(row("full", 10.0), msgspec.structs.replace(row("ring", 20.0), parts=parts)), SPEC)
    assert re.search(r"ring +2\.00 +2\.00 +2\.00 +4\.00 +3\.00$", told, re.MULTILINE)


def test_the_slowest_rank_counts_in_every_sample() -> None:
    times = summarize([np.array([1000, 9000, 3000]), np.array([5000, 2000, 3000])])
    assert (times.minimum, times.median, times.maximum, times.samples) == (3.0, 5.0, 9.0, 3)


def test_other_programs_share_is_what_is_busy_and_not_ours() -> None:
    assert CpuTime(100.0, 50.0, 10.0).others_share(CpuTime(120.0, 65.0, 15.0), 5.0) == pytest.approx(0.5)
    assert CpuTime(100.0, 50.0, 10.0).others_share(CpuTime(100.0, 50.0, 10.0), 0.0) == 0.0


def test_the_plot_is_an_image_with_every_mode(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    from roce_ring.bench.plot import plot, plot_problem

    file = tmp_path / "latency.svg"
    assert plot_problem(file) is None
    rows = [row(mode, size / 100, 0, size) for mode in ("full", "ring", "gloo") for size in (2048, 4096)]
    plot(result(*rows, row("halving", 5.0, wrong=1)), file)
    drawn = file.read_text()
    assert all(f"<!-- {mode} -->" in drawn for mode in ("full", "ring", "gloo")) and "halving" not in drawn


# ---- one rank among hosts ----

PLAN_OF_FOUR = "mesh/examples/four-spark-ring.yaml"


@pytest.fixture
def plan_file(tmp_path: Path) -> str:
    from mesh.loading import load_facts
    from mesh.planner import make_plan

    file = tmp_path / "plan.json"
    plan, _ = make_plan(load_facts(Path(__file__).parents[2] / PLAN_OF_FOUR))
    file.write_bytes(msgspec.json.encode(plan))
    return str(file)


def test_a_host_is_the_rank_whose_ports_it_has_or_whose_name(plan_file: str, tmp_path: Path) -> None:
    plan = plan_of(plan_file)
    port = tmp_path / "net" / "enp1s0f0np0" / "address"
    port.parent.mkdir(parents=True)
    port.write_text(plan.nodes[2].hcas[1].mac.upper() + "\n")
    assert rank_here(plan, plan_file, tmp_path / "net", "elsewhere") == 2
    assert rank_here(plan, plan_file, tmp_path / "none", f"{plan.nodes[1].host}.lan") == 1
    with pytest.raises(ConfigError, match=r"does not tell which rank this host \(elsewhere\) is") as refused:
        rank_here(plan, plan_file, tmp_path / "none", "elsewhere")
    assert "--rank 0 to 3" in refused.value.hint


def test_a_rank_that_is_another_hosts_is_refused(
    plan_file: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise every rank advises to give correct ports other addresses."""
    plan = plan_of(plan_file)
    port = tmp_path / "enp1s0f0np0" / "address"
    port.parent.mkdir()
    port.write_text(plan.nodes[2].hcas[1].mac + "\n")
    monkeypatch.setattr("roce_ring.bench.member._NET", tmp_path)
    settings = Settings(plan=plan_file)
    assert place_of("unix:/nowhere", settings, 2, None, "").rank == 2
    with pytest.raises(ConfigError, match=r"--rank is 3, but this host has the ports of rank 2 \(s3\)"):
        place_of("unix:/nowhere", settings, 3, None, "")


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["--join", "10.0.0.1:29400", "--plan", "PLAN", "--rank", "0"], "--tls DIR, a directory with ca.pem"),
        (["--join", "10.0.0.1:29400", "--plan", "PLAN", "--rank", "0", "--tls", "/nowhere"], "ca file /nowhere/ca.pem"),
        (["--join", "unix:/nowhere"], "--join needs the plan"),
        (["--rank", "1", "--tls", "x"], "--rank, --tls is for several hosts, but --join is not there"),
        (["--join", "unix:/nowhere", "--local", "3", "--compare", "gloo"], "--local, --compare is for one machine"),
        (["--join", "spark1:29400", "--plan", "PLAN", "--rank", "0"], "without mutual TLS anybody could take part"),
        (["--join", "unix:/nowhere", "--plan", "PLAN", "--rank", "7"], "--rank is 7, expected 0 to 3"),
    ],
)
def test_what_joining_lacks_is_said(place: Place, plan_file: str, arguments: list[str], sentence: str) -> None:
    status, _, err = place.run(*[plan_file if one == "PLAN" else one for one in arguments], "--sizes", "4")
    assert status == 2
    assert sentence in err
    assert "Traceback" not in err
