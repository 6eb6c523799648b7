"""Flags and slots of all ranks in device memory (provider pcie): allocated once, shown to the peers by CUDA IPC.

From cudaMalloc and not from a pool, so that a handle can be had whatever allocator the engine uses. Nobody frees before
all have let go.
"""

from __future__ import annotations

import json
import logging
import os
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..direct import LOADS, STORES
from ..errors import RoceRingError, SetupError
from ..exchange import Exchange, agree, gather_errors
from ..fabric.group import Group, group_of_buses
from ..host import REGIONS
from ..native import Layout
from .holding import Holding
from .p2p import ALREADY_ENABLED, PRIMITIVES
from .program import import_cupy
from .remembered import key_of, recall, remember
from .verdicts import LIMIT_S, Verdict, verdicts

log = logging.getLogger(__name__)

_PROCESS = os.urandom(16).hex()  # a forked child has the same, but another pid
_LET_GO_S = 2.0
_LAZY_PEER_ACCESS = 1


class PeerMemory:
    """`data[p]`: what offsets of the layout are added to for rank p's flags and slots; filled by open(). Constructor:
    raises SetupError, and then holds nothing."""

    def __init__(self, rank: int, device: int, layout: Layout, session: str) -> None:
        self._runtime = import_cupy().cuda.runtime
        self._rank, self._device = rank, device
        self._skipped = int(layout.flags)  # the lines before the flags stay in host memory
        self.bytes = int(layout.region_bytes) - self._skipped
        self.data: list[int] = []
        self._own = 0
        self._imported: list[int] = []
        self._holding = Holding(REGIONS / f"roce-ring-pcie-{session}")
        with self._on_device():
            try:
                self._own = int(self._runtime.malloc(self.bytes))
                self._runtime.memset(self._own, 0, self.bytes)
                import_cupy().cuda.Stream.null.synchronize()  # before a peer stores into it
            except self._runtime.CUDARuntimeError as error:
                self.free()
                raise SetupError(
                    f"cuda:{device} has no {self.bytes} bytes for the flags and slots of rank {rank}: {error}",
                    "lower ROCE_RING_MAX_BYTES or ROCE_RING_GATHER_BYTES",
                ) from error

    def _on_device(self) -> Any:
        return import_cupy().cuda.Device(self._device)

    def offer(self) -> bytes:
        """What a peer needs to reach this memory. Raises SetupError."""
        with self._on_device():
            try:
                handle = bytes(self._runtime.ipcGetMemHandle(self._own)).hex()
                bus = self._runtime.deviceGetPCIBusId(self._device)
            except self._runtime.CUDARuntimeError as error:
                raise SetupError(f"cuda:{self._device} gives no IPC handle for its memory: {error}") from error
        offer = {"pid": os.getpid(), "process": _PROCESS, "at": self._own, "handle": handle, "bus": bus}
        return json.dumps({**offer, "device": self._device}).encode()

    def open(self, offers: list[dict[str, Any]]) -> None:
        """Maps every peer's. Call when all ranks have offered. Raises SetupError naming the first that cannot be
        reached."""
        with self._on_device():
            for rank, offer in enumerate(offers):
                try:
                    at = self._own if rank == self._rank else self._reach(offer, offers[self._rank])
                except self._runtime.CUDARuntimeError as error:
                    raise SetupError(
                        f"rank {self._rank} on GPU {offers[self._rank]['bus']} cannot map the memory of rank {rank} on "
                        f"GPU {offer['bus']}: {error}",
                        "set ROCE_RING_PROVIDER to shm; look at `nvidia-smi topo -p2p rw` and the IPC namespace",
                    ) from error
                self.data.append(at - self._skipped)

    def _reach(self, offer: dict[str, Any], mine: dict[str, Any]) -> int:
        if (offer["pid"], offer["process"]) != (mine["pid"], mine["process"]):
            at = int(self._runtime.ipcOpenMemHandle(bytes.fromhex(offer["handle"]), _LAZY_PEER_ACCESS))
            self._imported.append(at)
            return at
        if offer["device"] != self._device:  # a thread of this process: the same address, if the device may use it
            try:
                self._runtime.deviceEnablePeerAccess(offer["device"])
            except self._runtime.CUDARuntimeError as error:
                if error.status != ALREADY_ENABLED:
                    raise
        return int(offer["at"])

    def all_have_opened(self) -> None:
        self._holding.unname()

    # ---- going down ----

    def let_go(self) -> None:
        """Unmaps the peers' memory. No kernel of this rank may run any more."""
        with suppress(self._runtime.CUDARuntimeError), self._on_device():  # else the context is lost, and they with it
            while self._imported:
                self._runtime.ipcCloseMemHandle(self._imported.pop())
        self._holding.let_go()

    def free(self) -> bool:
        """Frees what peers had mapped, once all have let go. False if some have not within 2 s: then it stays until the
        process ends, because a kernel of theirs may still store into it."""
        self.let_go()
        if not self._holding.all_let_go(_LET_GO_S):
            return False
        own, self._own = self._own, 0
        if own:
            with suppress(self._runtime.CUDARuntimeError), self._on_device():
                self._runtime.free(own)
        return True


@dataclass(frozen=True, slots=True)
class Reached:
    """`access`: of direct.STORES, LOADS. `ranks_here`: ranks that share this rank's GPU, itself included. `group`: all
    ranks' GPUs."""

    memory: PeerMemory
    access: int
    ranks_here: int
    group: Group


def reach(exchange: Exchange, device: int, layout: Layout, session: str, place: Path, timeout_s: float) -> Reached:
    """Collective: takes this rank's memory, finds out what works between the GPUs, maps everybody's. Raises SetupError
    on all ranks or on none, and then holds nothing. `place`: where verdicts are kept for the next start."""
    memory, offer, error, group = None, b"", None, None
    try:
        memory = PeerMemory(exchange.rank, device, layout, session)
        offer = memory.offer()
    except SetupError as failed:
        error = str(failed)
    try:
        gather_errors(exchange, error, timeout_s)
        assert memory is not None  # gather_errors raised otherwise
        offers = [json.loads(one) for one in exchange.all_gather(offer, timeout_s)]
        buses = [str(one["bus"]) for one in offers]
        access = _access(exchange, buses, place, timeout_s)
        try:
            memory.open(offers)
            group = group_of_buses(buses)
        except RoceRingError as failed:
            error = str(failed)
        gather_errors(exchange, error, timeout_s)
        assert group is not None
        agree(exchange, {"fabric class": group.fabric, "phase order": ",".join(map(str, group.order))}, timeout_s)
        memory.all_have_opened()
    except BaseException:
        if memory is not None:
            memory.free()
        raise
    return Reached(memory, access, buses.count(buses[exchange.rank]), group)


def _access(exchange: Exchange, buses: list[str], place: Path, timeout_s: float) -> int:
    """Between different GPUs the first rank of each tries what it may do to the others; the worst counts for all. On
    one GPU there is nothing to try: the handle opens or it does not. `place`: where verdicts are kept."""
    mine, gpus = buses[exchange.rank], sorted(set(buses))
    if len(gpus) == 1:
        return LOADS
    found: list[Verdict] = []
    if buses.index(mine) == exchange.rank:
        key = key_of([mine, *gpus])
        found = recall(place, key)
        if not found:
            found = verdicts(mine, [one for one in gpus if one != mine])
            remember(place, key, found)
    every = exchange.all_gather(json.dumps(found).encode(), timeout_s + LIMIT_S)
    return access_of([one for raw in every for one in json.loads(raw)])


def access_of(found: list[Verdict]) -> int:
    """What all ranks may do, of direct.STORES and LOADS, after the verdicts of all pairs. Raises SetupError. The copy
    engine's counts for nobody: no kernel uses it."""
    wrong = {
        primitive: [
            f"{primitive} from GPU {one['from']} to {one['to']}: {one[primitive]}" for one in found if one[primitive]
        ]
        for primitive in PRIMITIVES
    }
    fatal = [one for primitive in ("stores", "flags", "graph", "concurrent") for one in wrong[primitive]]
    if fatal:
        raise SetupError(
            f"provider pcie does not work between these GPUs: {'; '.join(fatal[:4])}"
            + (f"; and {len(fatal) - 4} more" if len(fatal) > 4 else ""),
            "set ROCE_RING_PROVIDER to shm; see whether ACS or the IOMMU redirects peer-to-peer traffic",
        )
    if wrong["loads"]:
        log.warning("modes that read peers' memory are out: %s", "; ".join(wrong["loads"][:4]))
        return STORES
    return LOADS
