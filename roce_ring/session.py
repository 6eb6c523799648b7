"""One rank's session: a region, a proxy thread, the kernels' state, and a control endpoint. It lives from the first
meeting of all ranks to close(), and never recovers from an abort: AllReduce.reset() builds a new one."""

from __future__ import annotations

import ctypes as ct
import logging
import os
import socket
import threading
import time
from collections.abc import Callable
from ctypes import Array
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from . import __version__
from .direct import LOADS, NO_ACCESS, mapped_regions
from .direct import problem as pcie_problem
from .errors import RoceRingError, SessionAborted, SetupError
from .exchange import Exchange, agree, gather_errors
from .host import driver_version, memory_problem, no_hca_problem, start_proxy
from .ladder.choose import choose, fabric_of
from .ladder.model import Key, Ladder
from .lease import Lease, take_lease
from .litmus import Proof, prove, use
from .modes import modes
from .native import (
    CPU_FAILED,
    CPU_REFUSED,
    HELLO_BYTES,
    PROFILES,
    PROVIDERS,
    QUEUE_ABORTED,
    RECORDS,
    STATES,
    Config,
    DeviceState,
    Event,
    Launch,
    Layout,
    Op,
    Profile,
    ProfiledState,
    Record,
    Stats,
    call,
    describe_op,
    native,
)
from .session_control import SessionControl
from .settings import Settings
from .topology import Topology
from .verdict import place, verdict

if TYPE_CHECKING:
    from .gpu.executor import GpuExecutor
    from .gpu.peers import PeerMemory

log = logging.getLogger(__name__)

MEETING_S = 60.0
# Where threads outnumber cores nobody may spin: a waiting kernel takes the proxy's turns itself and then sleeps until
# a peer's flag wakes it, and the proxy's thread only naps and watches. Elsewhere the proxy polls (20,000,000 polls
# cover the gaps of a decode step; 200,000 cost 8.6 % of it) and a kernel looks for about a millisecond before it
# sleeps.
_IDLE_SPINS = 20_000_000
_KERNEL_SPINS = 20_000
# A NIC wakes nobody, so a kernel that sleeps looks now and then. Where ranks crowd a host and still use verbs, the NIC
# is software on the same cores: every look and every nap of a proxy takes from its time. On a Soft-RoCE ring of four,
# 50 us looks and 20 us naps made a small all-reduce 3.4 times as long as these.
_SLEEP_NS = {"shm": 1_000_000, "pcie": 1_000_000, "verbs": 500_000}
_CROWDED_VERBS_NAP_US = 1000
_COMPILING_S = 600.0  # the kernels, at a machine's first start
_CPU_PREFETCH_BYTES = 1 << 20  # a second-level cache of most servers' cores
_REPORT_NS = 20_000_000  # a wait shorter than this is nobody's business


class Session:
    """Collective constructor: every rank makes one at the same time, with the same settings. Raises SetupError on all
    ranks, naming every offender, or on none."""

    def __init__(
        self,
        exchange: Exchange,
        settings: Settings,
        topology: Topology,
        *,
        device: str = "cpu",
        first_seq: int = 0,
        serve: bool = True,
        profile: bool = False,
    ) -> None:
        self.settings, self.topology = settings, topology
        self.rank, self.world = exchange.rank, exchange.world
        self.capacity = max(settings.max_bytes, settings.gather_bytes)
        self.started_unix_s = time.time()
        self._native = native()
        kernels = self._native.kernels
        self._run = kernels.rr_cpu_run_profiled if profile else kernels.rr_cpu_run
        self._profile = profile
        self._lend = ct.cast(self._native.proxy.rr_proxy_lend, ct.c_void_p).value
        self._proxy: int | None = None
        self._op: Op | None = None
        self.device = device  # cpu; cuda:N once the GPU is open
        self._gpu: GpuExecutor | None = None
        self._server: object | None = None
        self._lease: Lease | None = None
        self._lock = threading.Lock()  # one operation at a time; close() waits for it
        self._life = threading.Lock()  # whoever holds it may use self._proxy; never held while waiting for a peer
        self.drained = threading.Event()
        self.control = SessionControl(self)
        self._final_word = 0  # the abort word of a closed session
        self.proof: Proof | None = None  # verbs: what the paths were found to be
        self.ways = topology.paths  # those in use

        self.layout: Layout = self._native.layout(self.world, self.capacity)
        self.layout_hash = int(self._native.proxy.rr_layout_hash(self.world, self.layout.slot_bytes))
        agree(exchange, self._agreement(first_seq), MEETING_S)
        meeting = exchange.all_gather(os.urandom(16) + socket.gethostname().encode()[:255], MEETING_S)
        self.session_id = meeting[0][:16]
        self.hosts = [one[16:].decode(errors="replace") for one in meeting]
        self.provider = self._choose_provider()
        # pcie on a GPU: the region in host memory holds what the proxy looks at; flags and slots are in device memory.
        in_device = self.provider == "pcie" and device != "cpu"
        self.host_layout = self._native.layout(self.world, 1) if in_device else self.layout
        self.memory: PeerMemory | None = None
        self.access = LOADS if self.provider == "pcie" else NO_ACCESS  # to peers' memory
        self._fabric = ""  # its class, where more is known than paths tell
        self._acs_redirects: bool | None = None
        self._data: list[int] = []  # pcie: where this rank's kernels see every rank's flags and slots
        here = self.hosts.count(self.hosts[self.rank])
        gather_errors(exchange, self._problem(exchange, here), MEETING_S)
        # One proxy thread and one caller per rank. Hyperthreads count as cores: the scheduler treats them so.
        # Callers of a GPU do not look at flags.
        self.crowded = (2 if device == "cpu" else 1) * here > len(os.sched_getaffinity(0))
        try:
            self._open(exchange, first_seq)
            if serve:
                self._serve(exchange)
        except BaseException:
            self.close(timeout_s=0.0)
            raise

    # ---- coming up ----

    def _agreement(self, first_seq: int) -> dict[str, str | int]:
        # What follows from max_bytes must not be told as a difference of its own: the user never set it.
        any_slot = self._native.layout(self.world, 1).slot_bytes
        settings = self.settings.agreement()
        if settings["gather_bytes"] == settings["max_bytes"]:
            settings["gather_bytes"] = "the same as max_bytes"
        return {
            "version": __version__,
            "wire version": self._native.wire_version,
            "layout hash": f"{self._native.proxy.rr_layout_hash(self.world, any_slot):016x}",
            "world": self.world,
            "device": self.device.partition(":")[0],
            "plan hash": self.topology.plan_hash or "none",
            "ring order": ",".join(map(str, self.topology.order)),
            "first sequence": first_seq,
            **settings,
        }

    def _problem(self, exchange: Exchange, here: int) -> str | None:
        """`here`: ranks on this host."""
        s, problems = self.settings, []
        if (self.topology.rank, self.topology.world) != (exchange.rank, exchange.world):
            problems.append(
                f"the plan is for rank {self.topology.rank} of {self.topology.world}, "
                f"the exchange says rank {exchange.rank} of {exchange.world}"
            )
        if s.mode != "auto" and (refusal := modes()[s.mode].refusal(self.world, access=self.access)):
            problems.append(refusal)
        if self.provider == "verbs" and not self.topology.hcas:
            problems.append(no_hca_problem(self.hosts, s.provider == "verbs"))
        if self.provider == "pcie" and (refusal := pcie_problem(self.hosts)):
            problems.append(refusal)
        if memory := memory_problem(self.host_layout.region_bytes, here, self.capacity):
            problems.append(memory)
        return "; ".join(problems) or None

    def _take_lease(self) -> None:
        """From here on this node's agent keeps the paths as they are."""
        if self.provider == "verbs":
            needs = any(way.hops > 1 for ways in self.topology.paths for way in ways)
            self._lease = take_lease(
                self.settings.run_dir,
                f"{self.session_id.hex()}/{self.rank}",
                f"rank {self.rank} of session {self.settings.name} (pid {os.getpid()})",
                self.topology.plan_hash if needs else "",
            )

    def _choose_ladder(self, exchange: Exchange) -> None:
        """Ranks that climb different ladders would run different collectives."""
        t, choice, error = self.topology, None, None
        fabric = self._fabric or fabric_of(
            self.provider, t.complete, any(way.hops > 1 for ways in t.paths for way in ways)
        )
        self.fabric = fabric
        self.key = Key(
            world=self.world,
            device=self.device.partition(":")[0],
            gpu=self._gpu.name if self._gpu else None,
            driver=driver_version() if self._gpu else None,
            acs_redirects=self._acs_redirects,
            hairpin_packets=t.hairpin_packets,
        )
        try:
            choice = choose(self.settings.ladder, fabric, self.key, self.settings.max_bytes)
        except RoceRingError as failed:
            error = str(failed)
        gather_errors(exchange, error, MEETING_S)
        assert choice is not None  # gather_errors raised otherwise
        self.ladder: Ladder = choice.ladder
        if choice.warning:
            log.warning("rank %d: %s", self.rank, choice.warning)
        agree(exchange, {"ladder": f"{fabric} {self.ladder.digest}"}, MEETING_S)

    def _choose_provider(self) -> str:
        if self.settings.provider != "auto":
            return self.settings.provider
        return "shm" if len(set(self.hosts)) == 1 else "verbs"

    def _config(self, first_seq: int) -> Config:
        s, t, on_cpu = self.settings, self.topology, self.device == "cpu"
        config = Config(
            struct_bytes=ct.sizeof(Config),
            world=self.world,
            rank=self.rank,
            # pcie: the proxy moves nothing, but watches and tells, as with shm.
            provider=PROVIDERS["shm" if self.provider == "pcie" else self.provider],
            slot_bytes=self.host_layout.slot_bytes,
            first_seq=first_seq,
            stripe_min_bytes=s.stripe_min_bytes,
            forward_window_bytes=s.forward_window_bytes,
            forward_chunk_bytes=s.forward_chunk_bytes,
            late_ms=round(s.late_s * 1000),
            peer_timeout_ms=round(s.peer_timeout_s * 1000),
            dead_ms=round(s.dead_peer_s * 1000),
            # Only a CPU kernel can wake a proxy that naps.
            idle_spins=s.idle_spins if s.idle_spins >= 0 else 0 if self.crowded and on_cpu else _IDLE_SPINS,
            nap_us=max(s.nap_us, _CROWDED_VERBS_NAP_US if self.crowded and self.provider == "verbs" else 0),
            cpu=s.proxy_cpu,
            doorbell=int(on_cpu),
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
        for i, address in enumerate(t.addresses):
            config.address[i] = int.from_bytes(socket.inet_aton(address), "little")
        return config

    def _open(self, exchange: Exchange, first_seq: int) -> None:
        """Every step's outcome is gathered before the next, so that ranks fail together."""
        gather_errors(exchange, _error_of(self._take_lease), MEETING_S)
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
        if self.provider == "verbs":
            self._prove(exchange)
        self.region = int(lib.rr_proxy_region(self._proxy))
        state = DeviceState(seq=first_seq)
        self.device_state = ProfiledState(state) if self._profile else state
        if self.device != "cpu":
            gather_errors(exchange, _error_of(self._open_gpu), _COMPILING_S)
        if self.provider == "pcie":
            self._reach_peers(exchange)
        self._choose_ladder(exchange)
        gather_errors(exchange, _error_of(self._start), MEETING_S)
        self.control.start()

    def _reach_peers(self, exchange: Exchange) -> None:
        assert self._proxy is not None
        if self._gpu is None:
            self._data = mapped_regions(self._proxy, self.rank, self.world)
            return
        from .control.rundir import run_dir
        from .gpu.peers import reach

        place = run_dir(self.settings.run_dir)
        found = reach(exchange, self._gpu.device, self.layout, self.session_id.hex(), place, MEETING_S)
        self.memory, self.access, self._data = found.memory, found.access, found.memory.data
        self._fabric = found.group.fabric if found.access == LOADS else "pcie-hostbridge"  # whose ladder reads nothing
        self._acs_redirects = found.group.redirects
        self.topology = replace(self.topology, order=found.group.order)
        self._gpu.use_peers(found.ranks_here)

    def _open_gpu(self) -> None:
        from .gpu.executor import GpuExecutor, device_number

        number = device_number(self.device)
        direct = self.provider == "pcie"
        self._gpu = GpuExecutor(number, self.region, self.host_layout, self.device_state, direct)
        self.device = f"cuda:{number}"

    def _prove(self, exchange: Exchange) -> None:
        proof = self.proof = prove(exchange, self._proxy, self.topology.edges, MEETING_S)
        planned = self.topology.paths
        self.ways = tuple(
            tuple(ways[i] for i in proof.between(self.rank, peer)) if ways else () for peer, ways in enumerate(planned)
        )
        for line in proof.warnings(self.rank):
            log.warning("rank %d: %s", self.rank, line)

    def _start(self) -> None:
        if self.proof:
            use(self._proxy, self.rank, self.proof)
        start_proxy(self._proxy, self.settings.proxy_cpu)

    def _serve(self, exchange: Exchange) -> None:
        from .control.rundir import run_dir
        from .control.server import RankServer

        error = None
        try:
            self._server = RankServer(
                self.control, run_dir(self.settings.run_dir, os.environ), self.settings.name, self.rank
            )
        except RoceRingError as failed:
            error = str(failed)
        gather_errors(exchange, error, MEETING_S)

    # ---- operations ----

    @property
    def prefetch_bytes(self) -> int:
        """What one operation prefetches at most: more would drive out of the cache what it fetched first."""
        return self._gpu.l2_bytes // 2 if self._gpu else _CPU_PREFETCH_BYTES

    def op(self) -> Op:
        """An rr_op with everything that is the same for all operations of this session."""
        if self._op is None:
            self._op = self._new_op()
        return Op.from_buffer_copy(self._op)

    def _new_op(self) -> Op:
        lends = self.crowded and self._gpu is None
        op = Op(
            region=self.region,
            state=self._gpu.state_address if self._gpu else ct.addressof(self.device_state),
            layout=self.layout,
            # The proxy ends waits at peer_timeout; the kernel's own bound only matters if the proxy cannot.
            deadline_ns=round(self.settings.peer_timeout_s * 1e9) + 2_000_000_000,
            report_ns=_REPORT_NS,
            world=self.world,
            rank=self.rank,
            stripe_min_bytes=self.settings.stripe_min_bytes,
            spins=0 if self.crowded else _KERNEL_SPINS,
            lend=self._lend if lends else 0,
            proxy=(self._proxy or 0) if lends else 0,  # run() refuses if it is gone
            sleep_ns=_SLEEP_NS[self.provider],
        )
        op.data[: len(self._data)] = self._data
        op.order[: self.world] = list(self.topology.order)
        for peer, ways in enumerate(self.ways):
            op.paths[peer] = len(ways)
        return op

    def run(self, op: Op, blocks: int = 1, threads: int = 1) -> None:
        """Runs one collective on CPU threads, to its end. Raises SessionAborted (or a subclass) if it could not
        finish."""
        self._native.kernels.rr_op_seal(ct.byref(op))
        with self._lock:
            if self._proxy is None or self.drained.is_set():
                raise self._closed()
            # A kernel that finds all its flags raised already never looks at the abort word.
            aborted = self._native.proxy.rr_proxy_abort_word(self._proxy) != 0
            result = CPU_FAILED if aborted else self._run(ct.byref(op), blocks, threads)
        if result == CPU_REFUSED:
            refusal = self._native.kernels.rr_cpu_refusal(ct.byref(op))
            raise RoceRingError("refused", refusal.decode() if refusal else "the kernel could not have its threads")
        if result == CPU_FAILED:
            try:
                self.check(wait_s=1.0)
            except SessionAborted as aborted:
                if aborted.code in ("op_mismatch", "protocol"):
                    raise aborted.with_detail(f"rank {self.rank} ran {describe_op(op)}") from None
                raise
            raise SessionAborted("internal", f"a wait failed on rank {self.rank} and nobody said why", "report this")

    def prepare(self, op: Op, size_bytes: int) -> Launch:
        """One collective on a GPU, ready to be launched any number of times, on any addresses. `size_bytes`: of the
        payload."""
        assert self._gpu is not None
        if self.provider == "shm":
            op.pieces = self._gpu.pieces_for(op, size_bytes)
        self._native.kernels.rr_op_seal(ct.byref(op))
        if refusal := self._native.kernels.rr_cpu_refusal(ct.byref(op)):
            raise RoceRingError("refused", refusal.decode())
        return self._gpu.prepare(op, size_bytes)

    def blocks(self, size_bytes: int) -> int:
        """That a payload's kernel has; a CPU rank runs on the caller's thread."""
        return self._gpu.blocks(size_bytes) if self._gpu else 1

    def launch(self, launch: Any, at: int, to: int, stream: int) -> None:
        """Puts a collective into a stream of the GPU, or into the graph that the stream is being captured for.
        `launch`: byref() of what prepare() gave; `at`, `to`: addresses of input and output. Raises SessionAborted if
        the session is over already; what happens later, check() tells."""
        assert self._gpu is not None
        with self._lock:
            if self._proxy is None or self.drained.is_set():
                raise self._closed()
            code = self._gpu.put(launch, at, to, stream)
            if code == 0:
                return
            if code != QUEUE_ABORTED:
                error = self._gpu.refusal(code)
                # In a capture nothing ran yet on any rank. Otherwise the others wait for what never comes.
                if error.code == "cuda" and "STREAM_CAPTURE" not in error.message:
                    self.control.abort(f"rank {self.rank}: {error.message}")
                raise error
        self.check()

    @property
    def device_name(self) -> str:
        """For a person."""
        return f"{self.device} ({self._gpu.name})" if self._gpu is not None else self.device

    @property
    def gpu_state_bytes(self) -> int:
        """What its kernels keep between launches on a GPU."""
        return self._gpu.state_bytes if self._gpu is not None else 0

    def capturing(self, stream: int) -> bool:
        """Whether a GPU's stream is being captured for a graph."""
        return self._gpu is not None and self._gpu.capturing(stream)

    def _kernel_progress(self) -> tuple[int, int]:
        """Numbers of the last operation that a kernel began and of the last that it finished."""
        started, done = (ct.c_uint64 * 2).from_address(self.region + self.layout.kernel)
        return started, done

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
        return verdict(word, self.rank, self.control.abort_note, place(word, self.topology.edges, self.proof))

    # ---- what the control asks of the proxy ----

    def read_stats(self) -> Stats:
        out = Stats()
        with self._life:
            if self._proxy is not None:
                self._native.proxy.rr_proxy_stats(self._proxy, ct.byref(out))
            else:
                out.state = STATES.index("CLOSED")
        return out

    def read_events(self, after: int, room: Array[Event]) -> int:
        """Fills `room` with the proxy's events above index `after`; returns how many. Only while the proxy is there."""
        return int(self._native.proxy.rr_proxy_events(self._proxy, after, room, len(room)))

    def read_records(self) -> list[Record]:
        """The flight recorder: the last operations that the proxy saw, oldest first. A copy; the newest may be half
        written."""
        with self._life:
            if self._proxy is None:
                return []
            ring = (Record * RECORDS).from_address(self.region + self.layout.records)
            copy = (Record * RECORDS).from_buffer_copy(ring)
        return sorted((one for one in copy if one.commands), key=lambda one: int(one.seq))

    def read_profiles(self, count: int) -> list[Profile]:
        """Of a profiling session's last `count` operations (at most PROFILES), oldest first. On a GPU only what is
        finished is there."""
        with self._lock:
            if self._proxy is None:
                raise self._closed()
            state = self.device_state
            if self._gpu is not None:
                self._gpu.read_state(state)
            assert isinstance(state, ProfiledState) and count <= PROFILES
            last = int(state.state.seq)
            return [
                Profile.from_buffer_copy(state.profiles[seq % PROFILES]) for seq in range(last - count + 1, last + 1)
            ]

    def set_idle(self, idle_spins: int, nap_us: int) -> None:
        with self._life:
            if self._proxy is None:
                raise self._closed()
            if self._native.proxy.rr_proxy_set_idle(self._proxy, idle_spins, nap_us) != 0:
                raise RoceRingError("config", f"nap_us is {nap_us}, expected 1 to 1000")

    def abort(self, reason: str = "ABORTED_BY_USER") -> None:
        """Ends the session on all ranks, naming this one. `reason`: of proxy/include/roce_ring/errors.def."""
        with self._life:
            if self._proxy is not None:
                self._native.proxy.rr_proxy_abort(self._proxy, self._native.reasons[reason], self.rank)

    # ---- going down ----

    def close(self, timeout_s: float = 2.0) -> None:
        """Finishes what was posted, tells the peers, and gives everything back. Safe to call twice and from any
        state."""
        server, self._server = self._server, None
        if server is not None:
            server.close()  # type: ignore[attr-defined]
        if not self._lock.acquire(timeout=timeout_s + 1.0):
            self.control.abort("the session was closed in the middle of an operation")
            self._lock.acquire()
        try:
            if self._proxy is None:
                return
            if self._gpu is not None:
                why = "the session was closed in the middle of an operation"
                self._gpu.close(self._kernel_progress, lambda: self.control.abort(why), timeout_s)
            if self.memory is not None:
                self.memory.let_go()
            self._native.proxy.rr_proxy_stop(self._proxy, round(timeout_s * 1000))
            self.control.stop()
            with self._life:
                self._final_word = int(self._native.proxy.rr_proxy_abort_word(self._proxy))
                proxy, self._proxy = self._proxy, None
                self._native.proxy.rr_proxy_destroy(proxy)
            if self.memory is not None and not self.memory.free():
                log.info("rank %d keeps its slots: not every peer has closed yet", self.rank)
        finally:
            if self._lease is not None:
                self._lease.close()
            self._lock.release()


def _error_of(step: Callable[[], object]) -> str | None:
    try:
        step()
    except RoceRingError as error:
        return error.message
    return None
