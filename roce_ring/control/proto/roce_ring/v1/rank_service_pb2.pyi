from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class SessionState(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    SESSION_STATE_UNSPECIFIED: _ClassVar[SessionState]
    SESSION_STATE_INIT: _ClassVar[SessionState]
    SESSION_STATE_CONNECTED: _ClassVar[SessionState]
    SESSION_STATE_RUNNING: _ClassVar[SessionState]
    SESSION_STATE_DRAINING: _ClassVar[SessionState]
    SESSION_STATE_ABORTED: _ClassVar[SessionState]
    SESSION_STATE_CLOSED: _ClassVar[SessionState]

class EventKind(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    EVENT_KIND_UNSPECIFIED: _ClassVar[EventKind]
    EVENT_KIND_STATE: _ClassVar[EventKind]
    EVENT_KIND_LATE: _ClassVar[EventKind]
    EVENT_KIND_RESOLVED: _ClassVar[EventKind]
    EVENT_KIND_ABORT: _ClassVar[EventKind]
    EVENT_KIND_CLOSED: _ClassVar[EventKind]
    EVENT_KIND_LOOP_GAP: _ClassVar[EventKind]
    EVENT_KIND_PATH: _ClassVar[EventKind]
    EVENT_KIND_IDLE_POLICY: _ClassVar[EventKind]
SESSION_STATE_UNSPECIFIED: SessionState
SESSION_STATE_INIT: SessionState
SESSION_STATE_CONNECTED: SessionState
SESSION_STATE_RUNNING: SessionState
SESSION_STATE_DRAINING: SessionState
SESSION_STATE_ABORTED: SessionState
SESSION_STATE_CLOSED: SessionState
EVENT_KIND_UNSPECIFIED: EventKind
EVENT_KIND_STATE: EventKind
EVENT_KIND_LATE: EventKind
EVENT_KIND_RESOLVED: EventKind
EVENT_KIND_ABORT: EventKind
EVENT_KIND_CLOSED: EventKind
EVENT_KIND_LOOP_GAP: EventKind
EVENT_KIND_PATH: EventKind
EVENT_KIND_IDLE_POLICY: EventKind

class PeerInfo(_message.Message):
    __slots__ = ("rank", "host", "paths")
    RANK_FIELD_NUMBER: _ClassVar[int]
    HOST_FIELD_NUMBER: _ClassVar[int]
    PATHS_FIELD_NUMBER: _ClassVar[int]
    rank: int
    host: str
    paths: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, rank: _Optional[int] = ..., host: _Optional[str] = ..., paths: _Optional[_Iterable[str]] = ...) -> None: ...

class RankInfo(_message.Message):
    __slots__ = ("session_name", "session_id", "rank", "world", "pid", "host", "version", "wire_version", "layout_hash", "plan_hash", "settings_hash", "provider", "memory_kind", "arrival_mode", "litmus_verdict", "mode", "capacity_bytes", "gather_capacity_bytes", "started_unix_s", "peers", "device")
    SESSION_NAME_FIELD_NUMBER: _ClassVar[int]
    SESSION_ID_FIELD_NUMBER: _ClassVar[int]
    RANK_FIELD_NUMBER: _ClassVar[int]
    WORLD_FIELD_NUMBER: _ClassVar[int]
    PID_FIELD_NUMBER: _ClassVar[int]
    HOST_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    WIRE_VERSION_FIELD_NUMBER: _ClassVar[int]
    LAYOUT_HASH_FIELD_NUMBER: _ClassVar[int]
    PLAN_HASH_FIELD_NUMBER: _ClassVar[int]
    SETTINGS_HASH_FIELD_NUMBER: _ClassVar[int]
    PROVIDER_FIELD_NUMBER: _ClassVar[int]
    MEMORY_KIND_FIELD_NUMBER: _ClassVar[int]
    ARRIVAL_MODE_FIELD_NUMBER: _ClassVar[int]
    LITMUS_VERDICT_FIELD_NUMBER: _ClassVar[int]
    MODE_FIELD_NUMBER: _ClassVar[int]
    CAPACITY_BYTES_FIELD_NUMBER: _ClassVar[int]
    GATHER_CAPACITY_BYTES_FIELD_NUMBER: _ClassVar[int]
    STARTED_UNIX_S_FIELD_NUMBER: _ClassVar[int]
    PEERS_FIELD_NUMBER: _ClassVar[int]
    DEVICE_FIELD_NUMBER: _ClassVar[int]
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
    peers: _containers.RepeatedCompositeFieldContainer[PeerInfo]
    device: str
    def __init__(self, session_name: _Optional[str] = ..., session_id: _Optional[str] = ..., rank: _Optional[int] = ..., world: _Optional[int] = ..., pid: _Optional[int] = ..., host: _Optional[str] = ..., version: _Optional[str] = ..., wire_version: _Optional[int] = ..., layout_hash: _Optional[str] = ..., plan_hash: _Optional[str] = ..., settings_hash: _Optional[str] = ..., provider: _Optional[str] = ..., memory_kind: _Optional[str] = ..., arrival_mode: _Optional[str] = ..., litmus_verdict: _Optional[str] = ..., mode: _Optional[str] = ..., capacity_bytes: _Optional[int] = ..., gather_capacity_bytes: _Optional[int] = ..., started_unix_s: _Optional[float] = ..., peers: _Optional[_Iterable[_Union[PeerInfo, _Mapping]]] = ..., device: _Optional[str] = ...) -> None: ...

class RankState(_message.Message):
    __slots__ = ("state", "reason", "culprit_rank", "sequence", "waiting_for_ranks")
    STATE_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    CULPRIT_RANK_FIELD_NUMBER: _ClassVar[int]
    SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    WAITING_FOR_RANKS_FIELD_NUMBER: _ClassVar[int]
    state: SessionState
    reason: str
    culprit_rank: int
    sequence: int
    waiting_for_ranks: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, state: _Optional[_Union[SessionState, str]] = ..., reason: _Optional[str] = ..., culprit_rank: _Optional[int] = ..., sequence: _Optional[int] = ..., waiting_for_ranks: _Optional[_Iterable[int]] = ...) -> None: ...

class PathStats(_message.Message):
    __slots__ = ("name", "writes_posted", "writes_completed", "bytes_written", "errors")
    NAME_FIELD_NUMBER: _ClassVar[int]
    WRITES_POSTED_FIELD_NUMBER: _ClassVar[int]
    WRITES_COMPLETED_FIELD_NUMBER: _ClassVar[int]
    BYTES_WRITTEN_FIELD_NUMBER: _ClassVar[int]
    ERRORS_FIELD_NUMBER: _ClassVar[int]
    name: str
    writes_posted: int
    writes_completed: int
    bytes_written: int
    errors: int
    def __init__(self, name: _Optional[str] = ..., writes_posted: _Optional[int] = ..., writes_completed: _Optional[int] = ..., bytes_written: _Optional[int] = ..., errors: _Optional[int] = ...) -> None: ...

class PeerStats(_message.Message):
    __slots__ = ("rank", "paths")
    RANK_FIELD_NUMBER: _ClassVar[int]
    PATHS_FIELD_NUMBER: _ClassVar[int]
    rank: int
    paths: _containers.RepeatedCompositeFieldContainer[PathStats]
    def __init__(self, rank: _Optional[int] = ..., paths: _Optional[_Iterable[_Union[PathStats, _Mapping]]] = ...) -> None: ...

class MemoryPart(_message.Message):
    __slots__ = ("name", "size_bytes")
    NAME_FIELD_NUMBER: _ClassVar[int]
    SIZE_BYTES_FIELD_NUMBER: _ClassVar[int]
    name: str
    size_bytes: int
    def __init__(self, name: _Optional[str] = ..., size_bytes: _Optional[int] = ...) -> None: ...

class RankStats(_message.Message):
    __slots__ = ("ops_posted", "commands_consumed", "writes_posted", "writes_completed", "bytes_written", "window_stalls", "queue_stalls", "empty_polls", "naps", "asleep_share", "idle_spins", "nap_us", "yields", "late_reports", "longest_late_ms", "longest_loop_gap_us", "events_lost", "stale_completions", "last_seq_posted", "last_seq_completed", "peers", "memory", "nudges")
    OPS_POSTED_FIELD_NUMBER: _ClassVar[int]
    COMMANDS_CONSUMED_FIELD_NUMBER: _ClassVar[int]
    WRITES_POSTED_FIELD_NUMBER: _ClassVar[int]
    WRITES_COMPLETED_FIELD_NUMBER: _ClassVar[int]
    BYTES_WRITTEN_FIELD_NUMBER: _ClassVar[int]
    WINDOW_STALLS_FIELD_NUMBER: _ClassVar[int]
    QUEUE_STALLS_FIELD_NUMBER: _ClassVar[int]
    EMPTY_POLLS_FIELD_NUMBER: _ClassVar[int]
    NAPS_FIELD_NUMBER: _ClassVar[int]
    ASLEEP_SHARE_FIELD_NUMBER: _ClassVar[int]
    IDLE_SPINS_FIELD_NUMBER: _ClassVar[int]
    NAP_US_FIELD_NUMBER: _ClassVar[int]
    YIELDS_FIELD_NUMBER: _ClassVar[int]
    LATE_REPORTS_FIELD_NUMBER: _ClassVar[int]
    LONGEST_LATE_MS_FIELD_NUMBER: _ClassVar[int]
    LONGEST_LOOP_GAP_US_FIELD_NUMBER: _ClassVar[int]
    EVENTS_LOST_FIELD_NUMBER: _ClassVar[int]
    STALE_COMPLETIONS_FIELD_NUMBER: _ClassVar[int]
    LAST_SEQ_POSTED_FIELD_NUMBER: _ClassVar[int]
    LAST_SEQ_COMPLETED_FIELD_NUMBER: _ClassVar[int]
    PEERS_FIELD_NUMBER: _ClassVar[int]
    MEMORY_FIELD_NUMBER: _ClassVar[int]
    NUDGES_FIELD_NUMBER: _ClassVar[int]
    ops_posted: int
    commands_consumed: int
    writes_posted: int
    writes_completed: int
    bytes_written: int
    window_stalls: int
    queue_stalls: int
    empty_polls: int
    naps: int
    asleep_share: float
    idle_spins: int
    nap_us: int
    yields: bool
    late_reports: int
    longest_late_ms: int
    longest_loop_gap_us: int
    events_lost: int
    stale_completions: int
    last_seq_posted: int
    last_seq_completed: int
    peers: _containers.RepeatedCompositeFieldContainer[PeerStats]
    memory: _containers.RepeatedCompositeFieldContainer[MemoryPart]
    nudges: int
    def __init__(self, ops_posted: _Optional[int] = ..., commands_consumed: _Optional[int] = ..., writes_posted: _Optional[int] = ..., writes_completed: _Optional[int] = ..., bytes_written: _Optional[int] = ..., window_stalls: _Optional[int] = ..., queue_stalls: _Optional[int] = ..., empty_polls: _Optional[int] = ..., naps: _Optional[int] = ..., asleep_share: _Optional[float] = ..., idle_spins: _Optional[int] = ..., nap_us: _Optional[int] = ..., yields: bool = ..., late_reports: _Optional[int] = ..., longest_late_ms: _Optional[int] = ..., longest_loop_gap_us: _Optional[int] = ..., events_lost: _Optional[int] = ..., stale_completions: _Optional[int] = ..., last_seq_posted: _Optional[int] = ..., last_seq_completed: _Optional[int] = ..., peers: _Optional[_Iterable[_Union[PeerStats, _Mapping]]] = ..., memory: _Optional[_Iterable[_Union[MemoryPart, _Mapping]]] = ..., nudges: _Optional[int] = ...) -> None: ...

class IdlePolicy(_message.Message):
    __slots__ = ("idle_spins", "nap_us")
    IDLE_SPINS_FIELD_NUMBER: _ClassVar[int]
    NAP_US_FIELD_NUMBER: _ClassVar[int]
    idle_spins: int
    nap_us: int
    def __init__(self, idle_spins: _Optional[int] = ..., nap_us: _Optional[int] = ...) -> None: ...

class RankEvent(_message.Message):
    __slots__ = ("index", "unix_s", "kind", "message", "peer_rank", "sequence")
    INDEX_FIELD_NUMBER: _ClassVar[int]
    UNIX_S_FIELD_NUMBER: _ClassVar[int]
    KIND_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    PEER_RANK_FIELD_NUMBER: _ClassVar[int]
    SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    index: int
    unix_s: float
    kind: EventKind
    message: str
    peer_rank: int
    sequence: int
    def __init__(self, index: _Optional[int] = ..., unix_s: _Optional[float] = ..., kind: _Optional[_Union[EventKind, str]] = ..., message: _Optional[str] = ..., peer_rank: _Optional[int] = ..., sequence: _Optional[int] = ...) -> None: ...

class GetInfoRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class GetInfoResponse(_message.Message):
    __slots__ = ("info",)
    INFO_FIELD_NUMBER: _ClassVar[int]
    info: RankInfo
    def __init__(self, info: _Optional[_Union[RankInfo, _Mapping]] = ...) -> None: ...

class GetStateRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class GetStateResponse(_message.Message):
    __slots__ = ("state",)
    STATE_FIELD_NUMBER: _ClassVar[int]
    state: RankState
    def __init__(self, state: _Optional[_Union[RankState, _Mapping]] = ...) -> None: ...

class GetStatsRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class GetStatsResponse(_message.Message):
    __slots__ = ("stats",)
    STATS_FIELD_NUMBER: _ClassVar[int]
    stats: RankStats
    def __init__(self, stats: _Optional[_Union[RankStats, _Mapping]] = ...) -> None: ...

class WatchRequest(_message.Message):
    __slots__ = ("after_index",)
    AFTER_INDEX_FIELD_NUMBER: _ClassVar[int]
    after_index: int
    def __init__(self, after_index: _Optional[int] = ...) -> None: ...

class WatchResponse(_message.Message):
    __slots__ = ("state", "event")
    STATE_FIELD_NUMBER: _ClassVar[int]
    EVENT_FIELD_NUMBER: _ClassVar[int]
    state: RankState
    event: RankEvent
    def __init__(self, state: _Optional[_Union[RankState, _Mapping]] = ..., event: _Optional[_Union[RankEvent, _Mapping]] = ...) -> None: ...

class SetIdlePolicyRequest(_message.Message):
    __slots__ = ("idle_spins", "nap_us", "expected_session_id")
    IDLE_SPINS_FIELD_NUMBER: _ClassVar[int]
    NAP_US_FIELD_NUMBER: _ClassVar[int]
    EXPECTED_SESSION_ID_FIELD_NUMBER: _ClassVar[int]
    idle_spins: int
    nap_us: int
    expected_session_id: str
    def __init__(self, idle_spins: _Optional[int] = ..., nap_us: _Optional[int] = ..., expected_session_id: _Optional[str] = ...) -> None: ...

class SetIdlePolicyResponse(_message.Message):
    __slots__ = ("previous", "current")
    PREVIOUS_FIELD_NUMBER: _ClassVar[int]
    CURRENT_FIELD_NUMBER: _ClassVar[int]
    previous: IdlePolicy
    current: IdlePolicy
    def __init__(self, previous: _Optional[_Union[IdlePolicy, _Mapping]] = ..., current: _Optional[_Union[IdlePolicy, _Mapping]] = ...) -> None: ...

class AbortRequest(_message.Message):
    __slots__ = ("reason", "expected_session_id")
    REASON_FIELD_NUMBER: _ClassVar[int]
    EXPECTED_SESSION_ID_FIELD_NUMBER: _ClassVar[int]
    reason: str
    expected_session_id: str
    def __init__(self, reason: _Optional[str] = ..., expected_session_id: _Optional[str] = ...) -> None: ...

class AbortResponse(_message.Message):
    __slots__ = ("state",)
    STATE_FIELD_NUMBER: _ClassVar[int]
    state: RankState
    def __init__(self, state: _Optional[_Union[RankState, _Mapping]] = ...) -> None: ...

class DrainRequest(_message.Message):
    __slots__ = ("timeout_ms", "expected_session_id")
    TIMEOUT_MS_FIELD_NUMBER: _ClassVar[int]
    EXPECTED_SESSION_ID_FIELD_NUMBER: _ClassVar[int]
    timeout_ms: int
    expected_session_id: str
    def __init__(self, timeout_ms: _Optional[int] = ..., expected_session_id: _Optional[str] = ...) -> None: ...

class DrainResponse(_message.Message):
    __slots__ = ("drained", "state")
    DRAINED_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    drained: bool
    state: RankState
    def __init__(self, drained: bool = ..., state: _Optional[_Union[RankState, _Mapping]] = ...) -> None: ...
