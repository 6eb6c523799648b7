"""A ladder: payload sizes cut into buckets, each with the one profile that an all-reduce of such a size takes."""

from __future__ import annotations

import hashlib
from bisect import bisect_left
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

import msgspec

SCHEMA = "roce-ring/ladder/v1"
EDGE_BYTES = 16  # bounds lie on whole packs, so that no dtype meets one in the middle


class Profile(msgspec.Struct, frozen=True, omit_defaults=True):
    """One choice of launch. `fp32_partials`: a 16-bit dtype's partial sums travel as fp32."""

    mode: str
    fp32_partials: bool = False


class Bucket(msgspec.Struct, frozen=True, omit_defaults=True):
    """`upto`: largest payload in bytes, inclusive. `note`: why this mode, for a person. `median_us`: mode -> median of
    a sweep or a publication at a payload of `at_bytes`; for `explain` only."""

    upto: int
    profiles: tuple[Profile, ...]
    note: str = ""
    at_bytes: int = 0
    median_us: dict[str, float] = {}


class Key(msgspec.Struct, frozen=True, omit_defaults=True):
    """What a ladder holds for, beside its fabric class; what is absent does not matter to it."""

    world: int | None = None
    device: str | None = None  # cpu, cuda
    gpu: str | None = None  # its name
    driver: str | None = None  # its version
    acs_redirects: bool | None = None  # a port on the GPUs' paths sends peer traffic up
    hairpin_packets: int | None = None  # the smallest forwarding queue of the plan

    def differences(self, here: Key) -> list[str]:
        """What this key demands and `here` does not show."""
        out = []
        for name in self.__struct_fields__:
            wanted, seen = getattr(self, name), getattr(here, name)
            if wanted is not None and wanted != seen:
                out.append(f"{name} is {'not known' if seen is None else seen} here, the ladder is for {wanted}")
        return out


class LadderFile(msgspec.Struct, frozen=True, omit_defaults=True):
    """The file. `provenance`: where the choices come from: kind (measured, published or modelled), source, date, ...
    `also_for`: fabric classes beside `fabric` that the same choices are for."""

    schema: str
    fabric: str
    buckets: tuple[Bucket, ...]
    provenance: dict[str, str]
    key: Key = Key()
    also_for: tuple[str, ...] = ()

    @property
    def fabrics(self) -> tuple[str, ...]:
        """All classes it is for."""
        return (self.fabric, *self.also_for)


@dataclass(frozen=True)
class Ladder:
    """A file that was found right. `name`: its path, or "shipped NAME"."""

    name: str
    file: LadderFile

    @cached_property
    def _bounds(self) -> tuple[int, ...]:
        return tuple(bucket.upto for bucket in self.file.buckets)

    @cached_property
    def _profiles(self) -> tuple[Profile, ...]:
        return tuple(bucket.profiles[0] for bucket in self.file.buckets)

    @property
    def capacity(self) -> int:
        """Largest payload it has an answer for, in bytes."""
        return self._bounds[-1]

    @cached_property
    def digest(self) -> str:
        """16 hex digits of what decides: equal digests choose alike for every size. Names and notes do not count."""
        choice = [
            self.file.fabrics,
            [(b, p.mode, p.fp32_partials) for b, p in zip(self._bounds, self._profiles, strict=True)],
        ]
        return hashlib.sha256(msgspec.json.encode(choice)).hexdigest()[:16]

    def profile(self, size_bytes: int) -> Profile:
        """Of a payload of 1 byte to `capacity`; IndexError above."""
        return self._profiles[bisect_left(self._bounds, size_bytes)]

    def bucket(self, size_bytes: int) -> tuple[int, Bucket]:
        """(its smallest payload, it)."""
        at = bisect_left(self._bounds, size_bytes)
        return (self._bounds[at - 1] + 1 if at else 1), self.file.buckets[at]

    def bands(self) -> Iterator[tuple[int, int, str]]:
        """(smallest payload, largest, mode) with neighbours of one mode joined."""
        begin = 1
        for at, (upto, profile) in enumerate(zip(self._bounds, self._profiles, strict=True)):
            if at + 1 == len(self._bounds) or self._profiles[at + 1].mode != profile.mode:
                yield begin, upto, profile.mode
                begin = upto + 1
