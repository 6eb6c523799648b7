"""The collective modes, read from the kernels' own list (kernels/modes.def)."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

from .direct import NO_ACCESS
from .errors import UnsupportedError
from .native import native


@dataclass(frozen=True, slots=True)
class Mode:
    """`raw`: raw contributions meet (fp32 sums in rank order, one rounding). `partials`: partial sums travel.
    `access`: to peers' memory, of direct.NO_ACCESS, STORES, LOADS.
    `forwarding`: 0 = ring neighbours suffice, 4 = they suffice in a world of 4, 1 = every two ranks need a path."""

    value: int
    name: str
    raw: bool
    forwarding: int
    power_of_two: bool
    partials: bool
    access: int
    meaning: str

    def needs_forwarding(self, world: int) -> bool:
        """Whether ranks that are no ring neighbours exchange anything."""
        return bool(self.forwarding) and self.forwarding != world

    def refusal(self, world: int, complete: bool = True, access: int = NO_ACCESS) -> str | None:
        """Why this world cannot run it. `complete`: every two ranks have a path, not only neighbours. `access`: to
        peers' memory."""
        if self.power_of_two and world & (world - 1):
            return f"mode {self.name} needs a world that is a power of two; this one is {world}"
        if not complete and self.needs_forwarding(world):
            return f"mode {self.name} needs a path between every two ranks; this session has those of ring neighbours"
        if self.access > access:
            if access:
                return f"mode {self.name} reads peers' memory, and reads were not found to work between these devices"
            return f"mode {self.name} needs peers' memory: provider pcie"
        return None


@cache
def modes() -> dict[str, Mode]:
    out = {}
    for line in native().kernels.rr_mode_table().decode().splitlines():
        value, name, raw, forwarding, power_of_two, partials, access, meaning = line.split(" ", 7)
        key = name.lower()
        out[key] = Mode(
            int(value), key, raw == "1", int(forwarding), power_of_two == "1", partials == "1", int(access), meaning
        )  # fmt: skip
    return out


def mode(name: str, world: int, complete: bool = True, access: int = NO_ACCESS) -> Mode:
    """Raises UnsupportedError with the reason if this world cannot run it."""
    found = modes().get(name)
    if found is None:
        raise UnsupportedError(f"unknown mode {name!r}", f"expected one of {', '.join(modes())}")
    refusal = found.refusal(world, complete, access)
    if refusal:
        raise UnsupportedError(refusal, "choose another mode")
    return found
