"""One rank's session: a region, a proxy thread, the kernels' state, and a control endpoint. It lives from the first
meeting of all ranks to close(), and never recovers from an abort: AllReduce.reset() builds a new one."""

from __future__ import annotations

import ctypes as ct
import logging
import os
import socket
import threading
import time
from collections import deque
from collections.abc import Callable
from itertools import pairwise

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
from .errors import PeerClosed, PeerDead, PeerTimeout, RoceRingError, SessionAborted, SetupError
from .exchange import Exchange, agree, gather_errors
from .modes import modes
from .native import (
    CPU_FAILED,
    CPU_REFUSED,
    EVENT_KINDS,
    HELLO_BYTES,
    NOBODY,
    PROVIDERS,
    STATES,
    Config,
    DeviceState,
    Event,
    Layout,
    Op,
    Stats,
    call,
    native,
)
from .settings import Settings
from .topology import Topology

log = logging.getLogger(__name__)

MEETING_S = 60.0
_PUMP_S = 0.05
_EVENTS_KEPT = 512
# Where threads outnumber cores nobody may spin: a waiting kernel takes the proxy's turns itself and then sleeps until
# a peer's flag wakes it, and the proxy's thread only naps and watches. Elsewhere the proxy polls (20,000,000 polls
# cover the gaps of a decode step; 200,000 cost 8.6 % of it) and a kernel looks for about a millisecond before it
# sleeps.
_IDLE_SPINS = 20_000_000
_KERNEL_SPINS = 20_000
_SLEEP_NS = {"shm": 1_000_000, "verbs": 50_000}  # a NIC wakes nobody
_REPORT_NS = 20_000_000  # a wait shorter than this is nobody's business


class Session:
    """Collective constructor: every rank makes one at the same time, with the same settings. Raises SetupError on all
    ranks, naming every offender, or on none."""

    def __init__(
        self, exchange: Exchange, settings: Settings, topology: Topology, *, first_seq: int = 0, serve: bool = True
    ) -> None:
        self.settings, self.topology = settings, topology
        self.rank, self.world = exchange.rank, exchange.world
        self.capacity = max(settings.max_bytes, settings.gather_bytes)
        self.started_unix_s = time.time()
        self._native = native()
        self._lend = ct.cast(self._native.proxy.rr_proxy_lend, ct.c_void_p).value
        self._proxy: int | None = None
        self._op: Op | None = None
        self._server: object | None = None
        self._lock = threading.Lock()  # one operation at a time; close() waits for it
        self._life = threading.Lock()  # whoever holds it may use self._proxy; never held while waiting for a peer
        self._drained = threading.Event()
        self._events: deque[RankEvent] = deque(maxlen=_EVENTS_KEPT)
        self._event_count = 0
        self._new_event = threading.Condition()
        self._state_seen: SessionState | None = None
        self._stop_pump = threading.Event()
        self._pump: threading.Thread | None = None
        self._abort_note = ""
        self._final_word = 0  # the abort word of a closed session

        self.layout: Layout = self._native.layout(self.world, self.capacity)
        self.layout_hash = int(self._native.proxy.rr_layout_hash(self.world, self.layout.slot_bytes))
        agree(exchange, self._agreement(first_seq), MEETING_S)
        gather_errors(exchange, self._problem(exchange), MEETING_S)
        meeting = exchange.all_gather(os.urandom(16) + socket.gethostname().encode()[:255], MEETING_S)
        self.session_id = meeting[0][:16]
        self.hosts = [one[16:].decode(errors="replace") for one in meeting]
        self.provider = self._choose_provider()
        here = sum(host == self.hosts[self.rank] for host in self.hosts)
        # One proxy thread and one caller per rank. Hyperthreads count as cores: the scheduler treats them so.
        self.crowded = 2 * here > len(os.sched_getaffinity(0))
        try:
            self._open(exchange, first_seq)
            if serve:
                self._serve(exchange)
        except BaseException:
            self.close(timeout_s=0.0)
            raise

    # ---- coming up ----

    def _agreement(self, first_seq: int) -> dict[str, str | int]:
        return {
            "version": __version__,
            "wire version": self._native.wire_version,
            "layout hash": f"{self.layout_hash:016x}",
            "world": self.world,
            "plan hash": self.topology.plan_hash or "none",
            "ring order": ",".join(map(str, self.topology.order)),
            "first sequence": first_seq,
            **self.settings.agreement(),
        }

    def _problem(self, exchange: Exchange) -> str | None:
        if (self.topology.rank, self.topology.world) != (exchange.rank, exchange.world):
            return (
                f"the plan is for rank {self.topology.rank} of {self.topology.world}, "
                f"the exchange says rank {exchange.rank} of {exchange.world}"
            )
        return None if self.settings.mode == "auto" else modes()[self.settings.mode].refusal(self.world)

    def _choose_provider(self) -> str:
        if self.settings.provider != "auto":
            return self.settings.provider
        return "shm" if len(set(self.hosts)) == 1 else "verbs"

    def _config(self, first_seq: int) -> Config:
        s, t = self.settings, self.topology
        config = Config(
            struct_bytes=ct.sizeof(Config),
            world=self.world,
            rank=self.rank,
            provider=PROVIDERS[self.provider],
            slot_bytes=self.layout.slot_bytes,
            first_seq=first_seq,
            stripe_min_bytes=s.stripe_min_bytes,
            forward_window_bytes=s.forward_window_bytes,
            forward_chunk_bytes=s.forward_chunk_bytes,
            late_ms=round(s.late_s * 1000),
            peer_timeout_ms=round(s.peer_timeout_s * 1000),
            dead_ms=round(s.dead_peer_s * 1000),
            idle_spins=s.idle_spins if s.idle_spins >= 0 else 0 if self.crowded else _IDLE_SPINS,
            nap_us=s.nap_us,
            cpu=s.proxy_cpu,
            doorbell=1,
        )
        setattr(config, "yield", int(self.crowded))
        config.session[:] = [
            int.from_bytes(self.session_id[:8], "little"),
            int.from_bytes(self.session_id[8:], "little"),
        ]
        config.order[: self.world] = list(t.order)
        for peer, ways in enumerate(t.paths):
            config.paths[peer] = len(ways)
            for i, way in enumerate(ways):
                config.hops[peer][i] = way.hops
                config.hca_of[peer][i] = way.hca
        for i, name in enumerate(t.hcas):
            config.hca[i].value = name.encode()
        return config

    def _open(self, exchange: Exchange, first_seq: int) -> None:
        """Every step's outcome is gathered before the next, so that ranks fail together."""
        lib = self._native.proxy
        config = self._config(first_seq)
        why = ct.create_string_buffer(4096)
        self._proxy = lib.rr_proxy_create(ct.byref(config), why, len(why))
        gather_errors(exchange, None if self._proxy else why.value.decode(errors="replace"), MEETING_S)
        hello = ct.create_string_buffer(HELLO_BYTES)
        lib.rr_proxy_hello(self._proxy, hello)
        hellos = exchange.all_gather(hello.raw, MEETING_S)
        wrong = [rank for rank, one in enumerate(hellos) if len(one) != HELLO_BYTES]
        if wrong:
            raise SetupError(f"the hello of rank {wrong[0]} has {len(hellos[wrong[0]])} bytes, expected {HELLO_BYTES}")
        gather_errors(exchange, _error_of(lambda: call(lib.rr_proxy_connect, self._proxy, b"".join(hellos))), MEETING_S)
        gather_errors(exchange, _error_of(lambda: call(lib.rr_proxy_start, self._proxy)), MEETING_S)
        self.region = int(lib.rr_proxy_region(self._proxy))
        self.device_state = DeviceState(seq=first_seq)
        self._pump = threading.Thread(target=self._pump_events, name="roce-ring-events", daemon=True)
        self._pump.start()

    def _serve(self, exchange: Exchange) -> None:
        from .control.rundir import run_dir
        from .control.server import RankServer

        error = None
        try:
            self._server = RankServer(self, run_dir(self.settings.run_dir, os.environ), self.settings.name, self.rank)
        except RoceRingError as failed:
            error = str(failed)
        gather_errors(exchange, error, MEETING_S)

    # ---- operations ----

    def op(self) -> Op:
        """An rr_op with everything that is the same for all operations of this session."""
        if self._op is None:
            self._op = self._new_op()
        return Op.from_buffer_copy(self._op)

    def _new_op(self) -> Op:
        op = Op(
            region=self.region,
            state=ct.addressof(self.device_state),
            layout=self.layout,
            # The proxy ends waits at peer_timeout; the kernel's own bound only matters if the proxy cannot.
            deadline_ns=round(self.settings.peer_timeout_s * 1e9) + 2_000_000_000,
            report_ns=_REPORT_NS,
            world=self.world,
            rank=self.rank,
            stripe_min_bytes=self.settings.stripe_min_bytes,
            spins=0 if self.crowded else _KERNEL_SPINS,
            lend=self._lend if self.crowded else 0,
            proxy=(self._proxy or 0) if self.crowded else 0,  # run() refuses if it is gone
            sleep_ns=_SLEEP_NS[self.provider],
        )
        op.order[: self.world] = list(self.topology.order)
        for peer, ways in enumerate(self.topology.paths):
            op.paths[peer] = len(ways)
        return op

    def run(self, op: Op, blocks: int = 1, threads: int = 1) -> None:
        """Runs one collective on CPU threads, to its end. Raises SessionAborted (or a subclass) if it could not
        finish."""
        self._native.kernels.rr_op_seal(ct.byref(op))
        with self._lock:
            if self._proxy is None or self._drained.is_set():
                raise self._closed()
            # A kernel that finds all its flags raised already never looks at the abort word.
            aborted = self._native.proxy.rr_proxy_abort_word(self._proxy) != 0
            result = CPU_FAILED if aborted else self._native.kernels.rr_cpu_run(ct.byref(op), blocks, threads)
        if result == CPU_REFUSED:
            refusal = self._native.kernels.rr_cpu_refusal(ct.byref(op))
            raise RoceRingError("refused", refusal.decode() if refusal else "the kernel could not have its threads")
        if result == CPU_FAILED:
            self.check(wait_s=1.0)
            raise SessionAborted("internal", f"a wait failed on rank {self.rank} and nobody said why", "report this")

    def _closed(self) -> RoceRingError:
        if self._proxy is None:
            return RoceRingError("closed", f"rank {self.rank}'s session is closed", "make a new one on every rank")
        return RoceRingError("closed", f"rank {self.rank}'s session is draining: it takes no new operations")

    def abort_word(self) -> int:
        with self._life:
            return int(self._native.proxy.rr_proxy_abort_word(self._proxy)) if self._proxy else self._final_word

    def check(self, wait_s: float = 0.0) -> None:
        """Raises if the session is over, by an abort or by close(). `wait_s`: how long the proxy may take to turn a
        kernel's fault into a verdict."""
        deadline = time.monotonic() + wait_s
        while not (word := self.abort_word()):
            if self._proxy is None:
                raise self._closed()
            if time.monotonic() >= deadline:
                return
            time.sleep(0.002)
        raise self.verdict(word)

    def verdict(self, word: int) -> SessionAborted:
        """The exception that an abort word stands for; every rank gets the same words but for its own number."""
        reason, culprit, seq = word & 0xFF, word >> 8 & 0xFF, word >> 32
        kind = self._native.errors.get(reason) or self._native.errors[10]
        who = None if culprit == NOBODY else culprit
        sentence = kind.meaning if who is None else f"rank {who}: {kind.meaning}"
        if kind.name in ("OP_MISMATCH", "PROTOCOL"):  # either may be the odd one out: nobody is blamed
            pair = sorted({culprit, word >> 24 & 0xFF})
            sentence, who = f"ranks {' and '.join(map(str, pair))} disagree: {kind.meaning}", None
        if self._abort_note:
            sentence += f" ({self._abort_note})"
        cls = {"PEER_DEAD": PeerDead, "PEER_CLOSED": PeerClosed, "PEER_TIMEOUT": PeerTimeout}.get(
            kind.name, SessionAborted
        )
        return cls(kind.name.lower(), f"{sentence}; seen by rank {self.rank} at operation {seq}", kind.hint, who)

    # ---- events ----

    def _pump_events(self) -> None:
        """Turns the proxy's events into log lines and into what watchers see."""
        room = (Event * 32)()
        after = 0
        while True:
            last = self._stop_pump.wait(_PUMP_S)
            n = int(self._native.proxy.rr_proxy_events(self._proxy, after, room, len(room)))
            for event in list(room)[:n]:
                after = int(event.index)
                self._tell(event)
            state = self.state().state
            if state != self._state_seen:
                self._state_seen = state
                self._add_event(EventKind.STATE, f"state is {state}")
            if last and n == 0:
                return

    def _tell(self, event: Event) -> None:
        kind, peer, seq = EVENT_KINDS[event.kind], int(event.peer), int(event.seq)
        seconds = event.ms / 1000
        level = logging.WARNING
        if kind == "LATE":
            text = (
                f"rank {peer} is late: rank {self.rank} has waited {seconds:.1f} s for its flag "
                f"(operation {seq}, phase {event.phase}, path {event.path})"
            )
            if event.root != peer:
                text += f"; the chain of waits ends at rank {event.root}"
        elif kind == "RESOLVED":
            text = f"rank {peer} came after {seconds:.1f} s"
        elif kind == "ABORT":
            text = str(self.verdict(self.abort_word()))
            level = logging.ERROR
        elif kind == "CLOSED":
            text = f"rank {peer} closed its session"
            level = logging.INFO
        elif kind == "LOOP_GAP":
            text = f"the proxy thread of rank {self.rank} was not scheduled for {seconds:.1f} s"
        else:
            text = f"path {event.path} to rank {peer} changed: {self._native.errors[int(event.reason)].meaning}"
        log.log(level, "%s", text)
        self._add_event(EventKind(kind), text, peer, seq)

    def _add_event(self, kind: EventKind, text: str, peer: int | None = None, seq: int | None = None) -> None:
        with self._new_event:
            self._event_count += 1
            self._events.append(RankEvent(self._event_count, time.time(), kind, text, peer, seq))
            self._new_event.notify_all()

    # ---- RankControl: what the control server may ask ----

    def info(self) -> RankInfo:
        def names(peer: int) -> tuple[str, ...]:
            ways = self.topology.paths[peer]
            if self.provider == "shm":
                return tuple("shm" for _ in ways)
            return tuple(self.topology.hcas[way.hca] for way in ways)

        return RankInfo(
            session_name=self.settings.name,
            session_id=self.session_id.hex(),
            rank=self.rank,
            world=self.world,
            pid=os.getpid(),
            host=self.hosts[self.rank],
            version=__version__,
            wire_version=self._native.wire_version,
            layout_hash=f"{self.layout_hash:016x}",
            plan_hash=self.topology.plan_hash,
            settings_hash=self.settings.hash(),
            provider=self.provider,
            memory_kind="shared memory" if self.provider == "shm" else "registered host memory",
            arrival_mode="polled flag",
            litmus_verdict="not needed" if self.provider == "shm" else "not run",
            mode=self.settings.mode,
            capacity_bytes=self.settings.max_bytes,
            gather_capacity_bytes=self.settings.gather_bytes,
            started_unix_s=self.started_unix_s,
            peers=tuple(PeerInfo(p, self.hosts[p], names(p)) for p in range(self.world) if p != self.rank),
        )

    def _read_stats(self) -> Stats:
        out = Stats()
        with self._life:
            if self._proxy is not None:
                self._native.proxy.rr_proxy_stats(self._proxy, ct.byref(out))
            else:
                out.state = STATES.index("CLOSED")
        return out

    def state(self) -> RankState:
        raw = self._read_stats()
        waiting = tuple(p for p in range(self.world) if raw.waiting >> p & 1)
        if raw.abort_word:
            verdict = self.verdict(int(raw.abort_word))
            return RankState(SessionState.ABORTED, str(verdict), verdict.culprit, int(raw.abort_word) >> 32, waiting)
        state = SessionState(STATES[raw.state])
        if state == SessionState.RUNNING and self._drained.is_set():
            state = SessionState.DRAINING
        reason = f"waiting for rank {', '.join(map(str, waiting))}" if waiting else ""
        return RankState(state, reason, None, int(raw.seq_done), waiting)

    def stats(self) -> RankStats:
        raw = self._read_stats()
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
            last_seq_posted=raw.seq_posted,
            last_seq_completed=raw.seq_completed,
            peers=tuple(
                PeerStats(
                    p,
                    tuple(
                        PathStats(
                            f"path {i}" if self.provider == "shm" else self.topology.hcas[way.hca],
                            raw.path[p][i].writes,
                            raw.path[p][i].completions,
                            raw.path[p][i].bytes,
                            raw.path[p][i].errors,
                        )
                        for i, way in enumerate(ways)
                    ),
                )
                for p, ways in enumerate(self.topology.paths)
                if p != self.rank
            ),
            memory=self.memory(),
        )

    def memory(self) -> tuple[MemoryPart, ...]:
        """The region's parts in bytes, in the layout's order; their sum is the region."""
        at = self.layout
        marks = [
            ("header", 0), ("command ring", at.commands), ("abort, kernel and progress lines", at.abort),
            ("notices and waits", at.notices), ("flags", at.flags), ("flight recorder", at.records),
            ("send slots", at.send), ("receive slots", at.recv), ("", at.region_bytes),
        ]  # fmt: skip
        return tuple(MemoryPart(name, end - begin) for (name, begin), (_, end) in pairwise(marks))

    def set_idle(self, idle_spins: int | None, nap_us: int | None) -> IdlePolicy:
        raw = self._read_stats()
        spins = raw.idle_spins if idle_spins is None else idle_spins
        nap = raw.nap_us if nap_us is None else nap_us
        with self._life:
            if self._proxy is None:
                raise self._closed()
            if self._native.proxy.rr_proxy_set_idle(self._proxy, spins, nap) != 0:
                raise RoceRingError("config", f"nap_us is {nap}, expected 1 to 1000")
        self._add_event(EventKind.IDLE_POLICY, f"idle policy is idle_spins {spins}, nap_us {nap}")
        return IdlePolicy(int(spins), int(nap))

    def abort(self, reason: str) -> None:
        if not self.abort_word():
            self._abort_note = reason
        with self._life:
            if self._proxy is not None:
                self._native.proxy.rr_proxy_abort(self._proxy, 4, self.rank)

    def drain(self, timeout_s: float) -> bool:
        self._drained.set()
        deadline = time.monotonic() + timeout_s
        while time.monotonic() < deadline:
            raw = self._read_stats()
            if raw.seq_started == raw.seq_done and raw.writes_posted == raw.writes_completed:
                return True
            time.sleep(0.005)
        return False

    def events(self, after: int, timeout_s: float) -> list[RankEvent]:
        with self._new_event:
            self._new_event.wait_for(lambda: self._event_count > after or self._stop_pump.is_set(), timeout_s)
            return [event for event in self._events if event.index > after]

    # ---- going down ----

    def close(self, timeout_s: float = 2.0) -> None:
        """Finishes what was posted, tells the peers, and gives everything back. Safe to call twice and from any
        state."""
        server, self._server = self._server, None
        if server is not None:
            server.close()  # type: ignore[attr-defined]
        if not self._lock.acquire(timeout=timeout_s + 1.0):
            self.abort("the session was closed in the middle of an operation")
            self._lock.acquire()
        try:
            if self._proxy is None:
                return
            self._native.proxy.rr_proxy_stop(self._proxy, round(timeout_s * 1000))
            self._stop_pump.set()
            if self._pump is not None and self._pump is not threading.current_thread():
                self._pump.join(2.0)
            with self._life:
                self._final_word = int(self._native.proxy.rr_proxy_abort_word(self._proxy))
                proxy, self._proxy = self._proxy, None
                self._native.proxy.rr_proxy_destroy(proxy)
            with self._new_event:
                self._new_event.notify_all()
        finally:
            self._lock.release()


def _error_of(step: Callable[[], object]) -> str | None:
    try:
        step()
    except RoceRingError as error:
        return error.message
    return None
