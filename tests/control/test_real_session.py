"""The control service of real ranks: three processes that reduce over shm, watched, tuned and aborted from outside."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from roce_ring.control.client import RankClient
from roce_ring.control.model import EventKind, RankEvent, SessionState
from roce_ring.control.rundir import Reach, scan, socket_path

PROGRAM = """
import sys, time
import numpy as np
from roce_ring.communicator import AllReduce
from roce_ring.errors import RoceRingError

rank, world, address = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
ring = AllReduce.from_rendezvous(address, rank, world)
print("ready", flush=True)
x = np.full(1000, rank + 1, np.float32)
try:
    while True:
        assert (ring.all_reduce(x) == world * (world + 1) / 2).all()
        time.sleep(0.002)
except RoceRingError as error:
    print(error.code, error.message, flush=True)
sys.stdin.readline()
ring.close()
"""


@pytest.fixture
def ranks(tmp_path: Path) -> Iterator[tuple[Path, list[subprocess.Popen[str]]]]:
    """(run directory, three ranks that reduce until their session ends, then wait for a line)."""
    run_dir = tmp_path / "run"
    environ = os.environ | {"ROCE_RING_RUN_DIR": str(run_dir), "ROCE_RING_NAME": "job"}
    started = [
        subprocess.Popen(
            [sys.executable, "-c", PROGRAM, str(rank), "3", f"unix:{tmp_path}/meet.sock"],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environ,
        )
        for rank in range(3)
    ]  # fmt: skip
    try:
        for process in started:
            assert process.stdout
            assert process.stdout.readline() == "ready\n", process.stderr and process.stderr.read()
        yield run_dir, started
    finally:
        for process in started:
            process.kill()
            process.communicate()


def until(condition: Callable[[], bool]) -> bool:
    deadline = time.monotonic() + 10
    while not condition() and time.monotonic() < deadline:
        time.sleep(0.02)
    return condition()


def test_real_ranks_are_seen_tuned_and_aborted(ranks: tuple[Path, list[subprocess.Popen[str]]]) -> None:
    run_dir, processes = ranks
    assert [(one.rank, one.reach) for one in scan(run_dir)] == [(r, Reach.RUNNING) for r in range(3)]
    clients = [RankClient(socket_path(run_dir, "job", r), timeout_s=5) for r in range(3)]

    infos = [client.info() for client in clients]
    assert [one.pid for one in infos] == [process.pid for process in processes]
    assert len({one.session_id for one in infos}) == len({one.settings_hash for one in infos}) == 1
    assert [client.state().state for client in clients] == [SessionState.RUNNING] * 3
    assert until(clients[0].healthy)
    before = clients[0].stats()
    assert until(lambda: clients[0].stats().last_seq_completed > before.last_seq_completed + 5)
    assert sum(part.size_bytes for part in before.memory) > 3 * 262144
    assert [peer.rank for peer in before.peers] == [1, 2]

    _, after = clients[1].set_idle(4321, 33, infos[1].session_id)
    assert (after.idle_spins, after.nap_us) == (4321, 33)
    assert until(lambda: (clients[1].stats().idle_spins, clients[1].stats().nap_us) == (4321, 33))
    assert clients[0].stats().idle_spins == before.idle_spins

    state = clients[2].abort("the test said so", infos[2].session_id)
    assert (state.state, state.culprit_rank) == (SessionState.ABORTED, 2)
    for process, client in zip(processes, clients, strict=True):
        assert process.stdout
        assert "rank 2" in process.stdout.readline()
        assert client.state().culprit_rank == 2
        assert until(lambda: not client.healthy())  # noqa: B023
        kinds = [one.kind for one in client.watch(timeout_s=1) if isinstance(one, RankEvent)]
        assert EventKind.ABORT in kinds

    for process in processes:
        _, err = process.communicate("\n", timeout=20)
        assert process.returncode == 0, err
    assert list(run_dir.iterdir()) == [], "closed ranks leave nothing behind"
