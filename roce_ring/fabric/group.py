"""The GPUs of a session: their fabric class, and how they stand on the ring."""

from __future__ import annotations

import platform
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from . import quadrants
from .phases import conflicts, dealt
from .snapshot import Function, read
from .tree import Tree, redirects


@dataclass(frozen=True, slots=True)
class Group:
    """`order`: rank at each ring position. `conflicts`: phases in which an uplink sends to several host bridges,
    counted per uplink. `redirects`: whether a port on their paths sends peer traffic up; None if unknown."""

    fabric: str
    order: tuple[int, ...]
    conflicts: int
    redirects: bool | None


def group_of(tree: Tree, gpus: Sequence[Function]) -> Group:
    """`gpus[r]`: rank r's. The order is that of ranks unless another has fewer conflicts."""
    fabric, uplinks, roots = tree.fabric(gpus), [tree.uplink(one) for one in gpus], [one.root for one in gpus]
    order = tuple(range(len(gpus)))
    if fabric == "pcie-hostbridge":  # elsewhere no mode is phased, and rings like neighbours below one switch
        order = min((order, dealt(uplinks)), key=lambda one: conflicts(one, uplinks, roots))
    ports = [redirects(one) for one in tree.path_ports(gpus)]
    return Group(
        fabric, order, conflicts(order, uplinks, roots), True if True in ports else None if None in ports else False
    )


def group_of_buses(buses: Sequence[str], sys: Path = Path("/sys")) -> Group:
    """`buses`: PCI addresses, one a rank, as the driver writes them. One that sysfs does not show (a container may hide
    it) counts as far away. Raises ConfigError if the operator's word on quadrants is wrong."""
    order = tuple(range(len(buses)))
    if len(set(buses)) == 1:
        return Group("pcie-switch", order, 0, False)  # not even a switch between them
    tree = Tree(read(sys, platform.node()), quadrants.of_this_host())
    found = [tree.functions.get(as_sysfs(bus)) for bus in buses]
    known = [one for one in found if one is not None]
    return group_of(tree, known) if len(known) == len(found) else Group("pcie-hostbridge", order, 0, None)


def as_sysfs(bus: str) -> str:
    """The driver pads the domain to eight digits, or writes capitals."""
    domain, _, rest = bus.lower().partition(":")
    return f"{domain[-4:] if len(domain) == 8 and domain.startswith('0000') else domain}:{rest}"
