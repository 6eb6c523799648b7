"""Kinds of fabric a ladder can be for, and which modes have no place on each."""

from __future__ import annotations

from dataclasses import dataclass

from ..direct import LOADS, NO_ACCESS, STORES
from ..modes import Mode

ANY_WORLD = 4  # the friendliest: a power of two, in which halving needs neighbours only


@dataclass(frozen=True, slots=True)
class FabricClass:
    """`access`: what modes may do to peers' memory, of direct.NO_ACCESS, STORES, LOADS. `complete`: every two ranks
    have a path, not only ring neighbours."""

    name: str
    meaning: str
    access: int = NO_ACCESS
    complete: bool = True
    phased: bool = True
    why_no_reads: str = ""

    def refusal(self, mode: Mode, world: int | None) -> str | None:
        """Why `mode` has no place here, or nothing. `world`: None for a ladder of any world."""
        if mode.access > self.access == STORES:
            return f"mode {mode.name} reads peers' memory, and {self.why_no_reads}"
        if not self.phased and mode.name.endswith("_phased"):
            return f"mode {mode.name} costs 4 to 6 % here for nothing: destinations do not disturb each other"
        return mode.refusal(ANY_WORLD if world is None else world, self.complete, self.access)


CLASSES = {
    one.name: one
    for one in (
        FabricClass("roce-ring-mesh", "RDMA; far ranks are reached through a neighbour's NIC"),
        FabricClass("roce-ring-neighbour", "RDMA between ring neighbours only", complete=False),
        FabricClass("roce-switch", "RDMA; a cable or a switch between every two ranks"),
        FabricClass("pcie-switch", "peer memory; all ranks below one switch or quadrant", access=LOADS, phased=False),
        FabricClass(
            "pcie-hostbridge",
            "peer memory; ranks below different quadrants of the IO die",
            access=STORES,
            why_no_reads="reads across quadrants stall for 1 to 2.7 ms in windows of 150 to 200 ms every 2.3 s",
        ),
        FabricClass("shm", "ranks of one host, through its memory"),
    )
}
