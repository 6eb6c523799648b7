"""The environment names that turn an engine's plug-in on. They are no settings of a session: a session never sees them.

docs/settings.md lists them beside the settings (tools/settings_doc.py).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from ..errors import ConfigError

ON = "ROCE_RING_ALLREDUCE"
REQUIRED = "ROCE_RING_REQUIRED"
RING = "DSV41_ROCE_RING"
OWN = (ON, REQUIRED)  # begin with ROCE_RING_ without being settings


@dataclass(frozen=True, slots=True)
class Switch:
    name: str
    accepts: str
    meaning: str


SWITCHES = (
    Switch(ON, "0 or 1", "1 makes any engine load roce-ring as its all-reduce; unset or 0 leaves the engine as it is"),
    Switch("SGLANG_ROCE_ALLREDUCE", "0 or 1", "the same for SGLang only"),
    Switch("VLLM_ENABLE_ROCE_ALLREDUCE", "0 or 1", "the same for vLLM only"),
    Switch(
        REQUIRED,
        "0 or 1",
        "1 ends the engine, on all ranks, where it would otherwise go on without roce-ring",
    ),
    Switch(
        RING,
        "1",
        "the recipe's choice of the ring over a switched fabric; roce-ring knows rings only, so 0 is refused",
    ),
)
ENGINE_NAMES = {"sglang": "SGLANG_ROCE_ALLREDUCE", "vllm": "VLLM_ENABLE_ROCE_ALLREDUCE"}
# Here 0 means off; as ROCE_RING_GATHER_BYTES it means "as large as max_bytes".
_GATHER_OFF = ("DSV41_ROCE_GATHER", "VLLM_ROCE_ALLGATHER_MAX_SIZE")


@dataclass(frozen=True, slots=True)
class Switches:
    """What the environment says to one engine. `named`: the name that turned it on, for messages."""

    on: bool = False
    named: str = ""
    required: bool = False
    gather: bool = True  # all-gathers go through roce-ring too

    @classmethod
    def from_env(cls, environ: Mapping[str, str], engine: str) -> Switches:
        """`engine`: sglang or vllm. Raises ConfigError with every problem."""
        problems: list[str] = []

        def is_on(name: str) -> bool | None:
            text = environ.get(name)
            if text is None:
                return None
            if text.strip() not in ("0", "1"):
                problems.append(f"{name}: expected 0 or 1, got {text[:60]!r}")
                return None
            return text.strip() == "1"

        says = {name: value for name in (ON, ENGINE_NAMES[engine]) if (value := is_on(name)) is not None}
        required, ring = is_on(REQUIRED), is_on(RING)
        if set(says.values()) == {True, False}:
            said = " and ".join(f"{name}={int(value)}" for name, value in says.items())
            problems.append(f"{said} are two names of one switch with different values: keep one of them")
        on = next((name for name, value in says.items() if value), "")
        if on and ring is False:
            problems.append(f"{RING}=0 asks for a switched fabric, which roce-ring does not have: unset it, or {on}")
        if required and not on and not problems:
            problems.append(f"{REQUIRED}=1, but nothing turns roce-ring on: set {ON}=1 as well, or unset {REQUIRED}")
        if problems:
            raise ConfigError("environment: " + "; ".join(problems), "docs/settings.md lists every name")
        gather = all(environ.get(name, "").strip() != "0" for name in _GATHER_OFF)
        return cls(bool(on), on, bool(required), gather)


def is_required(environ: Mapping[str, str]) -> bool:
    """Also where another name is wrong."""
    return environ.get(REQUIRED, "").strip() == "1"
