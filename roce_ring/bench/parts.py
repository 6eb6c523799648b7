"""Where an operation's time goes: what profiling kernels noted (kernels/profile.cuh), summed over operations."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from ..native import Profile

NAMES = ("stage", "command", "wait", "reduce")


class Parts(msgspec.Struct):
    """Nanoseconds of `ops` operations together. `between`: from the end of one to the begin of the next, which `gaps`
    times followed without a meeting."""

    ops: int = 0
    stage: int = 0
    command: int = 0
    wait: int = 0
    reduce: int = 0
    between: int = 0
    gaps: int = 0

    def add(self, noted: Sequence[Profile]) -> None:
        """Operations that followed each other."""
        for one in noted:
            for name in NAMES:
                setattr(self, name, getattr(self, name) + int(getattr(one, f"{name}_ns")))
        inside = sum(int(getattr(one, f"{name}_ns")) for one in noted[:-1] for name in NAMES)
        self.ops += len(noted)
        self.between += int(noted[-1].began_ns) - int(noted[0].began_ns) - inside
        self.gaps += len(noted) - 1

    def __add__(self, other: Parts) -> Parts:
        return Parts(
            *(a + b for a, b in zip(msgspec.structs.astuple(self), msgspec.structs.astuple(other), strict=True))
        )

    def us(self) -> dict[str, float | None]:
        """Means of an operation, in microseconds; None where nothing followed anything."""
        mean: dict[str, float | None] = {name: getattr(self, name) / self.ops / 1000 for name in NAMES}
        return mean | {"between": self.between / self.gaps / 1000 if self.gaps else None}
