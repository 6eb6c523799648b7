"""What the launcher and its ranks tell each other."""

from __future__ import annotations

from typing import Any

import msgspec

from ..ladder.model import Key
from .cases import Case, Spec
from .check import Wrong
from .parts import Parts
from .timing import Times


class Job(msgspec.Struct, frozen=True):
    """The launcher's order, one file for all ranks."""

    launcher: int  # its process id
    world: int
    address: str
    gloo_store: str
    paths: int
    settings: dict[str, Any]
    spec: Spec


class Progress(msgspec.Struct, frozen=True, tag="progress"):
    done: int
    of: int
    what: str


class Logged(msgspec.Struct, frozen=True, tag="logged"):
    """A log record of level warning or above."""

    text: str


class Failed(msgspec.Struct, frozen=True, tag="failed"):
    """Why a rank gave up, if it could still say so."""

    message: str
    hint: str


class RankFacts(msgspec.Struct, frozen=True):
    rank: int
    host: str
    pid: int
    provider: str
    device: str  # cpu, or a GPU's number and name
    memory: dict[str, int]  # of its session, bytes
    isa: str
    cpus: int
    crowded: bool
    cpu_s: float  # processor time of the rank
    idle_spins: int
    nap_us: int
    asleep_share: float
    fabric: str = ""  # the session's class, and what else a ladder may hold for:
    key: Key = Key()


class Row(msgspec.Struct, frozen=True):
    case: Case
    wrong: Wrong
    us: Times
    parts: Parts | None = None  # of all ranks together, if profiled

    def algbw(self) -> float:
        """GB/s (10^9) of payload."""
        return self.case.bytes / self.us.median / 1000

    def busbw(self, world: int) -> float:
        return self.algbw() * self.case.bus_factor(world)


class Result(msgspec.Struct, frozen=True, tag="result"):
    """Of all ranks together."""

    world: int
    ranks: list[RankFacts]
    rows: list[Row]
    others: float = 0.0  # share of the CPUs' time that other programs took while cases ran

    @property
    def wrong(self) -> int:
        return sum(row.wrong.total for row in self.rows)


Answer = Progress | Logged | Failed | Result


def encode(answer: Answer) -> bytes:
    return msgspec.json.encode(answer) + b"\n"


_decoder = msgspec.json.Decoder(Answer)


def decode(line: bytes) -> Answer:
    return _decoder.decode(line)
