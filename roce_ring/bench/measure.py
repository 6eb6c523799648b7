"""All cases of a run, checked and timed together with all other ranks."""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import msgspec
import numpy as np

from ..communicator import AllReduce
from ..direct import LOADS
from ..exchange import Exchange
from ..ladder.classes import CLASSES
from ..native import native
from .cases import GLOO, READS_S, Case, Spec, build
from .check import Wrong, check
from .job import Answer, Progress, RankFacts, Result, Row
from .parts import Parts
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
    if spec.device == "cpu":
        return _measure(spec, exchange, communicator, Ours(communicator), gloo, say)
    from .gpu import OursOnGpu

    with OursOnGpu(communicator, spec) as ours:
        exchange.barrier(communicator.settings.peer_timeout_s)  # nobody takes memory any more
        return _measure(spec, exchange, communicator, ours, None, say)


def _measure(
    spec: Spec,
    exchange: Exchange,
    communicator: AllReduce,
    ours: Ours,
    gloo: Gloo | None,
    say: Callable[[Answer], object],
) -> Result:
    began = CpuTime.now()
    rank, world = exchange.rank, exchange.world
    session = communicator.session
    cases = build(spec, world, communicator.choose_mode, session.access, session.fabric)
    least_s = READS_S if spec.sweep and CLASSES[session.fabric].access == LOADS else 0.0
    visits = 1 if least_s else min(_VISITS, spec.iterations)  # in one piece, so that it meets a window
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

    wrong = []
    for i, case in enumerate(cases):
        step("checking", case)
        wrong.append(check(runner(case), gather, case, rank, world, i * _TURNS, spec.thorough))
    samples = -(-spec.iterations // visits)
    taken: list[list[Any]] = [[] for _ in cases]
    parts = [Parts() for _ in cases]
    for turn in range(visits):
        for i, case in enumerate(cases):
            step("timing", case)
            number = len(cases) * (_TURNS + turn) + i
            noted = partial(_note, communicator, ours.ops, parts[i]) if spec.profile and case.mode != GLOO else _nothing
            began_s, enough = time.monotonic(), False
            while not enough:
                ns, count = visit(runner(case), ours.barrier, noted, case, rank, world, number, samples)
                taken[i].append(ns)
                wrong[i].out += count
                enough = not least_s or _all_spent(gather, least_s, began_s)
    rows = []
    for case, times, own, mine in zip(cases, taken, wrong, parts, strict=True):
        ranks = gather(msgspec.msgpack.encode((own, np.concatenate(times).tobytes(), mine)))
        every = [msgspec.msgpack.decode(one, type=tuple[Wrong, bytes, Parts]) for one in ranks]
        total = sum((one[0] for one in every), Wrong())
        spent = sum((one[2] for one in every), Parts())
        us = summarize([np.frombuffer(one[1], np.float64) for one in every])
        rows.append(Row(case, total, us, spent if spent.ops else None))
    ended = CpuTime.now()
    here = _facts(communicator, ended.ours - began.ours)
    facts = [msgspec.json.decode(one, type=RankFacts) for one in gather(msgspec.json.encode(here))]
    # Ranks of one process say the same time.
    beside = sum({one.pid: one.cpu_s for one in facts if one.host == here.host}.values())
    return Result(world, facts, rows, began.others_share(ended, beside))


def _all_spent(gather: Callable[[bytes], list[bytes]], least_s: float, began_s: float) -> bool:
    """Collective, so that all ranks take equally many samples."""
    return all(float(one) >= least_s for one in gather(str(time.monotonic() - began_s).encode()))


def _nothing() -> None:
    pass


def _note(communicator: AllReduce, ops: int, parts: Parts) -> None:
    parts.add(communicator.session.read_profiles(ops))


def _facts(communicator: AllReduce, cpu_s: float) -> RankFacts:
    session = communicator.session
    stats = session.control.stats()
    return RankFacts(
        rank=communicator.rank,
        host=socket.gethostname(),
        pid=os.getpid(),
        provider=session.provider,
        device=session.device_name,
        fabric=session.fabric,
        key=session.key,
        memory={part.name: part.size_bytes for part in session.control.memory()},
        isa=native().kernels.rr_cpu_isa().decode(),
        cpus=len(os.sched_getaffinity(0)),
        crowded=session.crowded,
        cpu_s=cpu_s,
        idle_spins=stats.idle_spins,
        nap_us=stats.nap_us,
        asleep_share=stats.asleep_share,
    )
