"""The fabric class of the GPUs of a session."""

from __future__ import annotations

import platform
from collections.abc import Sequence
from pathlib import Path

from .snapshot import read
from .tree import Tree


def fabric_of_gpus(buses: Sequence[str], sys: Path = Path("/sys")) -> str:
    """`buses`: PCI addresses, one a rank, as the driver writes them. One that sysfs does not show (a container may hide
    it) counts as far away."""
    if len(set(buses)) == 1:
        return "pcie-switch"  # not even a switch between them
    tree = Tree(read(sys, platform.node()))
    found = [tree.functions.get(_as_sysfs(bus)) for bus in buses]
    known = [one for one in found if one is not None]
    return tree.fabric(known) if len(known) == len(found) else "pcie-hostbridge"


def _as_sysfs(bus: str) -> str:
    """The driver pads the domain to eight digits, or writes capitals."""
    domain, _, rest = bus.lower().partition(":")
    return f"{domain[-4:] if len(domain) == 8 and domain.startswith('0000') else domain}:{rest}"
