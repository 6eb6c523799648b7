"""`roce-ring status`, `stats` and `tune` as a user types them, against running servers."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from roce_ring.cli.main import VERBS, build
from roce_ring.control.model import EventKind, RankState, SessionState
from roce_ring.control.server import RankServer

Run = Callable[..., tuple[int, str, str]]
Serve = Callable[..., tuple[Any, RankServer]]


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, typed: Run, run_dir: Path) -> Run:
    """run("status", "--json") -> (exit status, stdout, stderr)."""
    monkeypatch.setenv("ROCE_RING_RUN_DIR", str(run_dir))

    return typed


PROGRAM = [sys.executable, "-m", "roce_ring.cli.main"]


def program(*arguments: str, **environ: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [*PROGRAM, *arguments],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=os.environ | environ,
    )  # fmt: skip


def test_no_argument_prints_every_verb_under_its_task(run: Run) -> None:
    code, out, _ = run()
    assert code == 0
    task, listed = "", {}
    for line in out.splitlines():
        if title := re.match(r"╭─ (.+?) ─", line):
            task = title[1]
        elif first := re.match(r"│ (\w+)", line):
            listed[first[1]] = task
    assert {verb: listed.get(verb) for verb in VERBS} == VERBS


def test_version(run: Run) -> None:
    code, out, _ = run("--version")
    assert code == 0
    assert re.fullmatch(r"roce-ring \d+\.\d+\S*\n", out)


def test_the_program_starts_without_its_heavy_parts() -> None:
    """Help and completion must not wait for gRPC, numpy or torch."""
    heavy = ("grpc", "google.protobuf", "numpy", "torch")
    check = f"import sys, roce_ring.cli.main as m; m.build(); print([x for x in {heavy} if x in sys.modules])"
    assert subprocess.run([sys.executable, "-c", check], capture_output=True, text=True, check=True).stdout == "[]\n"


def test_status_shows_every_rank_with_its_reason(run: Run, serve: Serve) -> None:
    for rank in range(3):
        serve(rank=rank)
    serve(rank=3, now=RankState(SessionState.RUNNING, waiting_for_ranks=(2,)))
    code, out, err = run("status")
    assert (code, err) == (0, "")
    rows = out.splitlines()
    columns = "session,rank,world,state,pid,seq,provider,device,memory,found asleep,reason"
    assert re.split(" {2,}", rows[0]) == columns.split(",")
    assert rows[1].split() == [
        "job",
        "0",
        "4",
        "RUNNING",
        "4242",
        "4,294,967,301",
        "shm",
        "cuda:1",
        "3.0",
        "MiB",
        "25.0%",
    ]
    assert rows[4].endswith("waiting for rank 2")
    assert rows[5] == "memory of a rank of job: header 4.0 KiB, recv 3.0 MiB"


def test_status_of_an_aborted_rank_names_the_culprit_and_exits_1(run: Run, serve: Serve) -> None:
    serve(now=RankState(SessionState.ABORTED, "a peer's process is gone", culprit_rank=2, sequence=12))
    code, out, _ = run("status")
    assert code == 1
    assert "a peer's process is gone; culprit rank 2" in out


def test_status_with_nothing_running_says_where_it_looked(run: Run, run_dir: Path) -> None:
    run_dir.mkdir()
    assert run("status") == (1, f"no rank is running on this host (looked in {run_dir})\n", "")
    assert json.loads(run("status", "--json")[1]) == {"schema": "roce-ring/status/v1", "ranks": []}


def test_status_json_is_complete(run: Run, serve: Serve) -> None:
    control, server = serve()
    code, out, _ = run("status", "--json")
    (rank,) = json.loads(out)["ranks"]
    assert (code, rank["socket"], rank["info"]["session_id"]) == (0, str(server.path), control.session_id)
    assert rank["state"] == {
        "state": "RUNNING", "reason": "", "culprit_rank": None, "sequence": None, "waiting_for_ranks": [],
    }  # fmt: skip
    assert rank["stats"]["memory"][1] == {"name": "recv", "size_bytes": 3 << 20}


def test_a_dead_and_a_stopped_rank_are_rows_not_failures(run: Run, serve: Serve, run_dir: Path) -> None:
    """One bad rank must not hide the good ones, and the stopped one is the one to look for."""
    serve()
    with socket.socket(socket.AF_UNIX) as dead, socket.socket(socket.AF_UNIX) as stopped:
        dead.bind(str(run_dir / "job-r1.sock"))
        stopped.bind(str(run_dir / "job-r2.sock"))
        stopped.listen()
        code, out, err = run("status", "--timeout", "0.3")
    assert (code, err) == (1, "")
    assert "RUNNING" in out
    assert re.search(r"^job +1 +stale .*is gone; its socket was left behind", out, re.MULTILINE)
    assert re.search(r"^job +2 +no-answer .*did not answer within 0\.3 s", out, re.MULTILINE)


def test_session_selects(run: Run, serve: Serve) -> None:
    serve()
    serve("other", rank=1)
    assert [one["session_name"] for one in json.loads(run("status", "--session", "other", "--json")[1])["ranks"]] == [
        "other"
    ]
    assert run("status", "--session", "none")[1].startswith("no rank of session none is running on this host")


def test_stats_has_a_row_for_every_counter_and_every_path(run: Run, serve: Serve) -> None:
    serve(rank=0)
    serve(rank=1)
    code, out, _ = run("stats")
    assert code == 0
    assert re.search(r"^counter +job r0 +job r1$", out, re.MULTILINE)
    assert re.search(r"^ops_posted +7 +7$", out, re.MULTILINE)
    assert re.search(r"^asleep_share +0\.2500 +0\.2500$", out, re.MULTILINE)
    assert re.search(r"^job +1 +1 +shm +7 +7 +4,096 +0$", out, re.MULTILINE)
    ranks = json.loads(run("stats", "--json")[1])["ranks"]
    assert [one["stats"]["ops_posted"] for one in ranks] == [7, 7]


def test_tune_changes_running_ranks_and_stats_shows_it(run: Run, serve: Serve) -> None:
    for rank in range(2):
        serve(rank=rank)
    code, out, _ = run("tune", "idle_spins=5000")
    assert code == 0
    assert out.splitlines() == [f"job rank {r}: idle_spins 20000000 -> 5000, nap_us 20 -> 20" for r in range(2)]
    code, out, _ = run("tune", "nap_us=50", "--rank", "1", "--json")
    (one,) = json.loads(out)["ranks"]
    assert one["before"] == {"idle_spins": 5000, "nap_us": 20}
    assert one["after"] == {"idle_spins": 5000, "nap_us": 50}
    assert [
        (s["stats"]["idle_spins"], s["stats"]["nap_us"]) for s in json.loads(run("stats", "--json")[1])["ranks"]
    ] == [
        (5000, 20),
        (5000, 50),
    ]


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["idle_spin=5"], "idle_spin is not a setting; did you mean idle_spins?"),
        (["idle_spins"], "'idle_spins' is not KEY=VALUE"),
        (["idle_spins="], "idle_spins: set but empty"),
        (["idle_spins=many"], "idle_spins: expected a whole number of polls from -1 to 1000000000000, got 'many'"),
        (["idle_spins=-1"], "idle_spins: -1 lets a starting rank choose; give a running one a number"),
        (["nap_us=0", "max_bytes=5"], "max_bytes is fixed while ranks run; idle_spins and nap_us can be changed"),
        (["nap_us=5", "nap_us=6"], "nap_us is given twice"),
        (["nap_us=0"], "nap_us: expected a whole number of microseconds from 1 to 1000, got '0'"),
    ],
)
def test_a_wrong_tune_is_one_sentence_and_changes_nothing(
    run: Run, serve: Serve, arguments: list[str], sentence: str
) -> None:
    control, _ = serve()
    before = control.counters
    code, out, err = run("tune", *arguments)
    assert (code, out) == (2, "")
    assert sentence in err
    assert "Traceback" not in err
    assert control.counters == before


def test_tune_of_ranks_that_do_not_run_exits_as_status_does(run: Run, serve: Serve) -> None:
    """A script that tunes before the job is up must be able to tell that from a wrong command line."""
    serve()
    code, out, err = run("tune", "nap_us=5", "--rank", "7")
    assert (code, err) == (1, "")
    assert out.startswith("no rank 7 is running on this host")
    code, out, _ = run("tune", "nap_us=5", "--session", "none", "--json")
    assert (code, json.loads(out)) == (1, {"schema": "roce-ring/tune/v1", "ranks": []})


def test_a_run_directory_that_is_not_there_is_said(run: Run, tmp_path: Path) -> None:
    """A typo in --run-dir must not look like a job that is down."""
    code, out, _ = run("status", "--run-dir", str(tmp_path / "nowhere"))
    assert code == 1
    assert out == f"no rank is running on this host (there is no directory {tmp_path / 'nowhere'})\n"


@pytest.mark.parametrize("unbuffered", ["", "1"])
@pytest.mark.parametrize("arguments", [["status"], ["stats", "--json"], ["--help"], ["--version"]])
def test_a_full_disk_under_the_output_is_one_sentence(run_dir: Path, arguments: list[str], unbuffered: str) -> None:
    """`roce-ring status > /full/disk/file`: a result that nobody can read is no success, and no traceback."""
    environ = {**os.environ, "ROCE_RING_RUN_DIR": str(run_dir), "PYTHONUNBUFFERED": unbuffered}
    with Path("/dev/full").open("w") as full:
        ran = subprocess.run(
            [*PROGRAM, *arguments], stdout=full, stderr=subprocess.PIPE, text=True, env=environ, check=False
        )
    sentence = "roce-ring: standard output cannot be written: no space left on device\n"
    assert (ran.returncode, ran.stderr) == (2, sentence)


def test_a_reader_that_has_seen_enough_and_a_closed_output(serve: Serve, run_dir: Path) -> None:
    serve()
    read, write = os.pipe()
    os.close(read)
    environ = {**os.environ, "ROCE_RING_RUN_DIR": str(run_dir)}
    gone = subprocess.run(
        [*PROGRAM, "status"], stdout=write, stderr=subprocess.PIPE, text=True, env=environ, check=False
    )
    os.close(write)
    assert (gone.returncode, gone.stderr) == (0, "")
    shut = subprocess.run(
        ["sh", "-c", '"$@" >&-', "sh", *PROGRAM, "status"], stderr=subprocess.PIPE, text=True, env=environ, check=False
    )
    assert (shut.returncode, shut.stderr.count("\n")) == (2, 1)
    assert "standard output is closed" in shut.stderr


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["bench", "--local", "1"], "Invalid value for '--local': '1' is not a whole number from 2 to 16"),
        (["bench", "--iters", "x"], "Invalid value for '--iters': 'x' is not a whole number from 1 to 100000"),
        (["bench", "--paths", "5"], "Invalid value for '--paths': '5' is not a whole number from 1 to 4"),
        (["status", "--timeout", "nan"], "Invalid value for '--timeout': 'nan' is not a number from 0.1 to 60"),
        (["stats", "--watch", "-1"], "Invalid value for '--watch': '-1' is not a number from 0 to 3600"),
        (["tune", "nap_us=5", "--rank", "16"], "Invalid value for '--rank': '16' is not a whole number from -1 to 15"),
    ],
)
def test_a_number_out_of_range_is_told_with_its_range(run: Run, arguments: list[str], sentence: str) -> None:
    code, out, err = run(*arguments)
    assert (code, out) == (2, "")
    assert sentence in " ".join(re.sub("[│╭╮╰╯─]", " ", err).split())


def test_an_unreadable_run_directory_is_one_sentence(run: Run, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    code, out, err = run("status", "--run-dir", str(tmp_path / "file"))
    assert (code, out) == (2, "")
    assert err.startswith(
        f"roce-ring: cannot look for running ranks in {tmp_path / 'file'}: not a directory\n  fix: see --run-dir"
    )


@pytest.mark.parametrize("arguments", [["statu"], ["status", "--nope"], ["tune"], ["status", "--timeout", "x"]])
def test_wrong_usage_exits_2(run: Run, arguments: list[str]) -> None:
    code, out, err = run(*arguments)
    assert (code, out) == (2, "")
    assert "Traceback" not in err


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (["statu"], "usage", "No such command 'statu'"),
        (["status", "--nope"], "usage", "No such option: --nope"),
        (["up"], "usage", "Missing argument 'PLAN'"),
        (["bench", "--local", "1"], "usage", "is not a whole number from 2 to 16"),
        (["bench", "--mode", "foo"], "config", "'foo' is not a mode"),
        (["bench", "--plan", "/no/such", "--join", "unix:/x"], "config", "/no/such"),
        (["acs", "clear", "--nope"], "usage", "No such option: --nope"),
        (["plan"], "usage", "give either FACTS or --ssh HOST..."),
        (["plan", "--bogus"], "usage", "unrecognized arguments: --bogus"),
        (["plan", "mesh/examples/triangle.yaml", "--out", "/dev/null"], "setup", "/dev/null is a file"),
        (["doctor", "--bogus"], "usage", "unrecognized arguments: --bogus"),
        (["doctor", "--plan", "/no/such"], "file-missing", "/no/such: cannot be read"),
        (["doctor", "--from", "/no/such"], "file-missing", "/no/such: cannot be read"),
        (["doctor", "--evidence-out", "/no/such/x"], "setup", "/no/such/x cannot be written"),
        (["tune", "nap_us=x"], "config", "nap_us"),
    ],
)
def test_with_json_there_is_a_document_whatever_happens(run: Run, arguments: list[str], code: str, said: str) -> None:
    """A program that reads standard output must never find nothing; a person reads the other stream."""
    status, out, err = run(*arguments, "--json")
    document = json.loads(out)
    assert (status, document["schema"], set(document["error"])) == (
        2,
        "roce-ring/error/v1",
        {"code", "message", "hint"},
    )
    assert (document["error"]["code"], said in document["error"]["message"]) == (code, True), out
    assert err
    assert run(*arguments)[:2] == (2, "")


@pytest.mark.parametrize("arguments", [["up"], ["up", "/no/such"], ["doctor", "--bogus"], ["doctor", "--from", "/no"]])
def test_an_error_in_json_that_cannot_be_written_is_no_traceback(arguments: list[str]) -> None:
    with Path("/dev/full").open("w") as full:
        done = subprocess.run([*PROGRAM, *arguments, "--json"], stdout=full, stderr=subprocess.PIPE, text=True)
    assert (done.returncode, "Traceback" in done.stderr) == (2, False)


def test_help_flows_with_the_terminal() -> None:
    """No line of it ends where a line of the source did."""
    for command in build().registered_commands:
        assert "\n" not in (command.help or "").replace("\n\n", ""), command.name


def test_status_follow_prints_events_as_they_happen_until_ctrl_c(serve: Serve, run_dir: Path) -> None:
    control, _ = serve()
    control.happen(EventKind.LATE, "rank 2 is late", 2)
    process = program("status", "--follow", ROCE_RING_RUN_DIR=str(run_dir), PYTHONUNBUFFERED="1")
    assert process.stdout
    lines = iter(process.stdout.readline, "")
    assert any(line == "job rank 0: late: rank 2 is late\n" for line in lines)
    control.happen(EventKind.RESOLVED, "rank 2 came after 1.2 s", 2)
    assert next(lines) == "job rank 0: resolved: rank 2 came after 1.2 s\n"
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=10)
    assert (process.returncode, err) == (130, "interrupted\n")


def test_status_follow_in_json_is_a_document_a_line(serve: Serve, run_dir: Path) -> None:
    """Events have a schema too, and a rank that goes is told as one that is there."""
    control, server = serve()
    control.happen(EventKind.LATE, "rank 2 is late", 2)
    process = program("status", "--follow", "--json", ROCE_RING_RUN_DIR=str(run_dir), PYTHONUNBUFFERED="1")
    assert process.stdout
    table, event = (json.loads(process.stdout.readline()) for _ in range(2))
    assert (table["schema"], event["schema"]) == ("roce-ring/status/v1", "roce-ring/event/v1")
    assert (event["rank"], event["message"]) == (0, "rank 2 is late")
    server.close()
    out, _ = process.communicate(timeout=10)
    *_, last = map(json.loads, out.splitlines())
    assert (last["schema"], set(last["error"])) == ("roce-ring/event/v1", {"code", "message"})


def test_stats_watch_repeats_until_interrupted(serve: Serve, run_dir: Path) -> None:
    control, _ = serve()
    process = program("stats", "--json", "--watch", "0.1", ROCE_RING_RUN_DIR=str(run_dir))
    assert process.stdout
    first = json.loads(process.stdout.readline())
    control.set_idle(77, None)
    deadline = time.monotonic() + 10
    while time.monotonic() < deadline:
        if json.loads(process.stdout.readline())["ranks"][0]["stats"]["idle_spins"] == 77:
            break
    else:
        pytest.fail("the change never showed")
    assert first["schema"] == "roce-ring/stats/v1"
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=10)
    assert (process.returncode, err) == (130, "interrupted\n")
