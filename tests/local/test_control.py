"""Running ranks from outside: the CLI and the control client, against real sessions."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from roce_ring.errors import RoceRingError, SessionAborted
from tests.local.ranks import Rank, Ranks, Starter
from tests.local.test_stop import reduce_until_told

ABORTED = (r"somebody asked this session to abort",)


def roce_ring(ranks: Ranks, *arguments: str, status: int = 0) -> Any:
    """One run of the program as a user starts it; its JSON."""
    program = [sys.executable, "-m", "roce_ring.cli.main", *arguments, "--run-dir", str(ranks.where), "--json"]
    done = subprocess.run(program, capture_output=True, text=True, timeout=30)
    assert done.returncode == status, done.stdout + done.stderr
    return json.loads(done.stdout)


def client_of(ranks: Ranks, rank: int) -> Any:
    from roce_ring.control.client import RankClient

    return RankClient(Path(ranks.where) / f"local-r{rank}.sock", 5.0)


def until(reached: Callable[[], bool], timeout_s: float = 5.0) -> None:
    deadline = time.monotonic() + timeout_s
    while not reached():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def test_tune_status_and_stats_of_a_running_job(start: Starter) -> None:
    """An operator tunes a serving job: what `tune` says is what `stats` shows, on the ranks asked for, while sums stay
    right; and `status` says what the session is and what its memory holds."""
    ranks = start(reduce_until_told, 3, mode="full", elements=2000)
    ranks.wait_for("running")

    before = roce_ring(ranks, "stats")["ranks"]
    changed = roce_ring(ranks, "tune", "idle_spins=1234", "nap_us=70", "--rank", "1")["ranks"]
    after = roce_ring(ranks, "stats")["ranks"]
    assert [one["rank"] for one in changed] == [1]
    assert changed[0]["after"] == {"idle_spins": 1234, "nap_us": 70}
    idle = [(one["stats"]["idle_spins"], one["stats"]["nap_us"]) for one in before]
    assert changed[0]["before"] == {"idle_spins": idle[1][0], "nap_us": idle[1][1]}
    idle[1] = (1234, 70)
    assert [(one["stats"]["idle_spins"], one["stats"]["nap_us"]) for one in after] == idle
    for was, now in zip(before, after, strict=True):
        for counter in ("ops_posted", "writes_posted", "bytes_written", "last_seq_posted"):
            assert now["stats"][counter] > was["stats"][counter], f"rank {now['rank']} stands still: {counter}"
        posted = sum(path["writes_posted"] for peer in now["stats"]["peers"] for path in peer["paths"])
        assert abs(posted - now["stats"]["writes_posted"]) < 100  # counters of one moment, read one after the other

    status = roce_ring(ranks, "status")
    assert status["schema"] == "roce-ring/status/v1"
    for rank, one in enumerate(status["ranks"]):
        info, state = one["info"], one["state"]
        assert (one["rank"], info["rank"], info["world"], info["pid"]) == (rank, rank, 3, ranks.pid(rank))
        assert (state["state"], info["provider"], info["session_name"]) == ("RUNNING", "shm", "local")
        assert info["session_id"] == status["ranks"][0]["info"]["session_id"]
        assert [peer["rank"] for peer in info["peers"]] == [p for p in range(3) if p != rank]
        region = sum(part["size_bytes"] for part in one["stats"]["memory"])
        assert region == region_in_process(ranks.pid(rank), rank)
    ranks.go()
    for value in ranks.values():
        assert value["operations"] > 50


def region_in_process(pid: int, rank: int) -> int:
    """Bytes that the rank's own region takes in its address space."""
    sizes = []
    for line in Path(f"/proc/{pid}/maps").read_text().splitlines():
        if f"roce-ring-{pid}-" in line and f"-r{rank} " in line:
            low, high = line.split()[0].split("-")
            sizes.append(int(high, 16) - int(low, 16))
    assert len(sizes) == 1
    return sizes[0]


def wait_for_rank_that_never_comes(me: Rank) -> dict[str, Any]:
    """Rank 2 does not call, so the others block in the operation until somebody ends it; then all ranks reset."""
    with me.communicator() as ar:
        x = np.ones(1000, np.float32)
        for _ in range(10):
            ar.all_reduce(x)
        me.say("ready")
        if me.rank == 2:
            me.wait()
        with pytest.raises(SessionAborted) as first:
            ar.all_reduce(x)
        error = first.value
        raised = time.monotonic()
        for again in (ar.check, lambda: ar.all_reduce(x), lambda: ar.all_gather(x), lambda: ar.reduce_scatter(x)):
            with pytest.raises(SessionAborted) as caught:
                again()
            assert caught.value.code == error.code and caught.value.culprit == error.culprit
        assert time.monotonic() - raised < 1.0, "a dead session must answer at once"
        me.say("failed")
        me.wait()
        old_session = ar.session.session_id
        ar.reset()
        assert ar.session.session_id != old_session
        ar.check()
        for n in range(20):
            assert (ar.all_reduce(x * n) == me.world * n).all()
        me.say("works again")
        me.wait()
    return {"code": error.code, "culprit": error.culprit, "message": error.message, "hint": error.hint}


def test_abort_from_outside_and_reset(start: Starter) -> None:
    """A watchdog, or an operator, ends a job that hangs. Ranks whose main thread is blocked in the operation raise, all
    name the rank that was asked and the reason; health checks see it though that thread is blocked; nothing but reset()
    on all ranks brings it back, and that does."""
    ranks = start(wait_for_rank_that_never_comes, 4)
    ranks.wait_for("ready")
    with client_of(ranks, 2) as two, client_of(ranks, 1) as one:
        until(lambda: two.healthy() and one.healthy())
        asked = time.monotonic()
        state = one.abort("the watchdog saw no token for a minute")
        assert state.state in ("ABORTED", "RUNNING")
        until(lambda: not two.healthy() and not one.healthy())
        state = two.state()  # its main thread has not called anything
        assert (state.state, state.culprit_rank) == ("ABORTED", 1)
    assert roce_ring(ranks, "status", status=1)["ranks"][0]["state"]["state"] == "ABORTED"
    ranks.go([2])
    ranks.wait_for("failed")
    assert time.monotonic() - asked < 15
    ranks.go()
    ranks.wait_for("works again")
    with client_of(ranks, 2) as two:
        until(two.healthy)
    ranks.go()
    for rank, value in enumerate(ranks.values(allow=ABORTED)):
        assert (value["code"], value["culprit"]) == ("aborted_by_user", 1)
        assert "rank 1: somebody asked this session to abort" in value["message"]
        assert "reset()" in value["hint"]
        if rank == 1:
            assert "the watchdog saw no token for a minute" in value["message"]


def drained(me: Rank) -> None:
    with me.communicator() as ar:
        ar.all_reduce(np.ones(10, np.float32))
        me.say("ready")
        me.wait()
        with pytest.raises(RoceRingError, match="draining") as caught:
            ar.all_reduce(np.ones(10, np.float32))
        assert caught.value.code == "closed"


def test_drain_finishes_and_takes_no_more(start: Starter) -> None:
    """Before a rolling update: started operations finish, new ones are refused, health turns away new work."""
    ranks = start(drained, 2)
    ranks.wait_for("ready")
    for rank in (0, 1):
        with client_of(ranks, rank) as client:
            assert client.drain(2.0)
            assert client.state().state == "DRAINING"
            until(lambda client=client: not client.healthy())
    ranks.go()
    ranks.values()


def watched(me: Rank) -> None:
    with me.communicator() as ar:
        ar.all_reduce(np.ones(10, np.float32))
        time.sleep(0.1)  # events are handed over every 50 ms
        me.say("ready")
        me.wait()
        ar.session.control.abort("over")
        time.sleep(0.5)


def test_events_reach_a_watcher(start: Starter) -> None:
    """What a log line says is an event too: dashboards do not read logs."""
    from roce_ring.control.model import RankEvent

    ranks = start(watched, 2)
    ranks.wait_for("ready")
    events = []
    with client_of(ranks, 0) as client:
        client.set_idle(77, None)
        ranks.go()
        for update in client.watch(timeout_s=5):
            if isinstance(update, RankEvent):
                events.append(update)
                if update.kind == "ABORT":
                    break
    ranks.values(allow=ABORTED)
    kinds = [event.kind for event in events]
    assert {"STATE", "IDLE_POLICY"} < set(kinds) and kinds[-1] == "ABORT", events
    assert [event.index for event in events] == list(range(1, len(events) + 1))
    assert "somebody asked this session to abort" in events[-1].message


def hold_the_name(me: Rank) -> None:
    with me.communicator() as ar:
        me.say("up")
        me.wait()
        assert (ar.all_reduce(np.ones(3, np.float32)) == me.world).all()


def other_job(me: Rank) -> None:
    me.address = f"unix:{me.where}/other.sock"
    me.communicator()


def test_two_jobs_of_one_name_on_one_host(start: Starter) -> None:
    """A second job with the default name would take over the first one's control sockets. It is told to choose another,
    by all its ranks, and the first one does not notice."""
    first = start(hold_the_name, 2)
    first.wait_for("up")
    for error in start(other_job, 2).errors():
        assert error.type == "SetupError"
        assert "local-r0.sock is already served by a running process" in error.message
        assert f"pid {first.pid(0)}" in error.message
        assert "give this job another ROCE_RING_NAME" in error.message
    first.go()
    first.values()
