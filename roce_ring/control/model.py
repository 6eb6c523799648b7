"""What a rank says about itself. Field names equal those of rank_service.proto; a test holds the two together."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class SessionState(StrEnum):
    """INIT -> CONNECTED -> RUNNING -> DRAINING -> CLOSED; ABORTED comes from any of the first four and is final."""

    INIT = "INIT"  # ranks are still meeting
    CONNECTED = "CONNECTED"  # every peer is reachable, the proxy thread does not serve yet
    RUNNING = "RUNNING"  # the proxy thread serves operations
    DRAINING = "DRAINING"  # started operations finish, new ones are refused
    ABORTED = "ABORTED"  # sticky; reason and culprit say why
    CLOSED = "CLOSED"  # closed in order


# States in which a load balancer may send work.
SERVING_STATES = frozenset({SessionState.CONNECTED, SessionState.RUNNING})


class EventKind(StrEnum):
    STATE = "STATE"
    LATE = "LATE"
    RESOLVED = "RESOLVED"
    ABORT = "ABORT"
    CLOSED = "CLOSED"
    LOOP_GAP = "LOOP_GAP"
    PATH = "PATH"
    IDLE_POLICY = "IDLE_POLICY"


@dataclass(frozen=True, slots=True)
class PeerInfo:
    """A peer and one name per path to it, in path order: an HCA, or "shm"."""

    rank: int
    host: str
    paths: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class RankInfo:
    """Facts that do not change while a session lives. Hashes are hex; `plan_hash` is empty without a plan. `device`:
    where the tensors are, cpu or cuda:N."""

    session_name: str
    session_id: str
    rank: int
    world: int
    pid: int
    host: str
    version: str
    wire_version: int
    layout_hash: str
    plan_hash: str
    settings_hash: str
    provider: str
    memory_kind: str
    arrival_mode: str
    litmus_verdict: str
    mode: str
    capacity_bytes: int
    gather_capacity_bytes: int
    started_unix_s: float
    peers: tuple[PeerInfo, ...] = ()
    device: str = "cpu"


@dataclass(frozen=True, slots=True)
class RankState:
    """`reason`, `culprit_rank` and `sequence` say why a session is ABORTED, or what is late in one that runs."""

    state: SessionState
    reason: str = ""
    culprit_rank: int | None = None
    sequence: int | None = None
    waiting_for_ranks: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class PathStats:
    name: str
    writes_posted: int = 0
    writes_completed: int = 0
    bytes_written: int = 0
    errors: int = 0


@dataclass(frozen=True, slots=True)
class PeerStats:
    rank: int
    paths: tuple[PathStats, ...] = ()


@dataclass(frozen=True, slots=True)
class MemoryPart:
    """One part of the session's memory, in the layout's order."""

    name: str
    size_bytes: int


@dataclass(frozen=True, slots=True)
class RankStats:
    """Counters since the session began. `asleep_share`: of the commands, those that found the proxy thread asleep."""

    ops_posted: int = 0
    commands_consumed: int = 0
    writes_posted: int = 0
    writes_completed: int = 0
    bytes_written: int = 0
    window_stalls: int = 0
    queue_stalls: int = 0
    empty_polls: int = 0
    naps: int = 0
    asleep_share: float = 0.0
    idle_spins: int = 0
    nap_us: int = 0
    yields: bool = False
    late_reports: int = 0
    longest_late_ms: int = 0
    longest_loop_gap_us: int = 0
    events_lost: int = 0
    stale_completions: int = 0
    last_seq_posted: int = 0
    last_seq_completed: int = 0
    peers: tuple[PeerStats, ...] = ()
    memory: tuple[MemoryPart, ...] = ()
    nudges: int = 0


@dataclass(frozen=True, slots=True)
class IdlePolicy:
    """The proxy thread polls `idle_spins` times without work, then sleeps `nap_us` microseconds at a time."""

    idle_spins: int
    nap_us: int


@dataclass(frozen=True, slots=True)
class RankEvent:
    """`index` counts from 1 within a session; a jump means that older events were overwritten before they were read."""

    index: int
    unix_s: float
    kind: EventKind
    message: str
    peer_rank: int | None = None
    sequence: int | None = None
