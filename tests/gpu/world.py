"""Ranks of one job on one GPU, for the scripts of this folder: threads of this process, each with a stream of its own,
or processes that share the GPU through MPS. Both meet and run as a user's ranks would: AllReduce.from_rendezvous.

A scenario is a function of one `Rank` at the top level of a script. What it returns comes back, index = rank.
"""

from __future__ import annotations

import contextlib
import faulthandler
import multiprocessing
import sys
import tempfile
import threading
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))


@dataclass
class Rank:
    """`as_threads`: all ranks share this process."""

    rank: int
    world: int
    address: str
    as_threads: bool
    settings: dict[str, Any]
    data: Any
    missing: int | None  # a rank that ends without an answer
    comm: Any = field(default=None, init=False)
    stream: Any = field(default=None, init=False)

    def open(self) -> None:
        import cupy as cp

        from roce_ring import AllReduce
        from roce_ring.settings import Settings

        self.stream = cp.cuda.Stream(non_blocking=True)
        settings = Settings(**{"name": f"gpu-{self.world}", "provider": "shm", **self.settings})
        self.comm = AllReduce.from_rendezvous(
            self.address, self.rank, self.world, settings=settings, device="cuda", serve=False
        )

    def meet(self) -> None:
        """All ranks are here."""
        self.comm._exchange.barrier(60.0)


def _body(rank: Rank, scenario: Callable[[Rank], Any]) -> Any:
    import torch

    rank.open()
    try:
        with rank.stream, torch.cuda.stream(torch.cuda.ExternalStream(rank.stream.ptr)):
            found = scenario(rank)
            rank.stream.synchronize()
        if rank.missing is None:
            rank.meet()
        return found
    finally:
        rank.comm.close()


def _process(rank: Rank, scenario: Callable[[Rank], Any], pipe: Any) -> None:
    try:
        pipe.send((True, _body(rank, scenario)))
    except BaseException:
        pipe.send((False, traceback.format_exc()))


def run(
    scenario: Callable[[Rank], Any],
    world: int,
    *,
    as_threads: bool,
    data: Any = None,
    missing: int | None = None,
    timeout_s: float = 300.0,
    **settings: Any,
) -> list[Any]:
    """Raises RuntimeError with the tracebacks. `missing`: a rank that is expected to die; its result is None."""
    with tempfile.TemporaryDirectory() as folder:
        ranks = [Rank(r, world, f"unix:{folder}/meet", as_threads, settings, data, missing) for r in range(world)]
        found: list[tuple[bool, Any]] = [(False, "no answer in time")] * world
        deadline = time.monotonic() + timeout_s
        if as_threads:
            faulthandler.dump_traceback_later(timeout_s / 2)  # where each rank is, if one is stuck

            def thread(r: int) -> None:
                try:
                    found[r] = True, _body(ranks[r], scenario)
                except BaseException:
                    found[r] = False, traceback.format_exc()

            threads = [threading.Thread(target=thread, args=(r,), daemon=True) for r in range(world)]
            for one in threads:
                one.start()
            for one in threads:
                one.join(max(0.1, deadline - time.monotonic()))
            faulthandler.cancel_dump_traceback_later()
        else:
            spawn = multiprocessing.get_context("spawn")
            pipes = [spawn.Pipe() for _ in ranks]
            processes = [
                spawn.Process(target=_process, args=(r, scenario, pipes[r.rank][1]), daemon=True) for r in ranks
            ]
            for one in processes:
                one.start()
            for (ours, theirs), one in zip(pipes, processes, strict=True):
                theirs.close()
                with contextlib.suppress(EOFError):
                    if ours.poll(max(0.1, deadline - time.monotonic())):
                        found[processes.index(one)] = ours.recv()
            for one in processes:
                one.join(20.0)
                if one.is_alive():
                    one.kill()
    bad = [f"rank {r}: {what}" for r, (ok, what) in enumerate(found) if not ok and r != missing]
    if bad:
        raise RuntimeError("\n".join(bad))
    return [what if r != missing else None for r, (_, what) in enumerate(found)]
