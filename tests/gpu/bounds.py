"""Nothing waits for ever: a killed rank, an abort, a rank that does not come, a communicator closed under a live graph.

    python tests/gpu/bounds.py

Ranks are processes that share the GPU in turns, without MPS: a client that dies under MPS in the middle of a kernel may
take the others with it.
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
import threading
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
from tests.gpu.sample import Room, expected, inputs
from tests.gpu.world import Rank, run

WORLD = 4
COUNT = 1024


def _graph(rank: Rank, operations: int) -> tuple[Any, Room, Room]:
    x, out = Room(4 * COUNT), Room(4 * COUNT)
    x.use(COUNT, "float32", 0)
    out.use(COUNT, "float32", 0)
    x.put(inputs(1, WORLD, COUNT, "float32", False)[rank.rank])
    x.bits()
    given, result = x.tensor(), out.tensor()
    rank.stream.begin_capture()
    for _ in range(operations):
        rank.comm.all_reduce(given, result, mode="full")
    graph = rank.stream.end_capture()
    rank.meet()
    graph.launch(rank.stream)
    rank.stream.synchronize()
    assert (out.bits() == expected(1, WORLD, COUNT, "float32", False)).all(), "the first replay is wrong"
    rank.meet()
    return graph, x, out


def killed(rank: Rank) -> dict[str, Any]:
    """Rank 3 is killed during replays. The others sit in synchronise; a second thread's check() tells why within 5 s,
    and later replays return at once."""
    from roce_ring.errors import SessionAborted

    graph, _, _ = _graph(rank, 4)
    if rank.rank == 3:
        threading.Timer(0.5, lambda: os.kill(os.getpid(), signal.SIGKILL)).start()
    told: dict[str, Any] = {}
    began = time.monotonic()

    def watch() -> None:
        while time.monotonic() - began < 20:
            try:
                rank.comm.check()
            except SessionAborted as error:
                told.update(after_s=time.monotonic() - began, culprit=error.culprit, code=error.code)
                return
            time.sleep(0.01)

    watcher = threading.Thread(target=watch)
    watcher.start()
    for _ in range(2000):
        graph.launch(rank.stream)
        rank.stream.synchronize()
        if told:
            break
    watcher.join()
    back = time.monotonic()
    for _ in range(20):
        graph.launch(rank.stream)
    rank.stream.synchronize()
    return {
        "ok": told.get("culprit") == 3 and told.get("after_s", 99) < 5.5,
        **told,
        "20 replays after it, ms": round((time.monotonic() - back) * 1e3, 1),
    }


def aborted(rank: Rank) -> dict[str, Any]:
    """Somebody aborts rank 1's session: all name it, and an eager call raises."""
    from roce_ring.errors import SessionAborted

    graph, x, out = _graph(rank, 2)
    if rank.rank == 1:
        rank.comm.session.control.abort("the test asked for it")
    told = ""
    began = time.monotonic()
    while not told and time.monotonic() - began < 10:
        try:
            rank.comm.check()
        except SessionAborted as error:
            told = f"{error.code} {error.culprit}"
    graph.launch(rank.stream)
    rank.stream.synchronize()
    try:
        rank.comm.all_reduce(x.tensor(), out.tensor())
        told += ", but an operation was taken"
    except SessionAborted:
        pass
    return {"ok": told == "aborted_by_user 1", "said": told}


def late(rank: Rank) -> dict[str, Any]:
    """Rank 2 does not come. The others wait in synchronise, are told who is late, and give up at the hard deadline."""
    from roce_ring.errors import PeerTimeout

    graph, _, _ = _graph(rank, 1)
    if rank.rank == 2:
        time.sleep(6.0)
    began = time.monotonic()
    graph.launch(rank.stream)
    rank.stream.synchronize()
    took = time.monotonic() - began
    deadline = time.monotonic() + 3
    while time.monotonic() < deadline:
        try:
            rank.comm.check()
            time.sleep(0.01)
        except PeerTimeout as error:
            late_reports = rank.comm.session.read_stats().late_reports
            return {
                "ok": error.culprit == 2 and (rank.rank == 2 or (2.5 < took < 5 and late_reports > 0)),
                "culprit": error.culprit,
                "synchronise returned after s": round(took, 1),
            }
    return {"ok": False, "said": "nothing"}


def closed(rank: Rank) -> dict[str, Any]:
    """A graph outlives its communicator: its replay does nothing, at once."""
    import cupy as cp

    graph, _, out = _graph(rank, 3)
    session = rank.comm.session
    rank.meet()
    session.close()
    out.poison()
    rank.stream.synchronize()
    began = time.monotonic()
    for _ in range(10):
        graph.launch(rank.stream)
    rank.stream.synchronize()
    took = (time.monotonic() - began) * 1e3
    untouched = bool((out.memory == 0xA5).all())
    rank.comm.reset()
    graph2, _, _ = _graph(rank, 2)
    cp.cuda.runtime.deviceSynchronize()
    del graph2
    return {"ok": untouched, "10 replays, ms": round(took, 1)}


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--provider", default="shm", help="shm or pcie")
    provider = parser.parse_args().provider
    bad = 0
    for scenario, settings in (
        (aborted, {}), (late, {"peer_timeout_s": 3.0}), (closed, {}), (killed, {"dead_peer_s": 5.0}),
    ):  # fmt: skip
        try:
            missing = 3 if scenario is killed else None
            found = run(scenario, WORLD, as_threads=False, missing=missing, provider=provider, **settings)
        except RuntimeError as error:
            bad += 1
            print(f"bounds: {scenario.__name__}: FAILED\n{error}", flush=True)
            continue
        ok = all(one["ok"] for one in found if one)
        bad += not ok
        print(f"bounds: {scenario.__name__}: {'ok' if ok else 'FAILED'}: {found}", flush=True)
    print(f"bounds: {'FAILED' if bad else 'passed'}")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
