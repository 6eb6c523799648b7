"""The two C libraries, by ctypes. Every struct view here is checked, field by field, against the tables that the
libraries carry: a wheel whose Python and C parts differ refuses to load."""

from __future__ import annotations

import ctypes as ct
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from .errors import SetupError

MAX_WORLD = 16
MAX_PATHS = 4
MAX_PREFETCH = 8
RECORDS = 256
PROFILES = 64
NOBODY = 0xFF

PROVIDERS = {"shm": 1, "verbs": 2}
STATES = ("INIT", "CONNECTED", "RUNNING", "DRAINING", "ABORTED", "CLOSED")
EVENT_KINDS = ("", "LATE", "RESOLVED", "ABORT", "CLOSED", "LOOP_GAP", "PATH", "PORT")
PORT_CHANGES = ("", "DOWN", "UP", "GIDS", "LOST")
HELLO_BYTES = 2352

ALL_REDUCE, ALL_GATHER, REDUCE_SCATTER = 1, 2, 3
DTYPES = {"float32": 1, "float16": 2, "bfloat16": 3}
WAVE_ALL, WAVE_PHASED, WAVE_TWO = 0, 1, 2
CPU_OK, CPU_FAILED, CPU_REFUSED = 0, 1, 2
QUEUE_ABORTED, QUEUE_TWO_STREAMS = -1, -2

_u8, _u16, _u32, _u64, _i32 = ct.c_uint8, ct.c_uint16, ct.c_uint32, ct.c_uint64, ct.c_int32


class Layout(ct.Structure):
    """Offsets of a region's parts (rr_layout)."""

    _fields_ = [
        (name, _u64)
        for name in (
            "world", "slot_bytes", "phases", "commands", "abort", "kernel", "progress", "notices", "waits", "flags",
            "records", "send", "recv", "region_bytes",
        )
    ]  # fmt: skip


class Config(ct.Structure):
    _fields_ = [
        ("struct_bytes", _u32),
        ("world", _u32),
        ("rank", _u32),
        ("provider", _u32),
        ("session", _u64 * 2),
        ("slot_bytes", _u64),
        ("first_seq", _u64),
        ("stripe_min_bytes", _u32),
        ("forward_window_bytes", _u32),
        ("forward_chunk_bytes", _u32),
        ("late_ms", _u32),
        ("peer_timeout_ms", _u32),
        ("dead_ms", _u32),
        ("idle_spins", _u64),
        ("nap_us", _u32),
        ("yield", _u32),
        ("cpu", _i32),
        ("doorbell", _u32),
        ("order", _u8 * MAX_WORLD),
        ("paths", _u8 * MAX_WORLD),
        ("hops", (_u8 * MAX_PATHS) * MAX_WORLD),
        ("hca_of", (_u8 * MAX_PATHS) * MAX_WORLD),
        ("hca", (ct.c_char * 32) * 8),
        ("address", _u32 * 8),
        ("shm_dir", ct.c_char * 128),
    ]


class PathStats(ct.Structure):
    _fields_ = [(name, _u64) for name in ("writes", "bytes", "completions", "errors")]


class Stats(ct.Structure):
    _fields_ = [
        ("struct_bytes", _u32),
        ("state", _u32),
        *(
            (name, _u64)
            for name in (
                "abort_word", "commands", "commands_asleep", "commands_lent", "ops", "writes_posted",
                "writes_completed", "bytes_written", "window_stalls", "queue_stalls", "polls", "empty_polls",
                "naps", "stale_completions", "late_reports", "longest_late_ms", "longest_loop_gap_us",
                "events_lost", "nudges", "seq_started", "seq_done", "seq_posted", "seq_completed", "idle_spins",
            )
        ),
        ("nap_us", _u32),
        ("yield", _u32),
        ("waiting", _u32),
        ("closed", _u32),
        ("ports_down", _u32),
        ("imm", _u32),
        ("path", (PathStats * MAX_PATHS) * MAX_WORLD),
    ]  # fmt: skip


class Event(ct.Structure):
    _fields_ = [
        ("index", _u64),
        ("time_ns", _u64),
        ("seq", _u64),
        ("ms", _u64),
        ("kind", _u32),
        ("reason", _u32),
        ("peer", _u32),
        ("root", _u32),
        ("phase", _u32),
        ("path", _u32),
    ]


class Record(ct.Structure):
    """Flight recorder entry."""

    _fields_ = [
        ("seq", _u64),
        ("first_command_ns", _u64),
        ("last_posted_ns", _u64),
        ("completed_ns", _u64),
        ("bytes", _u32),
        ("commands", _u16),
        ("late_peers", _u16),
        ("mode", _u8),
        ("reserved", _u8 * 23),
    ]


class Op(ct.Structure):
    """One launch of a collective (rr_op)."""

    _fields_ = [
        ("in", _u64),
        ("out", _u64),
        ("count", _u64),
        ("rows", _u64),
        ("region", _u64),
        ("state", _u64),
        ("width", _u64 * MAX_WORLD),
        ("layout", Layout),
        ("deadline_ns", _u64),
        ("report_ns", _u64),
        ("world", _u32),
        ("rank", _u32),
        ("kind", _u32),
        ("mode", _u32),
        ("wave", _u32),
        ("dtype", _u32),
        ("fp32_partials", _u32),
        ("stripe_min_bytes", _u32),
        ("spins", _u32),
        ("digest", _u32),
        ("order", _u8 * MAX_WORLD),
        ("paths", _u8 * MAX_WORLD),
        ("lend", _u64),
        ("proxy", _u64),
        ("sleep_ns", _u64),
        ("data", _u64 * MAX_WORLD),
        ("tag", _u32),
        ("pieces", _u32),
        ("norm_row", _u64),
        ("norm_residual", _u64),
        ("norm_weight", _u64),
        ("norm_eps", ct.c_float),
        ("prefetches", _u32),
        ("prefetch", _u64 * MAX_PREFETCH),
        ("prefetch_bytes", _u64 * MAX_PREFETCH),
    ]


def describe_op(op: Op) -> str:
    """In words, for a message that compares it with a peer's."""
    dtype = next((name for name, value in DTYPES.items() if value == op.dtype), "?")
    if op.kind == ALL_GATHER:
        widths = ", ".join(str(op.width[p]) for p in range(op.world))
        return f"an all_gather of {op.rows} row(s) of {widths} bytes"
    if op.kind == REDUCE_SCATTER:
        return f"a reduce_scatter of {op.world} x {op.count} {dtype}"
    modes = [line.split(" ")[1].lower() for line in native().kernels.rr_mode_table().decode().splitlines()]
    norm = f" with a norm of rows of {op.norm_row}" if op.norm_row else ""
    return f"an all_reduce of {op.count} {dtype} in mode {modes[op.mode - 1]}{norm}"


class DeviceState(ct.Structure):
    """What kernels keep between launches (rr_device_state)."""

    _fields_ = [
        ("seq", _u64),
        ("commands", _u64),
        ("publishes", _u64),
        ("rounds", _u64),
        ("failed", _u64),
        ("reserved0", _u8 * 88),
        ("arrived", _u64 * 64),
        ("ready", _u64),
        ("reserved1", _u8 * 120),
    ]


class Profile(ct.Structure):
    """What a profiling build noted of one operation (rr_profile)."""

    _fields_ = [
        *((name, _u64) for name in ("seq", "began_ns", "stage_ns", "command_ns", "wait_ns", "reduce_ns")),
        ("reserved", _u8 * 16),
    ]


class ProfiledState(ct.Structure):
    """A profiling session's state (rr_profiled_state)."""

    _fields_ = [("state", DeviceState), ("profiles", Profile * PROFILES)]


class Queue(ct.Structure):
    """How a session's launches get into streams of a GPU (rr_queue)."""

    _fields_ = [
        *(
            (name, _u64)
            for name in (
                "in", "out", "to", "launch_kernel", "is_capturing", "get_capture_info", "record_event", "wait_event",
                "get_context", "push_context", "pop_context", "context", "abort", "event", "stream", "capture",
                "capture_stream",
            )
        ),
        ("ordered", _u32),
        ("captured", _u32),
    ]  # fmt: skip


class Launch(ct.Structure):
    """A sealed operation with all that a launch of it needs but the addresses and the stream (rr_launch)."""

    _fields_ = [("op", Op), ("function", _u64), ("blocks", _u32), ("threads", _u32)]


STALL_STEPS, STALL_STAMPS, STALL_LINE = 32, 3, 128  # RR_STALL_*
# What a step of a trace does (RR_STALL_*).
STALL_READ, STALL_WRITE, STALL_TAKE, STALL_HOST_READ, STALL_HOST_WRITE = range(5)


class StallStep(ct.Structure):
    """A step of an operation of a trace (rr_stall_step)."""

    _fields_ = [("kind", _u32), ("peers", _u32), ("bytes", _u32), ("meet", _u32)]


class Stall(ct.Structure):
    """One rank's part in a trace (rr_stall)."""

    _fields_ = [
        ("data", _u64 * MAX_WORLD),
        ("flags", _u64 * MAX_WORLD),
        *((name, _u64) for name in ("host", "stamps", "lost", "grid", "slot_bytes", "met", "limit_ns")),
        *((name, _u32) for name in ("rank", "world", "ops", "steps")),
        ("step", StallStep * STALL_STEPS),
    ]


VIEWS: dict[str, type[ct.Structure]] = {
    "rr_layout": Layout,
    "rr_config": Config,
    "rr_path_stats": PathStats,
    "rr_stats": Stats,
    "rr_event": Event,
    "rr_record": Record,
    "rr_op": Op,
    "rr_device_state": DeviceState,
    "rr_profile": Profile,
    "rr_profiled_state": ProfiledState,
    "rr_queue": Queue,
    "rr_launch": Launch,
    "rr_stall_step": StallStep,
    "rr_stall": Stall,
}


def layout_problems(table: str, views: dict[str, type[ct.Structure]]) -> list[str]:
    """Compares "struct field offset bytes" lines with the views; one sentence per difference, and per view or field of
    a view that the table does not know."""
    problems, told = [], set()
    for line in table.splitlines():
        struct, field, offset, size = line.split()
        if struct not in views:
            continue
        told.add((struct, field))
        view = views[struct]
        if field == "-":
            if ct.sizeof(view) != int(size):
                problems.append(f"{struct} has {size} bytes in C, {ct.sizeof(view)} in Python")
            continue
        here = getattr(view, field, None)
        seen = f"{here.offset} with {here.size} bytes" if here is not None else "nowhere"
        if here is None or (here.offset, here.size) != (int(offset), int(size)):
            problems.append(f"{struct}.{field} is at {offset} with {size} bytes in C, {seen} in Python")
    for struct, view in views.items():
        names = ["-", *(name for name, *_ in view._fields_ if not str(name).startswith("reserved"))]
        problems += [f"{struct}.{name} is not in the library's table" for name in names if (struct, name) not in told]
    return problems


@dataclass(frozen=True, slots=True)
class ErrorKind:
    value: int
    name: str
    meaning: str
    hint: str


class Native:
    """Both libraries, with their signatures."""

    def __init__(self) -> None:
        self.proxy = _load("roce_ring_proxy")
        self.kernels = _load("roce_ring_kernels")
        p, k = self.proxy, self.kernels
        for lib, name, result, arguments in (
            (p, "rr_proxy_create", ct.c_void_p, [ct.POINTER(Config), ct.c_char_p, ct.c_size_t]),
            (p, "rr_proxy_hello", ct.c_int, [ct.c_void_p, ct.c_void_p]),
            (p, "rr_proxy_connect", ct.c_int, [ct.c_void_p, ct.c_void_p, ct.c_char_p, ct.c_size_t]),
            (p, "rr_proxy_litmus", ct.c_int, [ct.c_void_p, _u32, ct.c_char_p, ct.c_char_p, ct.c_size_t]),
            (p, "rr_proxy_use", ct.c_int, [ct.c_void_p, ct.c_char_p, _u32, ct.c_char_p, ct.c_size_t]),
            (p, "rr_proxy_start", ct.c_int, [ct.c_void_p, ct.c_char_p, ct.c_size_t]),
            (p, "rr_proxy_stop", ct.c_int, [ct.c_void_p, _u32]),
            (p, "rr_proxy_destroy", None, [ct.c_void_p]),
            (p, "rr_proxy_lend", None, [ct.c_void_p]),
            (p, "rr_proxy_region", ct.c_void_p, [ct.c_void_p]),
            (p, "rr_proxy_peer_region", ct.c_void_p, [ct.c_void_p, _u32]),
            (p, "rr_proxy_layout", None, [ct.c_void_p, ct.POINTER(Layout)]),
            (p, "rr_proxy_abort_word", _u64, [ct.c_void_p]),
            (p, "rr_proxy_abort", _u64, [ct.c_void_p, _u32, _u32]),
            (p, "rr_proxy_set_idle", ct.c_int, [ct.c_void_p, _u64, _u32]),
            (p, "rr_proxy_stats", None, [ct.c_void_p, ct.POINTER(Stats)]),
            (p, "rr_proxy_events", _u32, [ct.c_void_p, _u64, ct.POINTER(Event), _u32]),
            (p, "rr_layout_table", ct.c_char_p, []),
            (p, "rr_layout_hash", _u64, [_u32, _u64]),
            (p, "rr_layout_fill", None, [_u32, _u64, ct.POINTER(Layout)]),
            (p, "rr_error_table", ct.c_char_p, []),
            (p, "rr_providers", _u32, []),
            (p, "rr_wire_version", _u32, []),
            (p, "rr_status_text", ct.c_char_p, [_u32]),
            (k, "rr_op_seal", None, [ct.POINTER(Op)]),
            (k, "rr_cpu_run", ct.c_int, [ct.POINTER(Op), _u32, _u32]),
            (k, "rr_cpu_run_profiled", ct.c_int, [ct.POINTER(Op), _u32, _u32]),
            (k, "rr_queue_launch", ct.c_int, None),  # byref()s made once: to check and convert costs 0.5 us each
            (k, "rr_cpu_refusal", ct.c_char_p, [ct.POINTER(Op)]),
            (k, "rr_stall_cpu", ct.c_int, [ct.POINTER(Stall), _u32, _u32]),
            (k, "rr_op_table", ct.c_char_p, []),
            (k, "rr_mode_table", ct.c_char_p, []),
            (k, "rr_cpu_isa", ct.c_char_p, []),
        ):
            function = getattr(lib, name)
            function.restype, function.argtypes = result, arguments
        self.providers = tuple(name for name, bit in PROVIDERS.items() if p.rr_providers() >> bit & 1)
        if "verbs" in self.providers:
            text: list[Any] = [ct.c_char_p, ct.c_size_t]
            p.rr_probe_open.restype, p.rr_probe_open.argtypes = ct.c_void_p, [ct.c_char_p, _u32, _u32, _u32, *text]
            p.rr_probe_endpoint.restype, p.rr_probe_endpoint.argtypes = None, [ct.c_void_p, ct.c_void_p]
            p.rr_probe_connect.argtypes = [ct.c_void_p, ct.c_void_p, *text]
            p.rr_probe_write.argtypes = [ct.c_void_p, _u32, _u32, _u32, ct.POINTER(_u64), *text]
            p.rr_probe_close.restype, p.rr_probe_close.argtypes = None, [ct.c_void_p]
        problems = layout_problems((p.rr_layout_table() + k.rr_op_table()).decode(), VIEWS)
        if problems:
            raise SetupError("the C libraries do not fit this version of roce_ring: " + "; ".join(problems), _REINSTALL)
        self.errors = {
            int(value): ErrorKind(int(value), name, *rest.split("\t"))
            for value, name, rest in (line.split(" ", 2) for line in p.rr_error_table().decode().splitlines())
        }
        self.reasons = {kind.name: kind.value for kind in self.errors.values()}
        self.wire_version = int(p.rr_wire_version())

    def layout(self, world: int, capacity_bytes: int) -> Layout:
        out = Layout()
        self.proxy.rr_layout_fill(world, capacity_bytes, ct.byref(out))
        return out


_REINSTALL = "install the package again: make venv, or pip install ."


def _load(name: str) -> ct.CDLL:
    path = Path(__file__).parent / "_lib" / f"lib{name}.so"
    try:
        return ct.CDLL(str(path))
    except OSError as error:
        raise SetupError(f"cannot load {path}: {error}", _REINSTALL) from error


@cache
def native() -> Native:
    """Loaded at first use: importing roce_ring costs nothing."""
    return Native()


def call(function: object, *arguments: object) -> int:
    """Calls a C function whose last two parameters are (text, bytes); raises SetupError with its sentence."""
    why = ct.create_string_buffer(4096)
    result = function(*arguments, why, len(why))  # type: ignore[operator]
    if result is None or (isinstance(result, int) and result < 0):
        raise SetupError(why.value.decode(errors="replace") or "the C library gave no reason")
    return int(result)
