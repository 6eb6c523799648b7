"""The PCI tree of a snapshot: GPUs, NICs, how two of them reach each other, and in which quadrant they sit."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from itertools import combinations

from ..errors import ConfigError
from . import config_space
from .snapshot import GPUS, NETWORK, Function, Snapshot

# From near to far, in the words of `nvidia-smi topo`. NODE: other host bridges of one NUMA node; SYS: across nodes.
PAIRS = ("PIX", "PXB", "PHB", "NODE", "SYS")
# An IO die has one IOMMU and up to four NUMA nodes a socket (AMD's NPS4) for its quadrants.
NODES_A_SOCKET_WHEN_QUADRANTS = 4
_NVIDIA = "10de"
_DISPLAY = 0x0300


@dataclass(frozen=True, slots=True)
class Quadrant:
    """`why`: what says so."""

    name: str
    why: str


class Tree:
    """`quadrants`: host bridge (domain:bus) -> name, an operator's word, which goes before all else. Raises ConfigError
    if it names a host bridge that is not there."""

    def __init__(self, snapshot: Snapshot, quadrants: Mapping[str, str] | None = None) -> None:
        self.snapshot = snapshot
        self.functions = {one.bdf: one for one in snapshot.functions}
        given = {_root(name): where for name, where in (quadrants or snapshot.quadrants).items()}
        if unknown := sorted(set(given) - set(self.roots)):
            raise ConfigError(
                f"quadrants name host bridge {', '.join(unknown)}, which is not there",
                f"host bridges here: {', '.join(self.roots)}",
            )
        self._given = given

    @cached_property
    def roots(self) -> list[str]:
        """Host bridges, as domain:bus."""
        return sorted({one.root for one in self.snapshot.functions})

    @cached_property
    def gpus(self) -> list[Function]:
        """NVIDIA's if there are any (beside them, others only drive screens); by address, which is the driver's order
        with CUDA_DEVICE_ORDER=PCI_BUS_ID."""
        found = sorted((one for one in self.snapshot.functions if one.kind in GPUS), key=lambda one: one.bdf)
        ours = [one for one in found if one.vendor == _NVIDIA]
        return ours or [one for one in found if one.kind != _DISPLAY]

    @cached_property
    def nics(self) -> list[Function]:
        return sorted((one for one in self.snapshot.functions if one.kind >> 8 == NETWORK), key=lambda one: one.bdf)

    def pair(self, a: Function, b: Function) -> str:
        """One of PAIRS."""
        if a.root != b.root:
            return "NODE" if a.numa == b.numa else "SYS"
        shared = 0
        for one, other in zip(a.chain, b.chain, strict=False):
            if one != other:
                break
            shared += 1
        if not shared:
            return "PHB"
        # Below the deepest bridge they share, at most the downstream port of the same switch.
        return "PIX" if max(len(a.chain), len(b.chain)) - shared <= 1 else "PXB"

    @cached_property
    def quadrants(self) -> dict[str, Quadrant]:
        """Of every host bridge. In order of trust: an operator's word; NUMA nodes where a socket has four; IOMMU
        instances, one of which serves a quadrant; otherwise each host bridge counts as its own: to be wrong there costs
        4 to 6 %, to be wrong the other way round a collapse."""
        out = {}
        numa = {one.root: one.numa for one in self.snapshot.functions if one.numa >= 0}
        by_numa = self.snapshot.numa_nodes >= NODES_A_SOCKET_WHEN_QUADRANTS * self.snapshot.sockets
        units = self._iommu_of_roots()
        for root in self.roots:
            if root in self._given:
                out[root] = Quadrant(self._given[root], "an operator says so")
            elif by_numa and root in numa:
                out[root] = Quadrant(f"node {numa[root]}", "its NUMA node; a socket has four")
            elif len(set(units.values())) > 1 and root in units:
                out[root] = Quadrant(f"iommu {units[root]}", "its IOMMU")
            else:
                out[root] = Quadrant(root, "nothing says more, so each host bridge counts as one")
        return out

    def _iommu_of_roots(self) -> dict[str, int]:
        """Host bridge -> number of its IOMMU instance, where all of its functions are behind one."""
        found: dict[str, set[int]] = {}
        for number, unit in enumerate(self.snapshot.iommus):
            for bdf in unit:
                if one := self.functions.get(bdf):
                    found.setdefault(one.root, set()).add(number)
        return {root: numbers.pop() for root, numbers in found.items() if len(numbers) == 1}

    def uplink(self, gpu: Function) -> str:
        """The root port that all of the traffic out of its switches passes; itself if it has none."""
        return gpu.chain[0] if gpu.chain else gpu.bdf

    def fabric(self, gpus: Iterable[Function]) -> str:
        """The class (roce_ring/ladder/classes.py) of a group: that of its worst pair."""
        pairs = combinations(gpus, 2)
        apart = any(self.quadrants[a.root].name != self.quadrants[b.root].name for a, b in pairs)
        return "pcie-hostbridge" if apart else "pcie-switch"

    def path_ports(self, gpus: Iterable[Function]) -> list[Function]:
        """The ports at which peer traffic of these GPUs may turn: downstream ports of switches, and root ports."""
        chains = {bdf for one in gpus for bdf in one.chain}
        turning = (config_space.ROOT_PORT, config_space.DOWNSTREAM, None)  # None: not readable, so it may be one
        return sorted((self.functions[bdf] for bdf in chains if self.functions[bdf].port in turning), key=_bdf)


def redirects(port: Function) -> bool | None:
    """Whether it sends peer traffic up to the root complex. None: unknown, which is never good news."""
    if port.acs_control is None:
        return None
    return port.acs_control >= 0 and bool(port.acs_control & config_space.REDIRECTS)


def _bdf(one: Function) -> str:
    return one.bdf


def _root(name: str) -> str:
    """ "40" and "0000:40" are the same host bridge."""
    return name if ":" in name else f"0000:{name}"
