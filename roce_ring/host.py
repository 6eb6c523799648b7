"""What this host must have before a session takes anything from it, asked first so that the answer is a sentence."""

from __future__ import annotations

import fcntl
import os
import struct
import time
from pathlib import Path

from .errors import SetupError
from .native import call, native

REGIONS = Path("/dev/shm")  # noqa: S108  # where rr_region_create puts a region's file unless it is told otherwise
_SWEPT_AFTER_S = 60  # older files of dead ranks are removed by the next rank that starts (region.c)
_INFINIBAND = Path("/sys/class/infiniband")


def memory_problem(region_bytes: int, ranks: int, capacity: int, directory: Path = REGIONS) -> str | None:
    """Why `ranks` regions of `region_bytes` each do not fit: taking them would fill the memory first and fail then.
    Only true while no rank has taken its own, so all ranks ask before any of them begins."""
    try:
        there = os.statvfs(directory)
    except OSError:
        return None  # creating the region will say it
    if there.f_blocks == 0:  # a tmpfs without a limit
        return None
    old, young, wait_s = _leftovers(directory)
    needed, free = region_bytes * ranks, there.f_bavail * there.f_frsize + old
    if needed <= free:
        return None
    dead = f"; ranks that died left another {_mib(young)}, which a start in {wait_s} s frees" if young else ""
    return (
        f"{directory} has no room for a region of {_mib(region_bytes)} for each of this host's {ranks} ranks: "
        f"{_mib(needed)} needed, {_mib(free)} free{dead}; lower ROCE_RING_MAX_BYTES or ROCE_RING_GATHER_BYTES "
        f"(the larger is {capacity}), or give the container a larger {directory}"
    )


def _leftovers(directory: Path) -> tuple[int, int, int]:
    """Bytes in files that dead ranks of this user left: those that the next start removes, and those that are too young
    for that; and in how many seconds the youngest is not."""
    old = young = wait_s = 0
    for path in directory.glob("roce-ring-*"):
        # A POSIX record lock is lost when its process closes any descriptor of the file: ours are not opened.
        if path.name.startswith(f"roce-ring-{os.getpid()}-"):
            continue
        try:
            fd = os.open(path, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
        except OSError:
            continue
        try:
            seen = os.fstat(fd)
            if seen.st_uid != os.geteuid() or not _owner_gone(fd):
                continue
            age_s = int(time.time() - seen.st_mtime)
            if age_s > _SWEPT_AFTER_S:
                old += seen.st_blocks * 512
            else:
                young += seen.st_blocks * 512
                wait_s = max(wait_s, _SWEPT_AFTER_S + 1 - age_s)
        finally:
            os.close(fd)
    return old, young, wait_s


def _owner_gone(fd: int) -> bool:
    """Asks for the lock without taking it: a starting rank must find it free. struct flock of 64-bit Linux."""
    flock = struct.pack("hhqqi4x", fcntl.F_WRLCK, os.SEEK_SET, 0, 0, 0)
    return bool(struct.unpack("hhqqi4x", fcntl.fcntl(fd, fcntl.F_GETLK, flock))[0] == fcntl.F_UNLCK)


def _mib(size: int) -> str:
    return f"{size / (1 << 20):,.1f} MiB"


def no_hca_problem(hosts: list[str], asked: bool) -> str:
    """For a rank that is to use verbs and was not told over which devices. `asked`: the user named verbs."""
    why = "" if asked else f" (ranks run on {', '.join(dict.fromkeys(hosts))})"
    devices = sorted(path.name for path in _INFINIBAND.iterdir()) if _INFINIBAND.is_dir() else []
    found = f"its RDMA devices are {', '.join(devices)}" if devices else "it has no RDMA device"
    return (
        f"provider verbs{why} needs to know which RDMA device of this host leads to which rank, and {found}: set "
        "ROCE_RING_PLAN to the plan.json that roce-ring plan --out wrote, or ROCE_RING_HCA and "
        "ROCE_RING_PEER_HCA_MAPS to its environment line"
    )


def start_proxy(proxy: int | None, cpu: int) -> None:
    """Starts the proxy's thread. `cpu`: settings.proxy_cpu. Raises SetupError."""
    try:
        call(native().proxy.rr_proxy_start, proxy)
    except SetupError as error:
        if cpu < 0:
            raise
        may = ", ".join(map(str, sorted(os.sched_getaffinity(0))))
        raise SetupError(f"{error.message}; ROCE_RING_PROXY_CPU is {cpu}, this process may use {may}") from error


def driver_version(sys: Path = Path("/sys")) -> str | None:
    """Of NVIDIA's driver; None if there is none to be seen."""
    try:
        return (sys / "module/nvidia/version").read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError):
        return None
