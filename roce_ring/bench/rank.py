"""One rank of a local run, or all of them as threads: `python -m roce_ring.bench.rank JOB RANK|all`. The launcher
starts it; it answers in JSON lines on stdout: progress, log records, an error, and from rank 0 the result."""

from __future__ import annotations

import ctypes
import logging
import os
import signal
import sys
import threading
from functools import partial
from pathlib import Path
from types import FrameType
from typing import Any

import msgspec

from ..communicator import AllReduce
from ..errors import RoceRingError
from ..exchange import RendezvousExchange
from ..settings import Settings
from ..topology import Topology
from .job import Failed, Job, Logged, Result, encode
from .measure import measure
from .runners import Gloo

_MEETING_S = 60.0
ALL = "all"  # in the place of a rank: this process is all of them


def main(argv: list[str]) -> int:
    answers = os.fdopen(os.dup(1), "wb", buffering=0)
    os.dup2(2, 1)  # whatever a library prints is not an answer
    signal.signal(signal.SIGTERM, leave)
    logging.getLogger().addHandler(_Forward(answers))
    try:
        job = msgspec.json.decode(Path(argv[1]).read_bytes(), type=Job)
        die_with(job.launcher)
        run_here = run_all if argv[2] == ALL else partial(run, rank=int(argv[2]))
        result = run_here(job, say=lambda one: answers.write(encode(one)))
        if result is not None:
            answers.write(encode(result))
    except RoceRingError as error:
        answers.write(encode(Failed(error.message, error.hint or "")))
        return 2
    return 0


def die_with(launcher: int) -> None:
    """A launcher that is killed takes its ranks along (prctl(2), PR_SET_PDEATHSIG is 1)."""
    ctypes.CDLL(None).prctl(1, int(signal.SIGTERM))
    if os.getppid() != launcher:
        raise SystemExit(2)


def leave(_signal: int, _frame: FrameType | None) -> None:
    raise SystemExit(128 + signal.SIGTERM)


class _Forward(logging.Handler):
    def __init__(self, to: Any) -> None:
        super().__init__(logging.WARNING)
        self._to = to

    def emit(self, record: logging.LogRecord) -> None:
        self._to.write(encode(Logged(record.getMessage())))


def run_all(job: Job, say: Any) -> Result | None:
    """All ranks as threads. What failed first explains the rest. Every wait of a rank is bounded, so all of them
    end."""
    results: list[Result] = []
    failed: list[BaseException] = []

    def body(rank: int) -> None:
        try:
            if result := run(job, rank, say):
                results.append(result)
        except BaseException as error:
            failed.append(error)

    threads = [threading.Thread(target=body, args=(rank,), daemon=True) for rank in range(job.world)]
    for one in threads:
        one.start()
    for one in threads:
        one.join()
    if failed:
        raise failed[0]
    return results[0]


def run(job: Job, rank: int, say: Any) -> Result | None:
    settings = Settings(**job.settings)
    exchange = RendezvousExchange(job.address, rank, job.world, job=settings.name, timeout_s=_MEETING_S)
    try:
        topology = Topology.local(rank, job.world, job.paths)
        gloo = Gloo(Path(job.gloo_store), rank, job.world, _MEETING_S) if job.spec.gloo else None
        spec = job.spec
        with AllReduce(exchange, settings, topology, device=spec.device, profile=spec.profile) as communicator:
            result = measure(spec, exchange, communicator, gloo, say)
            exchange.barrier(_MEETING_S)  # nobody leaves while others still measure
        if gloo:
            gloo.close()
        return result if rank == 0 else None
    finally:
        exchange.close()


if __name__ == "__main__":
    sys.exit(main(sys.argv))
