"""What an agent must not forget: the plan it holds, how far it is, what of it is its own. One file, always whole."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

import msgspec

from .. import durable

SCHEMA = "roce-ring/mesh-agent/v1"
FILE = "agent.json"
BOOT_ID = Path("/proc/sys/kernel/random/boot_id")

# idle: no plan. applying: a commit began; whoever finds this finishes it or takes it back. active: the plan stands, and
# is kept standing. removing: a teardown began; whoever finds this finishes it.
Phase = Literal["idle", "applying", "active", "removing"]


class State(msgspec.Struct, forbid_unknown_fields=True):
    """``owned``: key of a thing that we made -> what was in its place before. It is written before the thing is made,
    so after a crash it may name things that do not exist, and never misses one that does."""

    schema: str = SCHEMA
    boot_id: str = ""
    phase: Phase = "idle"
    host: str = ""  # this node's name in the plan
    plan: str = ""  # the whole document
    staged: str = ""
    staged_host: str = ""
    booted: bool = False  # the machine was booted, and the plan is not made again yet
    owned: dict[str, dict[str, int | bool]] = {}
    queues_tried: dict[str, str] = {}  # PCI address -> why its hairpin queue did not take its size; not tried again


class StateError(Exception):
    """The state file cannot be read or written; the message is one sentence with what to do."""


def boot_id() -> str:
    try:
        return BOOT_ID.read_text().strip()
    except OSError:
        return ""


def load(directory: Path) -> tuple[State, bool]:
    """The state of an earlier run, or a new one; and whether the machine was booted since. What an earlier boot made is
    gone with it."""
    path = directory / FILE
    try:
        state = msgspec.json.decode(path.read_bytes(), type=State)
    except FileNotFoundError:
        state = State()
    except (msgspec.DecodeError, OSError) as error:
        reason = (error.strerror or str(error)).lower() if isinstance(error, OSError) else str(error)
        raise StateError(
            f"state file {path} cannot be read ({reason}); it says which routes and rules are ours, so nothing is "
            "touched: bring it back, or remove it; then 'roce-ring up' adopts what stands and 'down' leaves it"
        ) from None
    if state.schema != SCHEMA:
        raise StateError(
            f"state file {path} has schema {state.schema!r}, expected {SCHEMA}: another version wrote it; take the "
            "plan back with that version, or remove the file: then 'up' adopts what stands, and 'down' leaves it"
        )
    now = boot_id()
    rebooted = state.boot_id != now
    if rebooted:
        state.boot_id, state.owned, state.booted = now, {}, state.phase == "active"
        if state.phase == "removing":
            state.phase, state.plan, state.host = "idle", "", ""
    return state, rebooted


def save(directory: Path, state: State) -> None:
    """The file is the old one or the new one, also after a crash or a power cut."""
    path = directory / FILE
    try:
        durable.replace(path, msgspec.json.encode(state))
    except OSError as error:
        raise StateError(f"state file {path} cannot be written: {(error.strerror or str(error)).lower()}") from None
