"""Reads a ladder file and says everything that is wrong with it."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from pathlib import Path

from .. import documents
from ..errors import ConfigError
from ..mesh.strict import suggest
from ..modes import modes
from .classes import CLASSES
from .model import EDGE_BYTES, SCHEMA, Ladder, LadderFile

MOST_BYTES = 1 << 20
SHIPPED = Path(__file__).parent / "shipped"
KINDS = ("measured", "published", "modelled")
_FIX = "'roce-ring ladder show' prints one that is right"


def load(path: str | Path) -> Ladder:
    """Raises ConfigError with every problem of the file, one a line."""
    return parse(read(path), str(path))


def read(path: str | Path) -> bytes:
    """Raises ConfigError if there is nothing to judge."""
    return documents.read(Path(path), "ladder", MOST_BYTES, "see ROCE_RING_LADDER")


def parse(raw: bytes, where: str) -> Ladder:
    """As load(). `where`: what the file is called in messages."""
    name = f"ladder {where}"
    tree = documents.decode(raw, name, _FIX)
    if isinstance(tree, dict) and tree.get("schema") != SCHEMA:
        raise ConfigError(f"{name} says schema {tree.get('schema')!r}, expected {SCHEMA!r}", _FIX)
    return Ladder(where, documents.judge(tree, LadderFile, "ladder", name, _problems, _FIX, told=20))


@cache
def shipped() -> tuple[Ladder, ...]:
    """The ladders that come with the package, by name."""
    return tuple(
        Ladder(f"shipped {path.stem}", parse(path.read_bytes(), path.name).file)
        for path in sorted(SHIPPED.glob("*.json"))
    )


def _problems(file: LadderFile) -> Iterator[str]:
    key = file.key
    for name in file.fabrics:
        if name not in CLASSES:
            yield f"fabric {name!r} is unknown: {suggest(name, CLASSES)}"
    kinds = [CLASSES[name] for name in file.fabrics if name in CLASSES]
    if len(set(file.fabrics)) < len(file.fabrics):
        yield f"also_for names {', '.join(file.also_for)} beside fabric {file.fabric}: one of them twice"
    if key.world is not None and not 2 <= key.world <= 16:
        yield f"key.world is {key.world}, expected 2 to 16"
    if key.device not in (None, "cpu", "cuda"):
        yield f"key.device is {key.device!r}, expected cpu or cuda"
    if file.provenance.get("kind") not in KINDS or not file.provenance.get("source"):
        yield f"provenance needs a kind of {', '.join(KINDS)} and a source"
    if not file.buckets:
        yield "it has no buckets, so it covers nothing"
    below = 0
    for number, bucket in enumerate(file.buckets):
        where = f"buckets[{number}]"
        if bucket.upto <= 0 or bucket.upto % EDGE_BYTES:
            yield f"{where}: upto is {bucket.upto}, expected a positive multiple of {EDGE_BYTES}"
        elif bucket.upto == below:
            yield f"{where}: upto {bucket.upto} is that of the bucket before: the two overlap"
        elif bucket.upto < below:
            yield f"{where}: upto {bucket.upto} comes after {below}: buckets are sorted by size"
        below = max(below, bucket.upto)
        if len(bucket.profiles) != 1:
            yield f"{where} has {len(bucket.profiles)} profiles, expected one: nothing is raced at start"
        for profile in bucket.profiles:
            mode = modes().get(profile.mode)
            if mode is None:
                yield f"{where}: mode {profile.mode!r} is unknown: {suggest(profile.mode, modes())}"
                continue
            for kind in kinds:
                if refusal := kind.refusal(mode, key.world):
                    yield f"{where}: {refusal} (fabric {kind.name})"
            if profile.fp32_partials and not mode.partials:
                yield f"{where}: fp32_partials is for modes that pass partial sums on; {mode.name} does not"
