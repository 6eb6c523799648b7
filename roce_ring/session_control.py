"""What the control server may ask of a session, and the events it tells."""

from __future__ import annotations

import logging
import os
import threading
import time
from collections import deque
from itertools import pairwise
from typing import TYPE_CHECKING

from . import __version__
from .control.model import (
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
from .modes import modes
from .native import EVENT_KINDS, PORT_CHANGES, STATES, Event, native
from .verdict import sequence

if TYPE_CHECKING:
    from .session import Session

log = logging.getLogger(__name__)

_PUMP_S = 0.05
_EVENTS_KEPT = 512


class SessionControl:
    """Implements control.service.RankControl. Only reads, or asks the proxy; nothing here waits for a peer."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._events: deque[RankEvent] = deque(maxlen=_EVENTS_KEPT)
        self._event_count = 0
        self._new_event = threading.Condition()
        self._state_seen: SessionState | None = None
        self._stop = threading.Event()
        self._pump: threading.Thread | None = None
        self.abort_note = ""

    def start(self) -> None:
        """From now on the proxy's events become log lines and reach watchers."""
        self._pump = threading.Thread(target=self._pump_events, name="roce-ring-events", daemon=True)
        self._pump.start()

    def stop(self) -> None:
        """Tells what is left to tell. The proxy must still be there."""
        self._stop.set()
        if self._pump is not None and self._pump is not threading.current_thread():
            self._pump.join(2.0)
        with self._new_event:
            self._new_event.notify_all()

    def _pump_events(self) -> None:
        """Turns the proxy's events into log lines and into what watchers see."""
        room = (Event * 32)()
        after = 0
        while True:
            last = self._stop.wait(_PUMP_S)
            n = self._session.read_events(after, room)
            for event in list(room)[:n]:
                after = int(event.index)
                self._tell(event)
            state = self.state().state
            if state != self._state_seen:
                self._state_seen = state
                self.add_event(EventKind.STATE, f"state is {state}")
            if last and n == 0:
                return

    def _tell(self, event: Event) -> None:
        kind, peer, seq = EVENT_KINDS[event.kind], int(event.peer), int(event.seq)
        seconds = event.ms / 1000
        level = logging.WARNING
        if kind == "LATE":
            text = (
                f"rank {peer} is late: rank {self._session.rank} has waited {seconds:.1f} s for its flag "
                f"(operation {seq}, phase {event.phase}, path {event.path})"
            )
            if event.root != peer:
                text += f"; the chain of waits ends at rank {event.root}"
        elif kind == "RESOLVED":
            text = f"rank {peer} came after {seconds:.1f} s"
        elif kind == "ABORT":
            text = str(self._session.verdict(self._session.abort_word()))
            level = logging.ERROR
        elif kind == "CLOSED":
            text = f"rank {peer} closed its session"
            level = logging.INFO
        elif kind == "LOOP_GAP":
            text = f"the proxy thread of rank {self._session.rank} was not scheduled for {seconds:.1f} s"
        elif kind == "PORT":
            text, level = self._port_changed(int(event.path), PORT_CHANGES[event.reason])
        else:
            text = self._path_failed(event)
        log.log(level, "%s", text)
        self.add_event(EventKind.PATH if kind == "PORT" else EventKind(kind), text, peer, seq)
        if kind == "ABORT":
            log.info("operations of rank %d before that: %s", self._session.rank, self.last_operations())

    def _path_failed(self, event: Event) -> str:
        s, peer, number = self._session, int(event.peer), int(event.path)
        planned = s.proof.between(s.rank, peer)[number] if s.proof else number
        status = native().proxy.rr_status_text(int(event.ms)).decode()
        said = f" ({status}, status {event.ms})" if status else ""
        meaning = native().errors[int(event.reason)].meaning
        return f"{s.topology.edges.path(s.rank, peer, planned)}: {meaning}{said}"

    def _port_changed(self, hca: int, change: str) -> tuple[str, int]:
        s = self._session
        edges, device = s.topology.edges, s.topology.hcas[hca]
        said = {
            "DOWN": f"the link of {device} went down: {edges.cable(s.rank, hca)}",
            "UP": f"the link of {device} is up again: {edges.cable(s.rank, hca)}",
            "GIDS": f"the GID table of {device} changed; the next session looks it up again",
            "LOST": f"{device} failed as a whole: {edges.port(s.rank, hca)}",
        }
        return f"rank {s.rank}: {said[change]}", logging.INFO if change == "GIDS" else logging.WARNING

    def last_operations(self, count: int = 8) -> str:
        """What the flight recorder holds, newest last, in words: for the log of a session that ended."""
        names = {one.value: one.name for one in modes().values()}
        texts = []
        for record in self._session.read_records()[-count:]:
            took = record.completed_ns - record.first_command_ns
            end = f"sent in {took / 1000:.0f} us" if record.completed_ns else "not all sent"
            late = "".join(f", late: rank {p}" for p in range(self._session.world) if record.late_peers >> p & 1)
            texts.append(f"{record.seq} {names.get(record.mode, 'gather or scatter')} {record.bytes} B {end}{late}")
        return "; ".join(texts) or "none"

    def add_event(self, kind: EventKind, text: str, peer: int | None = None, seq: int | None = None) -> None:
        with self._new_event:
            self._event_count += 1
            self._events.append(RankEvent(self._event_count, time.time(), kind, text, peer, seq))
            self._new_event.notify_all()

    def info(self) -> RankInfo:
        s = self._session

        def names(peer: int) -> tuple[str, ...]:
            ways = s.ways[peer]
            if s.provider != "verbs":
                return tuple(s.provider for _ in ways)
            return tuple(s.topology.hcas[way.hca] for way in ways)

        return RankInfo(
            session_name=s.settings.name,
            session_id=s.session_id.hex(),
            rank=s.rank,
            world=s.world,
            pid=os.getpid(),
            host=s.hosts[s.rank],
            version=__version__,
            wire_version=native().wire_version,
            layout_hash=f"{s.layout_hash:016x}",
            plan_hash=s.topology.plan_hash,
            settings_hash=s.settings.hash(),
            provider=s.provider,
            device=s.device,
            memory_kind=self._memory_kind(),
            arrival_mode="write with immediate" if s.proof and s.proof.imm else "polled flag",
            litmus_verdict=s.proof.verdict if s.proof else "not needed",
            mode=s.settings.mode,
            capacity_bytes=s.settings.max_bytes,
            gather_capacity_bytes=s.settings.gather_bytes,
            started_unix_s=s.started_unix_s,
            peers=tuple(PeerInfo(p, s.hosts[p], names(p)) for p in range(s.world) if p != s.rank),
        )

    def _memory_kind(self) -> str:
        if self._session.memory is not None:
            return "device memory"
        return "registered host memory" if self._session.provider == "verbs" else "shared memory"

    def state(self) -> RankState:
        raw = self._session.read_stats()
        waiting = tuple(p for p in range(self._session.world) if raw.waiting >> p & 1)
        if raw.abort_word:
            word = int(raw.abort_word)
            why = self._session.verdict(word)
            return RankState(SessionState.ABORTED, str(why), why.culprit, sequence(word), waiting)
        state = SessionState(STATES[raw.state])
        if state == SessionState.RUNNING and self._session.drained.is_set():
            state = SessionState.DRAINING
        said = [f"waiting for rank {', '.join(map(str, waiting))}"] if waiting else []
        said += self._degraded(int(raw.ports_down))
        return RankState(state, "; ".join(said), None, int(raw.seq_done), waiting)

    def _degraded(self, ports_down: int) -> list[str]:
        """What an operator should mend although everything runs."""
        s = self._session
        down = [f"the link of {name} is down" for hca, name in enumerate(s.topology.hcas) if ports_down >> hca & 1]
        return down + (list(s.proof.warnings(s.rank)) if s.proof else [])

    def stats(self) -> RankStats:
        raw = self._session.read_stats()
        return RankStats(
            ops_posted=raw.ops,
            commands_consumed=raw.commands,
            writes_posted=raw.writes_posted,
            writes_completed=raw.writes_completed,
            bytes_written=raw.bytes_written,
            window_stalls=raw.window_stalls,
            queue_stalls=raw.queue_stalls,
            empty_polls=raw.empty_polls,
            naps=raw.naps,
            asleep_share=raw.commands_asleep / raw.commands if raw.commands else 0.0,
            idle_spins=raw.idle_spins,
            nap_us=raw.nap_us,
            yields=bool(getattr(raw, "yield")),
            late_reports=raw.late_reports,
            longest_late_ms=raw.longest_late_ms,
            longest_loop_gap_us=raw.longest_loop_gap_us,
            events_lost=raw.events_lost,
            stale_completions=raw.stale_completions,
            nudges=raw.nudges,
            last_seq_posted=raw.seq_posted,
            last_seq_completed=raw.seq_completed,
            peers=tuple(
                PeerStats(
                    p,
                    tuple(
                        PathStats(
                            f"path {i}" if self._session.provider != "verbs" else self._session.topology.hcas[way.hca],
                            raw.path[p][i].writes,
                            raw.path[p][i].completions,
                            raw.path[p][i].bytes,
                            raw.path[p][i].errors,
                        )
                        for i, way in enumerate(ways)
                    ),
                )
                for p, ways in enumerate(self._session.ways)
                if p != self._session.rank
            ),
            memory=self.memory(),
        )

    def memory(self) -> tuple[MemoryPart, ...]:
        """The region's parts in bytes, in the layout's order; their sum is the region. Behind them, what there is on a
        GPU."""
        at, memory = self._session.host_layout, self._session.memory
        marks = [
            ("header", 0), ("command ring", at.commands), ("abort, kernel and progress lines", at.abort),
            ("notices and waits", at.notices), ("flags", at.flags), ("flight recorder", at.records),
            ("send slots", at.send), ("receive slots", at.recv), ("", at.region_bytes),
        ]  # fmt: skip
        parts = [MemoryPart(name, end - begin) for (name, begin), (_, end) in pairwise(marks)]
        if memory:
            parts.append(MemoryPart("flags and slots in device memory", memory.bytes))
        if state := self._session.gpu_state_bytes:
            parts.append(MemoryPart("kernel state in device memory", state))
        return tuple(parts)

    def set_idle(self, idle_spins: int | None, nap_us: int | None) -> IdlePolicy:
        raw = self._session.read_stats()
        spins = raw.idle_spins if idle_spins is None else idle_spins
        nap = raw.nap_us if nap_us is None else nap_us
        self._session.set_idle(int(spins), int(nap))
        self.add_event(EventKind.IDLE_POLICY, f"idle policy is idle_spins {spins}, nap_us {nap}")
        return IdlePolicy(int(spins), int(nap))

    def abort(self, reason: str) -> None:
        if not self._session.abort_word():
            self.abort_note = reason
        self._session.abort()

    def drain(self, timeout_s: float) -> bool:
        self._session.drained.set()
        deadline = time.monotonic() + timeout_s
        while time.monotonic() < deadline:
            raw = self._session.read_stats()
            if raw.seq_started == raw.seq_done and raw.writes_posted == raw.writes_completed:
                return True
            time.sleep(0.005)
        return False

    def events(self, after: int, timeout_s: float) -> list[RankEvent]:
        with self._new_event:
            self._new_event.wait_for(lambda: self._event_count > after or self._stop.is_set(), timeout_s)
            return [event for event in self._events if event.index > after]
