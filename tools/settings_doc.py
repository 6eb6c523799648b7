"""Print docs/settings.md, made from roce_ring/settings.py and roce_ring/engines/switches.py."""

from __future__ import annotations

from dataclasses import fields

from roce_ring.engines.switches import SWITCHES
from roce_ring.settings import Settings, env_name, knob_of, plain

HEAD = """\
# Settings

Made from `roce_ring/settings.py` and `roce_ring/engines/switches.py` by
`python tools/settings_doc.py > docs/settings.md`: edit those, not this one.

Set them as environment variables, or in a YAML file under the lower-case name without `ROCE_RING_`. An unknown
`ROCE_RING_*` name, an empty value and a value out of bounds are errors. An alias is the name that other projects gave
the same knob; if both are set they must say the same. Settings marked = must be equal on all ranks: ranks that differ
refuse to start and say where.

| variable | = | default | unit | accepts | meaning | alias |
|---|---|---|---|---|---|---|
"""

SWITCH_HEAD = """
## Switches of an engine

Read by the plug-ins of SGLang and vLLM before there is a session; two names of one switch must say the same.
`DSV41_ROCE_GATHER=0` and `VLLM_ROCE_ALLGATHER_MAX_SIZE=0` leave all-gathers to the engine.

| variable | accepts | meaning |
|---|---|---|
"""


def document() -> str:
    """docs/settings.md."""
    lines = HEAD.splitlines()
    for one in fields(Settings):
        knob = knob_of(one)
        default = (
            "" if one.default == "" else f"`{one.default:g}`" if isinstance(one.default, float) else f"`{one.default}`"
        )
        if knob.choices:
            accepts = ", ".join(f"`{choice}`" for choice in knob.choices)
        else:
            accepts = knob.form or (f"{plain(knob.low)} to {plain(knob.high)}" if knob.low is not None else "a path")
        aliases = ", ".join(f"`{alias}`" for alias in knob.aliases)
        cells = (
            f"`{env_name(one.name)}`",
            "=" if knob.agree else "",
            default,
            knob.unit,
            accepts,
            knob.meaning,
            aliases,
        )
        lines.append("| " + " | ".join(cells) + " |")
    lines += SWITCH_HEAD.splitlines()
    lines += [f"| `{one.name}` | {one.accepts} | {one.meaning} |" for one in SWITCHES]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    print(document(), end="")
