"""All cases of a run, checked and timed together with all other ranks."""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Callable
from typing import Any

import msgspec
import numpy as np

from ..communicator import AllReduce
from ..exchange import Exchange
from ..native import native
from .cases import GLOO, Case, Spec, build
from .check import Wrong, check
from .job import Answer, Progress, RankFacts, Result, Row
from .process import CpuTime
from .runners import Gloo, Ours
from .timing import summarize, visit

_VISITS = 5  # every case is measured this many times in turn with all others, so that a noisy second hits all alike
_TELL_EVERY_S = 0.25  # whoever draws the progress takes a core from the ranks
_TURNS = 16  # numbers of one check that nobody else uses


def measure(
    spec: Spec, exchange: Exchange, communicator: AllReduce, gloo: Gloo | None, say: Callable[[Answer], object]
) -> Result:
    """Collective: checks and times all cases of `spec`; the same result on every rank. `say` hears of progress on rank
    0 only."""
    began = CpuTime.now()
    rank, world = exchange.rank, exchange.world
    cases = build(spec, world, communicator.choose_mode, communicator.session.access)
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

    meeting = communicator.choose_mode(one.nbytes)

    def barrier() -> None:
        communicator.all_reduce(one, sink, mode=meeting)

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
    ended = CpuTime.now()
    mine = _facts(communicator, ended.ours - began.ours)
    facts = [msgspec.json.decode(one, type=RankFacts) for one in gather(msgspec.json.encode(mine))]
    beside = sum(one.cpu_s for one in facts if one.host == mine.host)
    return Result(world, facts, rows, began.others_share(ended, beside))


def _facts(communicator: AllReduce, cpu_s: float) -> RankFacts:
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
        cpu_s=cpu_s,
        idle_spins=stats.idle_spins,
        nap_us=stats.nap_us,
        asleep_share=stats.asleep_share,
    )
