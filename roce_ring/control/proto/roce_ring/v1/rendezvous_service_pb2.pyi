from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable
from typing import ClassVar as _ClassVar, Optional as _Optional

DESCRIPTOR: _descriptor.FileDescriptor

class JoinRequest(_message.Message):
    __slots__ = ("job", "rank", "world", "host", "pid", "rendezvous_version")
    JOB_FIELD_NUMBER: _ClassVar[int]
    RANK_FIELD_NUMBER: _ClassVar[int]
    WORLD_FIELD_NUMBER: _ClassVar[int]
    HOST_FIELD_NUMBER: _ClassVar[int]
    PID_FIELD_NUMBER: _ClassVar[int]
    RENDEZVOUS_VERSION_FIELD_NUMBER: _ClassVar[int]
    job: str
    rank: int
    world: int
    host: str
    pid: int
    rendezvous_version: int
    def __init__(self, job: _Optional[str] = ..., rank: _Optional[int] = ..., world: _Optional[int] = ..., host: _Optional[str] = ..., pid: _Optional[int] = ..., rendezvous_version: _Optional[int] = ...) -> None: ...

class JoinResponse(_message.Message):
    __slots__ = ("member_token",)
    MEMBER_TOKEN_FIELD_NUMBER: _ClassVar[int]
    member_token: bytes
    def __init__(self, member_token: _Optional[bytes] = ...) -> None: ...

class AllGatherRequest(_message.Message):
    __slots__ = ("member_token", "round", "payload", "timeout_ms")
    MEMBER_TOKEN_FIELD_NUMBER: _ClassVar[int]
    ROUND_FIELD_NUMBER: _ClassVar[int]
    PAYLOAD_FIELD_NUMBER: _ClassVar[int]
    TIMEOUT_MS_FIELD_NUMBER: _ClassVar[int]
    member_token: bytes
    round: int
    payload: bytes
    timeout_ms: int
    def __init__(self, member_token: _Optional[bytes] = ..., round: _Optional[int] = ..., payload: _Optional[bytes] = ..., timeout_ms: _Optional[int] = ...) -> None: ...

class AllGatherResponse(_message.Message):
    __slots__ = ("payloads",)
    PAYLOADS_FIELD_NUMBER: _ClassVar[int]
    payloads: _containers.RepeatedScalarFieldContainer[bytes]
    def __init__(self, payloads: _Optional[_Iterable[bytes]] = ...) -> None: ...

class LeaveRequest(_message.Message):
    __slots__ = ("member_token",)
    MEMBER_TOKEN_FIELD_NUMBER: _ClassVar[int]
    member_token: bytes
    def __init__(self, member_token: _Optional[bytes] = ...) -> None: ...

class LeaveResponse(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...
