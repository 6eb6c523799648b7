"""A session without a ring: a real RankControl over plain values, for all that only talks to the control service."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest

from roce_ring.control.model import (
    EventKind,
    IdlePolicy,
    MemoryPart,
    PathStats,
    PeerInfo,
    PeerStats,
    RankEvent,
    RankInfo,
    RankState,
    RankStats,
    SessionState,
)
from roce_ring.control.server import RankServer


@dataclass
class PlainControl:
    """Session of one rank in a world of 4 that reduces nothing. `stuck` set: every call blocks until it is cleared."""

    rank: int = 0
    session_id: str = "00112233445566778899aabbccddeeff"
    now: RankState = field(default_factory=lambda: RankState(SessionState.RUNNING))
    counters: RankStats = field(
        default_factory=lambda: RankStats(
            ops_posted=7,
            idle_spins=20_000_000,
            nap_us=20,
            last_seq_completed=2**32 + 5,
            asleep_share=0.25,
            peers=(PeerStats(1, (PathStats("shm", 7, 7, 4096),)), PeerStats(2), PeerStats(3)),
            memory=(MemoryPart("header", 4096), MemoryPart("recv", 3 << 20)),
        )
    )
    drains: bool = True
    log: list[RankEvent] = field(default_factory=list)
    stuck: threading.Event | None = None
    change: threading.Condition = field(default_factory=threading.Condition)

    def _wait_if_stuck(self) -> None:
        if self.stuck:
            self.stuck.wait(20)

    def info(self) -> RankInfo:
        self._wait_if_stuck()
        return RankInfo(
            session_name="job",
            session_id=self.session_id,
            rank=self.rank,
            world=4,
            pid=4242,
            host="spark-a",
            version="0.1.0",
            wire_version=1,
            layout_hash="9c1f2a",
            plan_hash="",
            settings_hash="abcdef",
            provider="shm",
            device="cuda:1",
            memory_kind="shared pages",
            arrival_mode="polled flag",
            litmus_verdict="passed 2000 rounds",
            mode="auto",
            capacity_bytes=262144,
            gather_capacity_bytes=0,
            started_unix_s=1.5,
            peers=(PeerInfo(1, "spark-b", ("rocep1s0f0", "roceP2p1s0f0")), PeerInfo(2, "spark-c")),
        )

    def state(self) -> RankState:
        self._wait_if_stuck()
        return self.now

    def stats(self) -> RankStats:
        self._wait_if_stuck()
        return self.counters

    def set_idle(self, idle_spins: int | None, nap_us: int | None) -> IdlePolicy:
        spins = self.counters.idle_spins if idle_spins is None else idle_spins
        self.counters = replace(self.counters, idle_spins=spins, nap_us=nap_us or self.counters.nap_us)
        return IdlePolicy(spins, self.counters.nap_us)

    def abort(self, reason: str) -> None:
        if self.now.state is not SessionState.ABORTED:
            self.now = RankState(SessionState.ABORTED, reason, culprit_rank=self.rank, sequence=9)
            self.happen(EventKind.ABORT, reason)

    def drain(self, timeout_s: float) -> bool:
        if not self.drains:
            time.sleep(timeout_s)
        self.now = RankState(SessionState.DRAINING)
        return self.drains

    def events(self, after: int, timeout_s: float) -> list[RankEvent]:
        with self.change:
            self.change.wait_for(lambda: len(self.log) > after, timeout_s)
            return self.log[after:]

    def happen(self, kind: EventKind, message: str, peer_rank: int | None = None) -> None:
        with self.change:
            self.log.append(RankEvent(len(self.log) + 1, 2.5, kind, message, peer_rank, 12))
            self.change.notify_all()


@pytest.fixture
def run_dir(tmp_path: Path) -> Path:
    return tmp_path / "run"


Serve = Callable[..., tuple[PlainControl, RankServer]]


@pytest.fixture
def serve(run_dir: Path) -> Iterator[Serve]:
    """serve(rank=2, ...) starts a server for a PlainControl with those values; all are closed at the end."""
    started = []

    def start(session_name: str = "job", **values: object) -> tuple[PlainControl, RankServer]:
        control = PlainControl(**values)  # type: ignore[arg-type]
        server = RankServer(control, run_dir, session_name, control.rank)
        started.append(server)
        return control, server

    yield start
    for server in started:
        server.close(grace_s=0.2)
