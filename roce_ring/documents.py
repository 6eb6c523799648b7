"""JSON files that people write or send: read with a bound, and judged as a whole."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TypeVar

import msgspec

from .errors import ConfigError
from .mesh.finding import Refused
from .mesh.strict import convert

T = TypeVar("T", bound=msgspec.Struct)


def read(path: Path, what: str, most_bytes: int, hint: str) -> bytes:
    """`what` it is, in words; `hint`: where its name came from. Raises ConfigError."""
    try:
        with path.open("rb") as file:
            raw = file.read(most_bytes + 1)
    except OSError as error:
        raise ConfigError(f"cannot read {what} {path}: {error.strerror}", hint) from None
    if len(raw) > most_bytes:
        raise ConfigError(f"{what} {path} has more than {most_bytes} bytes", "name another file")
    return raw


def decode(raw: bytes, name: str, fix: str) -> object:
    """`name`: what it is and where. Raises ConfigError."""
    try:
        return msgspec.json.decode(raw)
    except (msgspec.DecodeError, RecursionError) as error:
        raise ConfigError(f"{name} is not JSON: {error}", fix) from None


def judge(
    tree: object, kind: type[T], root: str, name: str, problems: Callable[[T], Iterable[str]], fix: str, told: int
) -> T:
    """`tree` as a `kind` in which `problems` finds nothing. `root`: what its outermost mapping is called. Raises
    ConfigError with the first `told` problems, one a line."""
    try:
        found = convert(tree, kind, root)
    except Refused as refused:
        wrong = [f"{one.where}: {one.seen}, expected {one.expected}" for one in refused.findings]
    else:
        wrong = list(problems(found))
        if not wrong:
            return found
    shown = [*wrong[:told], f"and {len(wrong) - told} more"] if len(wrong) > told else wrong
    raise ConfigError(f"{name}: " + "\n".join(shown), fix)
