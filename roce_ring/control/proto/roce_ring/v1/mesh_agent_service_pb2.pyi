from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class Finding(_message.Message):
    __slots__ = ("code", "severity", "where", "seen", "expected", "fix")
    CODE_FIELD_NUMBER: _ClassVar[int]
    SEVERITY_FIELD_NUMBER: _ClassVar[int]
    WHERE_FIELD_NUMBER: _ClassVar[int]
    SEEN_FIELD_NUMBER: _ClassVar[int]
    EXPECTED_FIELD_NUMBER: _ClassVar[int]
    FIX_FIELD_NUMBER: _ClassVar[int]
    code: str
    severity: str
    where: str
    seen: str
    expected: str
    fix: str
    def __init__(self, code: _Optional[str] = ..., severity: _Optional[str] = ..., where: _Optional[str] = ..., seen: _Optional[str] = ..., expected: _Optional[str] = ..., fix: _Optional[str] = ...) -> None: ...

class ThingStatus(_message.Message):
    __slots__ = ("key", "state", "seen", "ours", "packets", "bytes")
    KEY_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    SEEN_FIELD_NUMBER: _ClassVar[int]
    OURS_FIELD_NUMBER: _ClassVar[int]
    PACKETS_FIELD_NUMBER: _ClassVar[int]
    BYTES_FIELD_NUMBER: _ClassVar[int]
    key: str
    state: str
    seen: str
    ours: bool
    packets: int
    bytes: int
    def __init__(self, key: _Optional[str] = ..., state: _Optional[str] = ..., seen: _Optional[str] = ..., ours: bool = ..., packets: _Optional[int] = ..., bytes: _Optional[int] = ...) -> None: ...

class Holder(_message.Message):
    __slots__ = ("session", "holder")
    SESSION_FIELD_NUMBER: _ClassVar[int]
    HOLDER_FIELD_NUMBER: _ClassVar[int]
    session: str
    holder: str
    def __init__(self, session: _Optional[str] = ..., holder: _Optional[str] = ...) -> None: ...

class NodeStatus(_message.Message):
    __slots__ = ("version", "host", "rank", "phase", "plan_hash", "staged_hash", "dataplane", "looked_unix_s", "forwarded", "things", "findings", "leases", "error_counters")
    class ErrorCountersEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: int
        def __init__(self, key: _Optional[str] = ..., value: _Optional[int] = ...) -> None: ...
    VERSION_FIELD_NUMBER: _ClassVar[int]
    HOST_FIELD_NUMBER: _ClassVar[int]
    RANK_FIELD_NUMBER: _ClassVar[int]
    PHASE_FIELD_NUMBER: _ClassVar[int]
    PLAN_HASH_FIELD_NUMBER: _ClassVar[int]
    STAGED_HASH_FIELD_NUMBER: _ClassVar[int]
    DATAPLANE_FIELD_NUMBER: _ClassVar[int]
    LOOKED_UNIX_S_FIELD_NUMBER: _ClassVar[int]
    FORWARDED_FIELD_NUMBER: _ClassVar[int]
    THINGS_FIELD_NUMBER: _ClassVar[int]
    FINDINGS_FIELD_NUMBER: _ClassVar[int]
    LEASES_FIELD_NUMBER: _ClassVar[int]
    ERROR_COUNTERS_FIELD_NUMBER: _ClassVar[int]
    version: str
    host: str
    rank: int
    phase: str
    plan_hash: str
    staged_hash: str
    dataplane: str
    looked_unix_s: float
    forwarded: int
    things: _containers.RepeatedCompositeFieldContainer[ThingStatus]
    findings: _containers.RepeatedCompositeFieldContainer[Finding]
    leases: _containers.RepeatedCompositeFieldContainer[Holder]
    error_counters: _containers.ScalarMap[str, int]
    def __init__(self, version: _Optional[str] = ..., host: _Optional[str] = ..., rank: _Optional[int] = ..., phase: _Optional[str] = ..., plan_hash: _Optional[str] = ..., staged_hash: _Optional[str] = ..., dataplane: _Optional[str] = ..., looked_unix_s: _Optional[float] = ..., forwarded: _Optional[int] = ..., things: _Optional[_Iterable[_Union[ThingStatus, _Mapping]]] = ..., findings: _Optional[_Iterable[_Union[Finding, _Mapping]]] = ..., leases: _Optional[_Iterable[_Union[Holder, _Mapping]]] = ..., error_counters: _Optional[_Mapping[str, int]] = ...) -> None: ...

class AgentEvent(_message.Message):
    __slots__ = ("index", "unix_s", "severity", "text")
    INDEX_FIELD_NUMBER: _ClassVar[int]
    UNIX_S_FIELD_NUMBER: _ClassVar[int]
    SEVERITY_FIELD_NUMBER: _ClassVar[int]
    TEXT_FIELD_NUMBER: _ClassVar[int]
    index: int
    unix_s: float
    severity: str
    text: str
    def __init__(self, index: _Optional[int] = ..., unix_s: _Optional[float] = ..., severity: _Optional[str] = ..., text: _Optional[str] = ...) -> None: ...

class ValidatePlanRequest(_message.Message):
    __slots__ = ("plan", "host")
    PLAN_FIELD_NUMBER: _ClassVar[int]
    HOST_FIELD_NUMBER: _ClassVar[int]
    plan: str
    host: str
    def __init__(self, plan: _Optional[str] = ..., host: _Optional[str] = ...) -> None: ...

class ValidatePlanResponse(_message.Message):
    __slots__ = ("plan_hash", "findings", "commands")
    PLAN_HASH_FIELD_NUMBER: _ClassVar[int]
    FINDINGS_FIELD_NUMBER: _ClassVar[int]
    COMMANDS_FIELD_NUMBER: _ClassVar[int]
    plan_hash: str
    findings: _containers.RepeatedCompositeFieldContainer[Finding]
    commands: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, plan_hash: _Optional[str] = ..., findings: _Optional[_Iterable[_Union[Finding, _Mapping]]] = ..., commands: _Optional[_Iterable[str]] = ...) -> None: ...

class StagePlanRequest(_message.Message):
    __slots__ = ("plan", "host")
    PLAN_FIELD_NUMBER: _ClassVar[int]
    HOST_FIELD_NUMBER: _ClassVar[int]
    plan: str
    host: str
    def __init__(self, plan: _Optional[str] = ..., host: _Optional[str] = ...) -> None: ...

class StagePlanResponse(_message.Message):
    __slots__ = ("plan_hash", "findings")
    PLAN_HASH_FIELD_NUMBER: _ClassVar[int]
    FINDINGS_FIELD_NUMBER: _ClassVar[int]
    plan_hash: str
    findings: _containers.RepeatedCompositeFieldContainer[Finding]
    def __init__(self, plan_hash: _Optional[str] = ..., findings: _Optional[_Iterable[_Union[Finding, _Mapping]]] = ...) -> None: ...

class CommitPlanRequest(_message.Message):
    __slots__ = ("plan_hash", "force")
    PLAN_HASH_FIELD_NUMBER: _ClassVar[int]
    FORCE_FIELD_NUMBER: _ClassVar[int]
    plan_hash: str
    force: bool
    def __init__(self, plan_hash: _Optional[str] = ..., force: bool = ...) -> None: ...

class CommitPlanResponse(_message.Message):
    __slots__ = ("findings",)
    FINDINGS_FIELD_NUMBER: _ClassVar[int]
    findings: _containers.RepeatedCompositeFieldContainer[Finding]
    def __init__(self, findings: _Optional[_Iterable[_Union[Finding, _Mapping]]] = ...) -> None: ...

class TeardownPlanRequest(_message.Message):
    __slots__ = ("force",)
    FORCE_FIELD_NUMBER: _ClassVar[int]
    force: bool
    def __init__(self, force: bool = ...) -> None: ...

class TeardownPlanResponse(_message.Message):
    __slots__ = ("findings",)
    FINDINGS_FIELD_NUMBER: _ClassVar[int]
    findings: _containers.RepeatedCompositeFieldContainer[Finding]
    def __init__(self, findings: _Optional[_Iterable[_Union[Finding, _Mapping]]] = ...) -> None: ...

class GetNodeStatusRequest(_message.Message):
    __slots__ = ("look",)
    LOOK_FIELD_NUMBER: _ClassVar[int]
    look: bool
    def __init__(self, look: bool = ...) -> None: ...

class GetNodeStatusResponse(_message.Message):
    __slots__ = ("status",)
    STATUS_FIELD_NUMBER: _ClassVar[int]
    status: NodeStatus
    def __init__(self, status: _Optional[_Union[NodeStatus, _Mapping]] = ...) -> None: ...

class WatchNodeRequest(_message.Message):
    __slots__ = ("after_index",)
    AFTER_INDEX_FIELD_NUMBER: _ClassVar[int]
    after_index: int
    def __init__(self, after_index: _Optional[int] = ...) -> None: ...

class WatchNodeResponse(_message.Message):
    __slots__ = ("event",)
    EVENT_FIELD_NUMBER: _ClassVar[int]
    event: AgentEvent
    def __init__(self, event: _Optional[_Union[AgentEvent, _Mapping]] = ...) -> None: ...

class ProbeEnd(_message.Message):
    __slots__ = ("name", "rdma", "address", "flow_label")
    NAME_FIELD_NUMBER: _ClassVar[int]
    RDMA_FIELD_NUMBER: _ClassVar[int]
    ADDRESS_FIELD_NUMBER: _ClassVar[int]
    FLOW_LABEL_FIELD_NUMBER: _ClassVar[int]
    name: str
    rdma: str
    address: str
    flow_label: int
    def __init__(self, name: _Optional[str] = ..., rdma: _Optional[str] = ..., address: _Optional[str] = ..., flow_label: _Optional[int] = ...) -> None: ...

class ProbeEndpoint(_message.Message):
    __slots__ = ("name", "endpoint", "error")
    NAME_FIELD_NUMBER: _ClassVar[int]
    ENDPOINT_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    name: str
    endpoint: bytes
    error: str
    def __init__(self, name: _Optional[str] = ..., endpoint: _Optional[bytes] = ..., error: _Optional[str] = ...) -> None: ...

class ProbeResult(_message.Message):
    __slots__ = ("name", "ok", "why", "latencies_us")
    NAME_FIELD_NUMBER: _ClassVar[int]
    OK_FIELD_NUMBER: _ClassVar[int]
    WHY_FIELD_NUMBER: _ClassVar[int]
    LATENCIES_US_FIELD_NUMBER: _ClassVar[int]
    name: str
    ok: bool
    why: str
    latencies_us: _containers.RepeatedScalarFieldContainer[float]
    def __init__(self, name: _Optional[str] = ..., ok: bool = ..., why: _Optional[str] = ..., latencies_us: _Optional[_Iterable[float]] = ...) -> None: ...

class ProbePathsRequest(_message.Message):
    __slots__ = ("open", "connect", "write")
    class Open(_message.Message):
        __slots__ = ("ends",)
        ENDS_FIELD_NUMBER: _ClassVar[int]
        ends: _containers.RepeatedCompositeFieldContainer[ProbeEnd]
        def __init__(self, ends: _Optional[_Iterable[_Union[ProbeEnd, _Mapping]]] = ...) -> None: ...
    class Connect(_message.Message):
        __slots__ = ("peers",)
        PEERS_FIELD_NUMBER: _ClassVar[int]
        peers: _containers.RepeatedCompositeFieldContainer[ProbeEndpoint]
        def __init__(self, peers: _Optional[_Iterable[_Union[ProbeEndpoint, _Mapping]]] = ...) -> None: ...
    class Write(_message.Message):
        __slots__ = ("names", "count", "size_bytes", "timeout_ms")
        NAMES_FIELD_NUMBER: _ClassVar[int]
        COUNT_FIELD_NUMBER: _ClassVar[int]
        SIZE_BYTES_FIELD_NUMBER: _ClassVar[int]
        TIMEOUT_MS_FIELD_NUMBER: _ClassVar[int]
        names: _containers.RepeatedScalarFieldContainer[str]
        count: int
        size_bytes: int
        timeout_ms: int
        def __init__(self, names: _Optional[_Iterable[str]] = ..., count: _Optional[int] = ..., size_bytes: _Optional[int] = ..., timeout_ms: _Optional[int] = ...) -> None: ...
    OPEN_FIELD_NUMBER: _ClassVar[int]
    CONNECT_FIELD_NUMBER: _ClassVar[int]
    WRITE_FIELD_NUMBER: _ClassVar[int]
    open: ProbePathsRequest.Open
    connect: ProbePathsRequest.Connect
    write: ProbePathsRequest.Write
    def __init__(self, open: _Optional[_Union[ProbePathsRequest.Open, _Mapping]] = ..., connect: _Optional[_Union[ProbePathsRequest.Connect, _Mapping]] = ..., write: _Optional[_Union[ProbePathsRequest.Write, _Mapping]] = ...) -> None: ...

class ProbePathsResponse(_message.Message):
    __slots__ = ("endpoints", "results")
    ENDPOINTS_FIELD_NUMBER: _ClassVar[int]
    RESULTS_FIELD_NUMBER: _ClassVar[int]
    endpoints: _containers.RepeatedCompositeFieldContainer[ProbeEndpoint]
    results: _containers.RepeatedCompositeFieldContainer[ProbeResult]
    def __init__(self, endpoints: _Optional[_Iterable[_Union[ProbeEndpoint, _Mapping]]] = ..., results: _Optional[_Iterable[_Union[ProbeResult, _Mapping]]] = ...) -> None: ...

class HoldLeaseRequest(_message.Message):
    __slots__ = ("session", "holder", "plan_hash", "release")
    SESSION_FIELD_NUMBER: _ClassVar[int]
    HOLDER_FIELD_NUMBER: _ClassVar[int]
    PLAN_HASH_FIELD_NUMBER: _ClassVar[int]
    RELEASE_FIELD_NUMBER: _ClassVar[int]
    session: str
    holder: str
    plan_hash: str
    release: bool
    def __init__(self, session: _Optional[str] = ..., holder: _Optional[str] = ..., plan_hash: _Optional[str] = ..., release: bool = ...) -> None: ...

class HoldLeaseResponse(_message.Message):
    __slots__ = ("findings",)
    FINDINGS_FIELD_NUMBER: _ClassVar[int]
    findings: _containers.RepeatedCompositeFieldContainer[Finding]
    def __init__(self, findings: _Optional[_Iterable[_Union[Finding, _Mapping]]] = ...) -> None: ...
