"""Ranks that torch.distributed has brought together, as an engine does: real processes, a gloo group."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

pytest.importorskip("torch", reason="torch is not installed; engines bring it")

PROGRAM = """
import sys, time
from datetime import timedelta
import torch.distributed as dist
from roce_ring.errors import RoceRingError
from roce_ring.exchange import TorchExchange, agree
rank, world = int(sys.argv[1]), 3
store = "file://{tmp}/store"
dist.init_process_group("gloo", init_method=store, rank=rank, world_size=world, timeout=timedelta(seconds=60))
exchange = TorchExchange()
print(exchange.rank, exchange.world, flush=True)
try:
{body}
except RoceRingError as error:
    print(error.message, flush=True)
"""


def start(tmp_path: Path, body: str) -> list[subprocess.Popen[str]]:
    program = PROGRAM.format(tmp=tmp_path, body="\n".join(f"    {line}" for line in body.splitlines()))
    return [
        subprocess.Popen(
            [sys.executable, "-c", program, str(rank)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        for rank in range(3)
    ]


def finish(ranks: list[subprocess.Popen[str]], skip: int = -1) -> list[list[str]]:
    try:
        return [process.communicate(timeout=30)[0].splitlines() for r, process in enumerate(ranks) if r != skip]
    finally:
        for process in ranks:
            process.kill()
            process.communicate()


def test_gathers_in_rank_order_agrees_and_knows_sub_groups(tmp_path: Path) -> None:
    """One start of torch for three promises: any bytes of any length; a tensor-parallel group is seldom the whole
    world, and its ranks are numbered within it; agree() works as over any exchange."""
    body = """\
for size in (0, 1, 1000):
    print(exchange.all_gather(bytes([rank]) * (size + rank), 20), flush=True)
group = dist.new_group([1, 2], backend="gloo")
try:
    some = TorchExchange(group)
    print(some.rank, some.all_gather(b"%d" % rank, 20), flush=True)
except RoceRingError as error:
    print(error.message, flush=True)
agree(exchange, {"max_bytes": 1 if rank == 1 else 2}, 20)"""
    out = finish(start(tmp_path, body))
    gathered = [str([bytes([r]) * (size + r) for r in range(3)]) for size in (0, 1, 1000)]
    for rank, lines in enumerate(out):
        assert lines[:4] == [f"{rank} 3", *gathered]
        assert lines[4] == (f"{rank - 1} [b'1', b'2']" if rank else "this process is not in that process group")
        assert lines[5:] == [
            "ranks differ in 1 of 1 facts, so no rank started:",
            "  max_bytes | ranks 0, 2 say 2 | rank 1 says 1",
        ]


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGSTOP])
def test_a_rank_that_dies_or_stops_is_named_by_all_others(tmp_path: Path, how: signal.Signals) -> None:
    ranks = start(tmp_path, "time.sleep(60 if rank == 2 else 1)\nexchange.all_gather(b'x', 2)")
    try:
        for process in ranks:
            assert process.stdout
            process.stdout.readline()
        ranks[2].send_signal(how)
        began = time.monotonic()
        for lines in finish(ranks, skip=2):
            assert "rank 2 went away or did not arrive within 2 s; arrived: 0, 1" in lines
        assert time.monotonic() - began < 20
    finally:
        for process in ranks:
            process.kill()
            process.communicate()
