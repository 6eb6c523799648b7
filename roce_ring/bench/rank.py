"""One rank of a local run: `python -m roce_ring.bench.rank JOB RANK`. The launcher starts it; it answers in JSON lines
on stdout: progress, log records, an error, and from rank 0 the result."""

from __future__ import annotations

import ctypes
import logging
import os
import signal
import socket
import sys
import time
from pathlib import Path
from types import FrameType
from typing import Any

import msgspec
import numpy as np

from ..communicator import AllReduce
from ..errors import RoceRingError
from ..exchange import RendezvousExchange
from ..native import native
from ..settings import Settings
from ..topology import Topology
from .cases import GLOO, Case, Spec, build
from .check import Wrong, check
from .job import Failed, Job, Logged, Progress, RankFacts, Result, Row, encode
from .runners import Gloo, Ours
from .timing import summarize, visit

_MEETING_S = 60.0
_VISITS = 5  # every case is measured this many times in turn with all others, so that a noisy second hits all alike
_TELL_EVERY_S = 0.25  # whoever draws the progress takes a core from the ranks
_TURNS = 16  # numbers of one check that nobody else uses


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
        with AllReduce(exchange, settings, topology) as communicator:
            result = _measure(job.spec, exchange, communicator, gloo, say)
            exchange.barrier(_MEETING_S)  # nobody leaves while others still measure
        if gloo:
            gloo.close()
        return result
    finally:
        exchange.close()


def _measure(
    spec: Spec, exchange: RendezvousExchange, communicator: AllReduce, gloo: Gloo | None, say: Any
) -> Result | None:
    rank, world = exchange.rank, exchange.world
    cases = build(spec, world, communicator.choose_mode)
    ours = Ours(communicator)
    visits = min(_VISITS, spec.iterations)
    steps = len(cases) * (1 + visits)
    done, told = 0, 0.0

    def gather(payload: bytes) -> list[bytes]:
        return exchange.all_gather(payload, communicator.settings.peer_timeout_s)

    def step(what: str, case: Case) -> None:
        nonlocal done, told
        done += 1
        if rank == 0 and time.monotonic() - told > _TELL_EVERY_S:
            told = time.monotonic()
            say(Progress(done, steps, f"{what} {case.op} {case.bytes} B {case.dtype} {case.label}".rstrip()))

    def runner(case: Case) -> Ours | Gloo:
        return gloo if gloo and case.mode == GLOO else ours

    # Ranks meet in the smallest operation there is: a meeting over the exchange takes longer than what is measured.
    one, sink = np.ones(1, np.float32), np.empty(1, np.float32)

    def barrier() -> None:
        communicator.all_reduce(one, sink, mode="full")

    wrong = []
    for i, case in enumerate(cases):
        step("checking", case)
        wrong.append(check(runner(case), gather, case, rank, world, i * _TURNS, spec.thorough))
    samples = -(-spec.iterations // visits)
    taken: list[list[Any]] = [[] for _ in cases]
    for turn in range(visits):
        for i, case in enumerate(cases):
            step("timing", case)
            number = len(cases) * (_TURNS + turn) + i
            ns, count = visit(runner(case), barrier, case, rank, world, number, samples)
            taken[i].append(ns)
            wrong[i].out += count
    rows = []
    for case, parts, own in zip(cases, taken, wrong, strict=True):
        ranks = gather(msgspec.msgpack.encode((own, np.concatenate(parts).tobytes())))
        every = [msgspec.msgpack.decode(one, type=tuple[Wrong, bytes]) for one in ranks]
        total = sum((one[0] for one in every), Wrong())
        rows.append(Row(case, total, summarize([np.frombuffer(one[1], np.int64) for one in every])))
    facts = [msgspec.json.decode(one, type=RankFacts) for one in gather(msgspec.json.encode(_facts(communicator)))]
    return Result(world, facts, rows) if rank == 0 else None


def _facts(communicator: AllReduce) -> RankFacts:
    session = communicator.session
    stats = session.control.stats()
    return RankFacts(
        rank=communicator.rank,
        host=socket.gethostname(),
        pid=os.getpid(),
        provider=session.provider,
        isa=native().kernels.rr_cpu_isa().decode(),
        cpus=len(os.sched_getaffinity(0)),
        crowded=session.crowded,
        idle_spins=stats.idle_spins,
        nap_us=stats.nap_us,
        asleep_share=stats.asleep_share,
    )


if __name__ == "__main__":
    sys.exit(main(sys.argv))
