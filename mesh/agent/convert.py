"""Structs of model.py to and from the messages of mesh_agent_service.proto, by equal field names."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TypeVar

import msgspec
from google.protobuf.json_format import MessageToDict, ParseDict
from google.protobuf.message import Message

from roce_ring.control.proto.roce_ring.v1 import mesh_agent_service_pb2 as pb

from ..finding import Finding

M = TypeVar("M", bound=Message)
T = TypeVar("T")


def to_proto(message: type[M], value: msgspec.Struct) -> M:
    return ParseDict(msgspec.to_builtins(value), message())


def from_proto(kind: type[T], message: Message) -> T:
    """Fields that this version does not know are left out: an agent may be newer than who asks it."""
    raw = MessageToDict(message, preserving_proto_field_name=True, always_print_fields_with_no_presence=True)
    return msgspec.convert(raw, kind, strict=False)  # protobuf writes 64-bit numbers as text


def findings_to_proto(findings: Iterable[Finding]) -> list[pb.Finding]:
    return [to_proto(pb.Finding, found) for found in findings]


def findings_from_proto(messages: Iterable[pb.Finding]) -> tuple[Finding, ...]:
    return tuple(from_proto(Finding, message) for message in messages)
