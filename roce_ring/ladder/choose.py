"""Which ladder a session climbs."""

from __future__ import annotations

from dataclasses import dataclass

from ..errors import ConfigError
from ..modes import modes
from .loading import load, shipped
from .model import Key, Ladder


@dataclass(frozen=True, slots=True)
class Choice:
    """`warning`: why the file that was asked for covers nothing here; empty if it does, or none was."""

    ladder: Ladder
    warning: str = ""


def fabric_of(provider: str, complete: bool, forwards: bool) -> str:
    """The class of a session. `complete`: every two ranks have a path; `forwards`: some paths lead through a
    neighbour."""
    if provider == "shm":
        return "shm"
    if provider == "pcie":
        return "pcie-hostbridge"  # what holds everywhere: stores only, one destination at a time
    return "roce-ring-neighbour" if not complete else "roce-ring-mesh" if forwards else "roce-switch"


def choose(path: str, fabric: str, here: Key, max_bytes: int) -> Choice:
    """The ladder at `path`, or if that is empty or for something else, the shipped one. Raises ConfigError."""
    warning = ""
    if path:
        ladder = load(path)
        if fabric not in ladder.file.fabrics:
            why = [f"it is for fabric {' and '.join(ladder.file.fabrics)}, this session's is {fabric}"]
        else:
            why = ladder.file.key.differences(here)
        if not why:
            return Choice(_checked(ladder, here, max_bytes))
        warning = f"ladder {path} covers nothing here: {'; '.join(why)}; the shipped ladder for {fabric} decides"
    for ladder in shipped():
        if fabric in ladder.file.fabrics and not ladder.file.key.differences(here):
            return Choice(_checked(ladder, here, max_bytes), warning)
    raise ConfigError(f"no shipped ladder is for fabric {fabric}", "name one: ROCE_RING_LADDER")


def _checked(ladder: Ladder, here: Key, max_bytes: int) -> Ladder:
    problems = []
    if ladder.capacity < max_bytes:
        problems.append(f"it ends at {ladder.capacity} bytes and max_bytes is {max_bytes}: a gap")
    assert here.world is not None
    for _, _, name in ladder.bands():
        mode = modes()[name]
        if mode.power_of_two and (refusal := mode.refusal(here.world, access=mode.access)):
            problems.append(refusal)
    if problems:
        raise ConfigError(
            f"{ladder.name}: {'; '.join(dict.fromkeys(problems))}", "add buckets, or choose another ladder"
        )
    return ladder
