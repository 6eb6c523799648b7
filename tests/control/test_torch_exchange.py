"""Ranks that torch.distributed has brought together, as an engine does: real processes, a gloo group."""

from __future__ import annotations

import json
import subprocess
import sys
from importlib.util import find_spec

import pytest

pytestmark = pytest.mark.skipif(find_spec("torch") is None, reason="torch is not installed; engines bring it")

# Loading torch takes seconds, so one process loads it and forks the three ranks of every scene.
PROGRAM = """
import json, os, signal, sys, time
from datetime import timedelta
import torch.distributed as dist
from roce_ring.errors import RoceRingError
from roce_ring.exchange import TorchExchange, agree

folder = sys.argv[1]

def rank_of(scene, rank, say):
    store = f"file://{folder}/{scene}"
    dist.init_process_group("gloo", init_method=store, rank=rank, world_size=3, timeout=timedelta(seconds=60))
    exchange = TorchExchange()
    if scene == "healthy":
        say([exchange.rank, exchange.world])
        for size in (0, 1, 1000):
            say([one.hex() for one in exchange.all_gather(bytes([rank]) * (size + rank), 20)])
        group = dist.new_group([1, 2], backend="gloo")
        try:
            some = TorchExchange(group)
            say([some.rank, [one.hex() for one in some.all_gather(bytes([rank]), 20)]])
        except RoceRingError as error:
            say(error.message)
        agree(exchange, {"max_bytes": 1 if rank == 1 else 2}, 20)
    else:
        exchange.barrier(20)
        if rank == 2:
            os.kill(os.getpid(), signal.SIGKILL if scene == "killed" else signal.SIGSTOP)
        began = time.monotonic()
        try:
            exchange.all_gather(b"x", 1)
        finally:
            say(time.monotonic() - began)

said = {}
for scene in ("healthy", "killed", "stopped"):
    pids = []
    for rank in range(3):
        pid = os.fork()
        if pid == 0:
            lines = []
            try:
                rank_of(scene, rank, lines.append)
            except RoceRingError as error:
                lines.append(error.message)
            with open(f"{folder}/{scene}-{rank}.json", "w") as file:
                json.dump(lines, file)
            os._exit(0)
        pids.append(pid)
    for pid in pids[: 3 if scene == "healthy" else 2]:
        os.waitpid(pid, 0)
    if scene == "stopped":
        os.kill(pids[2], signal.SIGKILL)
    here = range(3 if scene == "healthy" else 2)
    said[scene] = [json.load(open(f"{folder}/{scene}-{rank}.json")) for rank in here]
print(json.dumps(said))
"""


@pytest.fixture(scope="module")
def said(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[list[object]]]:
    """Scene -> what each rank said."""
    folder = tmp_path_factory.mktemp("torch")
    command = [sys.executable, "-W", "ignore", "-c", PROGRAM, str(folder)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=55)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)  # type: ignore[no-any-return]


def test_gathers_any_bytes_of_any_length_in_rank_order(said: dict[str, list[list[object]]]) -> None:
    for rank, lines in enumerate(said["healthy"]):
        assert lines[0] == [rank, 3]
        assert lines[1:4] == [[(bytes([r]) * (size + r)).hex() for r in range(3)] for size in (0, 1, 1000)]


def test_ranks_of_a_sub_group_are_numbered_within_it(said: dict[str, list[list[object]]]) -> None:
    """A tensor-parallel group is seldom the whole world."""
    assert [lines[4] for lines in said["healthy"]] == [
        "this process is not in that process group",
        [0, ["01", "02"]],
        [1, ["01", "02"]],
    ]


def test_agree_works_as_over_any_exchange(said: dict[str, list[list[object]]]) -> None:
    table = "ranks differ in 1 of 1 facts, so no rank started:\n  max_bytes | ranks 0, 2 say 2 | rank 1 says 1"
    assert [lines[5] for lines in said["healthy"]] == [table] * 3


@pytest.mark.parametrize("scene", ["killed", "stopped"])
def test_a_rank_that_dies_or_stops_is_named_by_all_others(said: dict[str, list[list[object]]], scene: str) -> None:
    for seconds, message in said[scene]:
        assert message == "rank 2 went away or did not arrive within 1 s; arrived: 0, 1"
        assert float(str(seconds)) < 5
