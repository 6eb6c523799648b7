"""Measures every mode at every size and writes the ladder that follows. The bench does the measuring: it checks a mode
before it times it, and a sample is the time of the slowest rank."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec

from ..bench.job import Result, Row
from ..direct import LOADS
from ..errors import ConfigError
from ..modes import modes
from .classes import CLASSES
from .model import EDGE_BYTES, SCHEMA, Bucket, Key, LadderFile, Profile
from .select import Measured, Selected, select

SIZES = tuple(sorted(size for k in range(12) for size in (1024 << k, 1536 << k)))  # 24, from 1 KiB to 3 MiB
TOP = 1 << 30  # the largest size that was measured decides for all above it
_TOGETHER = 6  # sizes of one run: what is lost if it is interrupted


QUICK = SIZES[4::6]  # 4, 32, 256 KiB, 2 MiB: enough to see whether a ladder is of another machine


class Kept(msgspec.Struct):
    """A line of the file that a sweep can go on from: what was asked for, the sessions' fabric class and all else that
    they showed of a ladder's key, and rows of some sizes."""

    asked: str
    fabric: str
    key: Key
    sizes: list[int]
    rows: list[Row]


@dataclass(frozen=True, slots=True)
class Cell:
    """One size's choice. `second`: the next best that was to be had, with its median."""

    size: int
    selected: Selected
    rows: dict[str, Measured]

    @property
    def second(self) -> Measured | None:
        rest = [one for name, one in self.rows.items() if name not in self.selected.out and name != self.selected.mode]
        return min(rest, key=lambda one: one.median, default=None)


def measure(sizes: Sequence[int], asked: str, keep: Path | None, run: Callable[[list[int]], Result]) -> Iterator[Kept]:
    """Some sizes after the other; those in `keep` come from there. `asked`: what makes two sweeps the same. Raises
    ConfigError if `keep` is of another sweep."""
    done = list(_kept(keep, asked)) if keep else []
    yield from done
    left = [size for size in sizes if not any(size in one.sizes for one in done)]
    for at in range(0, len(left), _TOGETHER):
        some = left[at : at + _TOGETHER]
        result = run(some)
        one = Kept(asked, result.ranks[0].fabric, result.ranks[0].key, some, result.rows)
        if done and (done[0].fabric, done[0].key) != (one.fabric, one.key):
            why = done[0].key.differences(one.key) or [f"it is of fabric {done[0].fabric}, this is {one.fabric}"]
            raise ConfigError(f"{keep} is of another machine: {'; '.join(why)}", "remove it")
        if keep:
            with keep.open("ab") as file:
                file.write(msgspec.json.encode(one) + b"\n")
        yield one


def _kept(keep: Path, asked: str) -> Iterator[Kept]:
    if not keep.exists():
        return
    for line in keep.read_bytes().splitlines(keepends=True):
        if not line.endswith(b"\n"):
            return  # cut off while it was written: measured again
        try:
            one = msgspec.json.decode(line, type=Kept)
        except msgspec.DecodeError:
            raise ConfigError(f"{keep} is no file of a sweep to go on from", "remove it") from None
        if one.asked != asked:
            raise ConfigError(f"{keep} is of another sweep ({one.asked}), this one is {asked}", "remove it")
        yield one


def cells(rows: list[Row], fabric: str, world: int) -> list[Cell]:
    """One per size, ascending. Raises ConfigError if a size has no right mode."""
    barred = {name: why for name, mode in modes().items() if (why := CLASSES[fabric].refusal(mode, world))}
    reads = {name for name, mode in modes().items() if mode.access == LOADS}
    by_size: dict[int, dict[str, Measured]] = {}
    for row in rows:
        us = row.us
        one = Measured(row.case.mode, us.median, us.mean, row.wrong.total)
        by_size.setdefault(row.case.bytes, {})[row.case.mode] = one
    out = []
    for size, found in sorted(by_size.items()):
        selected = select(list(found.values()), barred, reads)
        if selected is None:
            raise ConfigError(
                f"no mode is right at {size} bytes, so there is no ladder", "see 'roce-ring bench --check'"
            )
        out.append(Cell(size, selected, found))
    return out


def ladder_of(found: list[Cell], fabric: str, key: Key, source: str) -> LadderFile:
    """A size's choice holds from above the size before up to itself; the last one's for everything above."""
    buckets = []
    for number, cell in enumerate(found):
        upto = TOP if number + 1 == len(found) else cell.size // EDGE_BYTES * EDGE_BYTES
        median = {name: round(one.median, 1) for name, one in cell.rows.items() if not one.wrong}
        buckets.append(Bucket(upto, (Profile(cell.selected.mode),), "", cell.size, median))
    where = {"kind": "measured", "source": source, "date": time.strftime("%Y-%m-%d", time.gmtime())}
    return LadderFile(SCHEMA, fabric, tuple(buckets), where, key)
