"""The marker: a small C program (here, ``*.c``) that holds a device's marks, and how to start it and find it running.

A marker keeps its state file open, and locked, as long as it lives. So the lock says who runs, and no process that took
over an old number is mistaken for one; the file says which marks are in place.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import struct
import sysconfig
from pathlib import Path
from typing import Literal

import msgspec

from ..model import Mark, Marker

PROGRAM = "roce-ring-marker"
RUN_DIR = Path("/run/roce-ring/markers")  # the program's own default, too
_FLOCK = "hhqqi0q"  # struct flock of 64-bit Linux: type, whence, start, length, pid

State = Literal["absent", "starting", "identical", "different"]


class Running(msgspec.Struct, frozen=True):
    """A marker that is alive. ``pid`` is 0 in another PID name space; ``marks`` is None until all are in place."""

    pid: int
    marks: tuple[Mark, ...] | None


class _StateFile(msgspec.Struct, frozen=True):
    device: str
    marks: tuple[Mark, ...]


def marker_program() -> Path:
    """The program, next to this Python's own or else on PATH; FileNotFoundError says how to get it."""
    beside = Path(sysconfig.get_path("scripts")) / PROGRAM
    if os.access(beside, os.X_OK):
        return beside
    if found := shutil.which(PROGRAM):
        return Path(found)
    raise FileNotFoundError(
        f"{PROGRAM} is not at {beside} and not on PATH; it is left out of a roce-ring that was built without "
        f"<infiniband/mlx5dv.h>: install libibverbs-dev (Debian, Ubuntu) or rdma-core-devel, then roce-ring again"
    )


def argv(marker: Marker, run_dir: Path = RUN_DIR) -> list[str]:
    """The command that holds the marks of one device until it is told to stop."""
    where = [] if run_dir == RUN_DIR else ["--run-dir", str(run_dir)]
    marks = (word for mark in marker.marks for word in ("--mark", _text(mark)))
    return [PROGRAM, "--device", marker.rdma, *where, *marks]


def _text(mark: Mark) -> str:
    matched = f"sport={mark.udp_source_port}" if mark.destination is None else f"dst={mark.destination}"
    return f"{matched},ethertype={mark.ethertype:#06x}"


def running(device: str, run_dir: Path = RUN_DIR) -> Running | None:
    """The marker that is alive on ``device``, or None. Looks only: a marker that starts meanwhile is not disturbed."""
    try:
        with (run_dir / f"{device}.state").open("rb") as file:
            asked = struct.pack(_FLOCK, fcntl.F_WRLCK, os.SEEK_SET, 0, 0, 0)
            kind, _, _, _, pid = struct.unpack(_FLOCK, fcntl.fcntl(file, fcntl.F_GETLK, asked))
            if kind == fcntl.F_UNLCK:
                return None
            text = file.read()
    except FileNotFoundError:
        return None
    try:
        return Running(pid, msgspec.json.decode(text, type=_StateFile).marks)
    except msgspec.DecodeError:  # it is written in one go, once everything is in place
        return Running(pid, None)


def state(marker: Marker, run_dir: Path = RUN_DIR) -> State:
    """How what runs on the device compares with what the plan wants there; the order of the marks has no meaning."""
    found = running(marker.rdma, run_dir)
    if found is None:
        return "absent"
    if found.marks is None:
        return "starting"
    return "identical" if set(found.marks) == set(marker.marks) else "different"
