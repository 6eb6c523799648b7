"""One rank of a local run: `python -m roce_ring.bench.rank JOB RANK`. The launcher starts it; it answers in JSON lines
on stdout: progress, log records, an error, and from rank 0 the result."""

from __future__ import annotations

import ctypes
import logging
import os
import signal
import sys
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


def main(argv: list[str]) -> int:
    answers = os.fdopen(os.dup(1), "wb", buffering=0)
    os.dup2(2, 1)  # whatever a library prints is not an answer
    signal.signal(signal.SIGTERM, leave)
    logging.getLogger().addHandler(_Forward(answers))
    try:
        job = msgspec.json.decode(Path(argv[1]).read_bytes(), type=Job)
        die_with(job.launcher)
        result = run(job, int(argv[2]), lambda one: answers.write(encode(one)))
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


def run(job: Job, rank: int, say: Any) -> Result | None:
    settings = Settings(**job.settings)
    exchange = RendezvousExchange(job.address, rank, job.world, job=settings.name, timeout_s=_MEETING_S)
    try:
        topology = Topology.local(rank, job.world, job.paths)
        gloo = Gloo(Path(job.gloo_store), rank, job.world, _MEETING_S) if job.spec.gloo else None
        spec = job.spec
        with AllReduce(exchange, settings, topology, device=spec.device_of(rank), profile=spec.profile) as communicator:
            result = measure(spec, exchange, communicator, gloo, say)
            exchange.barrier(_MEETING_S)  # nobody leaves while others still measure
        if gloo:
            gloo.close()
        return result if rank == 0 else None
    finally:
        exchange.close()


if __name__ == "__main__":
    sys.exit(main(sys.argv))
