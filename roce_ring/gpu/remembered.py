"""Verdicts that were good, kept for the next start: trying costs seconds. Only while nothing has changed that could
make them worse, and never where that cannot be known: access control that cannot be read may have changed."""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Sequence
from pathlib import Path

import msgspec

from ..control.rundir import make_run_dir
from ..errors import RoceRingError
from ..fabric.group import as_sysfs
from ..fabric.snapshot import read
from ..fabric.tree import Tree
from ..host import driver_version
from ..mesh import durable
from . import p2p
from .verdicts import Verdict, worked

log = logging.getLogger(__name__)


def key_of(buses: Sequence[str], root: Path = Path("/")) -> str:
    """What verdicts of these GPUs hold for: this boot, driver, kernel command line, the GPUs' addresses, the access
    control words above them, and the test itself. Empty if one of it cannot be known. `root`: of /sys and /proc."""
    tree = Tree(read(root / "sys", ""))
    gpus = [tree.functions.get(as_sysfs(bus)) for bus in buses]
    facts = [
        _text(root / "proc/sys/kernel/random/boot_id"),
        driver_version(root / "sys"),
        _text(root / "proc/cmdline"),
    ]
    words = [(one.bdf, one.acs_control) for one in tree.path_ports(gpu for gpu in gpus if gpu is not None)]
    if None in gpus or not all(facts) or None in dict(words).values():
        return ""
    raw = msgspec.json.encode([facts, list(buses), words, Path(p2p.__file__).read_text(encoding="utf-8")])
    return hashlib.sha256(raw).hexdigest()[:16]


def recall(place: Path, key: str) -> list[Verdict]:
    """Empty if nothing is known."""
    try:
        found = msgspec.json.decode((place / f"p2p-{key}.json").read_bytes(), type=list[Verdict]) if key else []
    except (OSError, msgspec.DecodeError):
        return []
    fields = {"from", "to", *p2p.PRIMITIVES}
    return found if all(set(one) == fields and worked(one) for one in found) else []


def remember(place: Path, key: str, found: list[Verdict]) -> None:
    """`place`: a directory that nobody else may write into."""
    if not key or not all(map(worked, found)):
        return  # what did not work is tried again: somebody may mend it
    try:
        make_run_dir(place)
        durable.replace(place / f"p2p-{key}.json", msgspec.json.encode(found))
    except (OSError, RoceRingError) as error:
        log.info("verdicts on peer access are not kept: %s", error)


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError):
        return ""
