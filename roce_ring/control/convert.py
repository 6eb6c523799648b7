"""Dataclasses of model.py to and from protobuf messages, by equal field names."""

from __future__ import annotations

import types
from collections.abc import Callable, Hashable
from dataclasses import fields, is_dataclass
from enum import Enum
from functools import cache
from typing import Any, TypeVar, Union, cast, get_args, get_origin, get_type_hints

from google.protobuf.message import Message

from .proto.roce_ring.v1 import rank_service_pb2 as pb

M = TypeVar("M", bound=Message)
T = TypeVar("T")


def to_proto(message: type[M], value: object) -> M:
    """`value` is a dataclass whose field names are the message's. None stays absent."""
    out = message()
    for field in fields(value):  # type: ignore[arg-type]  # any dataclass
        item = getattr(value, field.name)
        if isinstance(item, Enum):
            setattr(
                out,
                field.name,
                pb.DESCRIPTOR.enum_types_by_name[type(item).__name__].values_by_name[_proto_name(item)].number,
            )
        elif isinstance(item, tuple):
            target = getattr(out, field.name)
            if item and is_dataclass(item[0]):
                element = getattr(pb, type(item[0]).__name__)
                target.extend(to_proto(element, one) for one in item)
            else:
                target.extend(item)
        elif item is not None:
            setattr(out, field.name, item)
    return out


def from_proto(cls: type[T], message: Message) -> T:
    """The inverse. An enum number that this version does not know raises ValueError."""
    readers = _readers(cast(Hashable, cls))
    return cls(**{name: read(message, name) for name, read in readers.items()})


def _proto_name(item: Enum) -> str:
    """SessionState.INIT -> SESSION_STATE_INIT."""
    name = type(item).__name__
    return "".join(f"_{c}" if c.isupper() and i else c for i, c in enumerate(name)).upper() + "_" + item.name


@cache
def _readers(cls: Any) -> dict[str, Callable[[Message, str], Any]]:
    hints = get_type_hints(cls)
    return {field.name: _reader(hints[field.name]) for field in fields(cls)}


def _reader(hint: Any) -> Callable[[Message, str], Any]:
    if get_origin(hint) in (Union, types.UnionType):  # X | None
        return lambda message, name: getattr(message, name) if message.HasField(name) else None
    if get_origin(hint) is tuple:
        element = get_args(hint)[0]
        if is_dataclass(element):
            return lambda message, name: tuple(
                from_proto(cast(type[Any], element), one) for one in getattr(message, name)
            )
        return lambda message, name: tuple(getattr(message, name))
    if isinstance(hint, type) and issubclass(hint, Enum):
        known = {
            pb.DESCRIPTOR.enum_types_by_name[hint.__name__].values_by_name[_proto_name(item)].number: item
            for item in hint
        }

        def read_enum(message: Message, name: str) -> Any:
            number = getattr(message, name)
            if number not in known:
                raise ValueError(f"{name} {number} is not a {hint.__name__} that this version knows")
            return known[number]

        return read_enum
    return lambda message, name: getattr(message, name)
