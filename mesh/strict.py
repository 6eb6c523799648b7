"""Turn parsed YAML or JSON into a struct, and report every mistake in it at once, in words a person can act on."""

from __future__ import annotations

import datetime
import difflib
import reprlib
import types
import typing
from collections.abc import Iterator
from functools import cache
from typing import Any, TypeVar

import msgspec

from .finding import Finding, Refused, finding

T = TypeVar("T", bound=msgspec.Struct)
MOST_UNKNOWN = 4  # each told by itself, with the name that it is like
MOST_ITEMS = 256  # a GID table has at most as many rows, and nothing else in the facts is as long

_KINDS = {str: "text", int: "a whole number", bool: "true or false", float: "a number"}
# YAML 1.1 reads unquoted 12:34:56:01:02:03 as a base-60 integer and 0000:01:00.0 as a base-60 float.
_COLON_FIELDS = ("mac", "pci", "ipv4", "gid")


def convert(raw: object, kind: type[T], where: str) -> T:
    """``raw`` as a ``kind``; raises :class:`Refused` with one finding per mistake."""
    problems = list(_check(raw, kind, where, ""))
    if problems:
        raise Refused(problems)
    return msgspec.convert(raw, kind)


def suggest(name: str, known: typing.Iterable[str]) -> str:
    """A fix sentence for a misspelt name."""
    names = sorted(known)
    near = difflib.get_close_matches(name, names, n=1, cutoff=0.6)
    return f"did you mean '{near[0]}'?" if near else f"known names: {', '.join(names)}"


@cache
def _fields(kind: type[msgspec.Struct]) -> dict[str, msgspec.structs.FieldInfo]:
    return {field.encode_name: field for field in msgspec.structs.fields(kind)}


def _check(raw: object, kind: Any, where: str, name: str) -> Iterator[Finding]:
    options = [kind]
    if isinstance(kind, types.UnionType):
        options = [option for option in kind.__args__ if option is not type(None)]
        if raw is None:
            return
    kind = options[0]
    origin = typing.get_origin(kind)
    if isinstance(kind, type) and issubclass(kind, msgspec.Struct):
        yield from _check_struct(raw, kind, where, name)
    elif origin is tuple:
        if not isinstance(raw, (list, tuple)):
            yield _wrong(raw, "a list", where, name)
            return
        if len(raw) > MOST_ITEMS:
            yield finding("bad-value", where, f"{len(raw)} items", f"at most {MOST_ITEMS}", "list each thing once")
            return
        for number, item in enumerate(raw):
            yield from _check(item, typing.get_args(kind)[0], _item_name(where, number, item), name)
    elif origin is dict:
        if not isinstance(raw, dict):
            yield _wrong(raw, "a mapping", where, name)
            return
        for key, item in raw.items():
            yield from _check(item, typing.get_args(kind)[1], f"{where}.{key}", name)
    elif type(raw) is not kind:
        yield _wrong(raw, _KINDS[kind], where, name)


def _check_struct(raw: object, kind: type[msgspec.Struct], where: str, name: str) -> Iterator[Finding]:
    if not isinstance(raw, dict):
        yield _wrong(raw, "a mapping of field names to values", where, name)
        return
    fields = _fields(kind)
    unknown = [str(key) for key in raw if key not in fields]
    expected = "only fields of this format here"
    if len(unknown) > MOST_UNKNOWN:  # not misspelt: another kind of mapping
        seen = f"fields {', '.join(map(repr, unknown[:3]))} and {len(unknown) - 3} more are unknown"
        yield finding("unknown-field", where, seen, expected, f"known names: {', '.join(sorted(fields))}")
    else:
        for key in unknown:
            yield finding("unknown-field", where, f"field '{key}' is unknown", expected, suggest(key, fields))
    for key, value in raw.items():
        if key in fields:
            yield from _check(value, fields[key].type, f"{where}.{key}", str(key))
    for key, field in fields.items():
        if field.required and key not in raw:
            fix = f"add '{key}: ...' there"
            yield finding("missing-field", where, f"field '{key}' is absent", _kind_name(field.type), fix)


def _kind_name(kind: Any) -> str:
    return _KINDS.get(kind, "a list" if typing.get_origin(kind) is tuple else "a value")


def _item_name(where: str, number: int, item: object) -> str:
    label = item.get("host", item.get("netdev")) if isinstance(item, dict) else None
    return f"{where}[{number}]" + (f" ({label})" if isinstance(label, str) else "")


def _wrong(raw: object, expected: str, where: str, name: str) -> Finding:
    # reprlib looks at the first few items only: YAML aliases make a page of text into more than memory holds
    shown = repr(raw[:60]) if isinstance(raw, str) else _in_yaml(raw)[:60]
    seen = "nothing" if raw is None else f"{_describe(raw)} {shown}"
    fix = f"write {expected} there"
    if expected == "text" and (name in _COLON_FIELDS) and isinstance(raw, (int, float)):
        fix = "put the value in quotes: unquoted, YAML reads digits with colons as a number"
    return finding("wrong-type", where, f"holds {seen}", expected, fix)


def _in_yaml(raw: object) -> str:
    """As it is written in a file, not in Python."""
    if isinstance(raw, bool):
        return str(raw).lower()
    return str(raw) if isinstance(raw, datetime.date) else reprlib.repr(raw)


def _describe(raw: object) -> str:
    names: dict[type, str] = {
        str: "the text", bool: "the value", int: "the number", float: "the number",
        list: "the list", dict: "the mapping", datetime.date: "the date", datetime.datetime: "the time",
        bytes: "the binary value", set: "the set",
    }  # fmt: skip
    return names.get(type(raw), "the value")
