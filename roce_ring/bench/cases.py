"""What a bench run measures: sizes, dtypes, operations, modes; and from them the cases that all ranks go through."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import replace

import msgspec

from ..direct import NO_ACCESS
from ..errors import ConfigError
from ..settings import Settings, did_you_mean

GLOO = "gloo"  # stands in the mode column for torch's all-reduce over its gloo backend
OPS = ("all_reduce", "all_gather", "reduce_scatter")
# Ranks as processes, or as processes under an MPS daemon of their own.
SHARES = ("processes", "mps")
GRAPH_OPS = 40  # of a case in a GPU's graph: the launch is then a small part, as in a decode step
ITEM_BYTES = {"float32": 4, "bfloat16": 2, "float16": 2}
_DTYPE_NAMES = {name: name for name in ITEM_BYTES} | {"fp32": "float32", "bf16": "bfloat16", "fp16": "float16"}
_UNITS = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30}
READS_S = 3.0  # reads across quadrants stall in windows every 2.3 s: what is shorter may meet none
MAX_BYTES = 1 << 28  # 15 peers' copies of it, twice, still fit the memory of a small server


class Case(msgspec.Struct, frozen=True):
    """One row of the table. `count` is nccl-tests': elements of the payload for all_reduce, per rank for the other two,
    whose `bytes` are those of all ranks together. `mode` is "" where an operation has only one way."""

    op: str
    dtype: str
    bytes: int
    count: int
    mode: str = ""
    chosen: bool = False  # the mode is what all_reduce takes by itself
    raw: bool = True  # raw contributions meet: fp32 sums in rank order, rounded once
    fp32_partials: bool = False

    @property
    def label(self) -> str:
        return self.mode + ("/fp32" if self.fp32_partials else "") + (" *" if self.chosen else "")

    def bus_factor(self, world: int) -> float:
        """Times algbw = busbw, so that modes and worlds compare by what a link carries (nccl-tests, PERFORMANCE.md)."""
        return (2 if self.op == "all_reduce" else 1) * (world - 1) / world


def parse_sizes(text: str) -> list[int]:
    """Bytes of "1,2048,16K,2K-1M"; a range doubles from first to last. Raises ConfigError with every problem."""
    sizes: list[int] = []
    problems = []
    for part in text.split(","):
        first, _, last = part.strip().partition("-")
        size, end = _bytes_of(first), _bytes_of(last or first)
        if not 1 <= size <= end <= MAX_BYTES:
            problems.append(f"{part.strip()!r} is not a size")
            continue
        while size <= end:
            sizes.append(size)
            size *= 2
    if problems:
        raise ConfigError(
            f"sizes: {'; '.join(problems)}",
            f"expected bytes from 1 to {MAX_BYTES >> 20}M joined by commas, where a range doubles: 1,17,4K,16K-1M",
        )
    return list(dict.fromkeys(sizes))


def _bytes_of(text: str) -> int:
    match = re.fullmatch(r"(\d{1,12})([KMG]?)(i?B)?", text.strip(), re.IGNORECASE)
    return int(match[1]) * _UNITS[match[2].upper()] if match else 0


def parse_names(text: str, known: Mapping[str, str], what: str) -> list[str]:
    """ "a,b" -> full names; "all" is every one. Raises ConfigError with every unknown name."""
    if text == "all":
        return list(dict.fromkeys(known.values()))
    names = [part.strip() for part in text.split(",")]
    problems = [f"{name!r} is not {what}{did_you_mean(name, known)}" for name in names if name not in known]
    if problems:
        raise ConfigError("; ".join(problems), f"expected all, or some of {', '.join(known)} joined by commas")
    return list(dict.fromkeys(known[name] for name in names))


def parse_dtypes(text: str) -> list[str]:
    return parse_names(text, _DTYPE_NAMES, "a dtype")


def parse_ops(text: str) -> list[str]:
    return parse_names(text, {op: op for op in OPS}, "an operation")


class Spec(msgspec.Struct, frozen=True):
    """What was asked for. `modes` empty: what all_reduce takes by itself; modes that this world cannot run are out."""

    sizes: list[int]
    dtypes: list[str]
    ops: list[str]
    modes: list[str]
    iterations: int
    thorough: bool = False
    fp32_partials: bool = False
    gloo: bool = False
    device: str = "cpu"
    share: str = SHARES[0]  # how ranks of one machine share a GPU
    profile: bool = False
    # For a ladder: modes that have a place on the session's fabric class, however many `modes` names; and where the
    # class allows reads, READS_S of samples a case.
    sweep: bool = False

    def device_of(self, rank: int) -> str:
        """Of "cuda:0,4,8,12", one a rank; of anything else all of it."""
        name, _, numbers = self.device.partition(":")
        each = numbers.split(",")
        return f"{name}:{each[rank]}" if len(each) > 1 else self.device

    @property
    def capacity(self) -> int:
        """Bytes a session needs for it: sizes round up to whole elements per rank, chunks to 16 bytes."""
        return max(self.sizes) + 32 * 16

    def roomy(self, settings: Settings) -> Settings:
        """`settings` with room for every size."""
        return replace(
            settings,
            max_bytes=max(settings.max_bytes, self.capacity),
            gather_bytes=max(settings.gather_bytes, self.capacity),
        )


def build(
    spec: Spec, world: int, choose: Callable[[int], str], access: int = NO_ACCESS, fabric: str = ""
) -> list[Case]:
    """Sizes are rounded up to whole elements, and to whole elements per rank where the ranks share a payload; sizes
    that become the same are measured once. `choose`: bytes -> the mode that all_reduce takes by itself. `access`: of
    the session, to peers' memory; `fabric`: its class, for a sweep."""
    from ..ladder.classes import CLASSES
    from ..modes import modes

    cases: dict[Case, None] = {}
    for op in spec.ops:
        for dtype in spec.dtypes:
            item = ITEM_BYTES[dtype]
            for asked in spec.sizes:
                if op != "all_reduce":
                    count = -(-asked // (item * world))
                    cases[Case(op, dtype, count * item * world, count)] = None
                    continue
                count = -(-asked // item)
                size, auto = count * item, choose(count * item)
                for name in modes() if spec.sweep else spec.modes or [auto]:
                    mode = modes()[name]
                    if spec.sweep and CLASSES[fabric].refusal(mode, world):
                        continue
                    wide = spec.fp32_partials and mode.partials and item < 4
                    if not mode.refusal(world, access=access):
                        cases[Case(op, dtype, size, count, name, name == auto, mode.raw, wide)] = None
                if spec.gloo:
                    cases[Case(op, dtype, size, count, GLOO)] = None
    return list(cases)
