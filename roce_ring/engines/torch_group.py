"""What a process group of backend `roce_ring` is made of: settings, communicators, a thread and a fallback; and who of
them does a call. The calls themselves are in torch_backend.py."""

from __future__ import annotations

import dataclasses
import hashlib
import logging
import os
import re
from collections.abc import Callable
from functools import cached_property
from typing import Any

import torch
import torch.distributed as dist

from ..communicator import AllReduce
from ..control.meeting import ranks
from ..errors import ConfigError, RoceRingError
from ..exchange import gather_errors
from ..native import MAX_WORLD
from ..settings import Settings, env_name
from ..topology import Topology
from .opening import planned_world
from .store_exchange import StoreExchange
from .torch_fallback import BESIDE, Fallback, Refusal
from .torch_work import Later, Line, done

log = logging.getLogger(__name__)

NAME = "roce_ring"
SUMMED = (torch.float32, torch.float16, torch.bfloat16)
_LONGEST_NAME = 48  # of settings.name
_SHORTEST_S = 2.0  # of settings.peer_timeout_s, above settings.late_s
_SHORT = re.compile(r"[A-Za-z0-9]{1,12}")

Task = Callable[[AllReduce], object]


class Group(dist.ProcessGroup):  # type: ignore[misc]
    """One process group: a communicator for each device type, made at the first call that needs it, and a fallback.
    Which calls are ours follows from their kind, dtype and size alone, so that all ranks decide alike."""

    def __init__(self, options: Any) -> None:
        """`options`: torch's DistributedBackendOptions. Collective over the group's ranks: raises SetupError on all of
        them if the settings of one are wrong."""
        super().__init__(options.group_rank, options.group_size)
        self._rank, self._world, self._id = options.group_rank, options.group_size, str(options.group_id)
        self._global = list(options.global_ranks_in_group) or list(range(self._world))
        # A clone: a thread of this group may look at it while another thread waits on torch's own. Made now, because it
        # connects to the store's host, and asks a host that is gone for as long as torch's timeout.
        self._store, self._timeout_s = options.store.clone(), options.timeout.total_seconds()
        self._communicators: dict[str, AllReduce | RoceRingError] = {}
        self._line: Line | None = None
        self._nothing_left = done([])  # the Work of a call whose caller waits at once; making one takes 8 us
        self._closed = False
        self._name = self._description = ""
        self._settings, self._topology = self._agree()
        self._fallback = Fallback(options)

    def _agree(self) -> tuple[Settings, Topology | None]:
        """A rank whose environment is wrong must not leave the others waiting."""
        settings, topology, error = Settings(), None, None
        if self._world == 1:  # nothing is ours
            return settings, topology
        try:
            if self._world > MAX_WORLD:
                raise ConfigError(f"the group has {self._world} ranks, backend {NAME} takes up to {MAX_WORLD}")
            patience_s = min(max(self._timeout_s, _SHORTEST_S), 86400.0)
            settings = Settings.from_env(os.environ, Settings(peer_timeout_s=patience_s))
            if (planned := planned_world(settings)) not in (None, self._world):
                raise ConfigError(
                    f"the plan is for {planned} ranks, this process group has {self._world}",
                    "give such a group another backend: torch.distributed.new_group(ranks, backend=...)",
                )
            topology = Topology.from_settings(settings, self._rank, self._world)
            self._session_name(settings, "cuda")
        except RoceRingError as failed:
            error = str(failed)
        exchange = StoreExchange(dist.PrefixStore("settings", self._store), self._rank, self._world)
        gather_errors(exchange, error, self._timeout_s)
        return settings, topology

    def _get_backend(self, device: Any) -> Any:
        """init_process_group(device_id=...) makes what it finds here connect at once. NCCL, which may never be needed,
        would take gigabytes for that where a GPU shares the host's memory."""
        return self._fallback.gloo

    # torch keeps these two with a group's backends, and this group has none of its own.
    def setGroupName(self, name: str) -> None:  # noqa: N802  # torch's
        self._name = name

    def getGroupName(self) -> str:  # noqa: N802
        return self._name

    def setGroupDesc(self, description: str) -> None:  # noqa: N802
        self._description = description

    def getGroupDesc(self) -> str:  # noqa: N802
        return self._description

    def getBackendName(self) -> str:  # noqa: N802
        return NAME

    # ---- whose it is ----

    @cached_property
    def _asked(self) -> frozenset[str]:
        """Device types that are ours by the user's word. torch does not say which before the group is made."""
        asked = dict(pair.split(":") for pair in dist.get_backend_config(self).split(","))
        for device, backend in asked.items():
            if backend not in (NAME, BESIDE.get(device)):
                raise ConfigError(
                    f"the process group's backend for {device} is {backend}; beside {NAME} there are cpu:gloo and "
                    "cuda:nccl",
                    "make it a group of its own: torch.distributed.new_group(backend=...)",
                )
        return frozenset(device for device, backend in asked.items() if backend == NAME)

    def _ours(self, device: Any) -> bool:
        if self._closed:
            raise RuntimeError(f"process group {self._id} has been destroyed")
        return self._world > 1 and device.type in self._asked

    def _sum_refusal(self, opts: Any, tensors: list[Any], *, together: bool = False) -> Refusal | None:
        """`together`: they are parts of one payload."""
        op = opts.reduceOp  # its == knows the enumeration's members only on the right
        if not (op == dist.ReduceOp.SUM or op == dist.ReduceOp.AVG):
            name = str(getattr(op, "op", op)).rpartition(".")[2]
            return Refusal(name, f"op {name} is neither SUM nor AVG")
        for dtype in (one.dtype for one in tensors if one.dtype not in SUMMED):
            return Refusal(_bare(dtype), f"dtype {_bare(dtype)} is none of {', '.join(map(_bare, SUMMED))}")
        return _size_refusal(tensors, self._settings.max_bytes, "ROCE_RING_MAX_BYTES", together)

    def _gather_refusal(self, shards: list[Any]) -> Refusal | None:
        name = "gather_bytes" if self._settings.gather_bytes else "max_bytes"
        return self._paths_refusal() or _size_refusal(shards, getattr(self._settings, name), env_name(name))

    def _paths_refusal(self) -> Refusal | None:
        if self._topology is None or self._topology.complete:
            return None
        mode = self._settings.mode
        return Refusal(
            "paths", f"mode {mode} connects ring neighbours only; set ROCE_RING_MODE to auto to have it here"
        )

    def _go(
        self,
        what: str,
        tensors: list[Any],
        refusal: Refusal | None,
        opts: Any,
        elsewhere: Callable[[Any], Any],
        task: Task,
    ) -> Any:
        """torch's Work for one operation on `tensors`, its outputs: by `task` here, or `elsewhere`, which is given the
        fallback group. On a GPU it is in the current stream when this returns. On a CPU it is done when this returns if
        the caller would wait at once; otherwise this group's thread does it, in order."""
        device = tensors[0].device
        if not self._ours(device):
            return elsewhere(self._fallback.group)
        if refusal:
            self._fallback.say(what, refusal, device)
            return elsewhere(self._fallback.group)
        idle = self._line is None or self._line.last is None or self._line.last.done()
        if device.type == "cuda" or (idle and not opts.asyncOp):
            self._do(what, device, task)
            return done(tensors) if opts.asyncOp else self._nothing_left
        if self._line is None:
            self._line = Line(f"{NAME}-{self._id}")
        return Later(self._line.put(lambda: self._do(what, device, task)), tensors)

    def _do(self, what: str, device: Any, task: Task) -> None:
        try:
            with torch.inference_mode():  # tensors of any kind are filled in place
                task(self._communicator(device))
        except RoceRingError as error:
            raise self._in_torchs_words(what, error) from error

    def _in_torchs_words(self, what: str, error: RoceRingError) -> Any:
        here = list(range(self._world))
        whose = "" if self._global == here else f" [{ranks(here)} of this group are global {ranks(self._global)}]"
        return dist.DistBackendError(f"{what} in process group {self._id}: {error}{whose}")

    # ---- communicators ----

    def _communicator(self, device: Any) -> AllReduce:
        found = self._communicators.get(device.type)
        if found is None:
            if device.type == "cuda" and torch.cuda.is_current_stream_capturing():
                raise RoceRingError(
                    "capture",
                    "the first collective of a process group cannot come in a graph capture",
                    "make one before it, as a warm-up does",
                )
            try:
                found = self._new_communicator(device)
            except RoceRingError as error:
                found = error  # who tries again would meet nobody
            self._communicators[device.type] = found
        if isinstance(found, RoceRingError):
            raise found
        return found

    def _new_communicator(self, device: Any) -> AllReduce:
        exchange = StoreExchange(dist.PrefixStore(device.type, self._store), self._rank, self._world)
        exchange.barrier(self._settings.peer_timeout_s)  # others may come to their first collective much later
        settings = dataclasses.replace(self._settings, name=self._session_name(self._settings, device.type))
        made = AllReduce(exchange, settings, self._topology, device=str(device))
        log.info("process group %s: rank %d of %d on %s", self._id, self._rank, self._world, made.session.device_name)
        return made

    def _session_name(self, settings: Settings, device: str) -> str:
        """Of its own for every group and device type of a job: they share the run directory. Raises ConfigError."""
        number = self._id if _SHORT.fullmatch(self._id) else hashlib.sha256(self._id.encode()).hexdigest()[:12]
        name = f"{settings.name}.group{number}.{device}"
        if len(name) > _LONGEST_NAME:
            most = len(settings.name) - (len(name) - _LONGEST_NAME)
            raise ConfigError(
                f"ROCE_RING_NAME has {len(settings.name)} characters; as a part of {name} it may have {most}",
                "choose a shorter one",
            )
        return name

    def _open_communicators(self) -> list[AllReduce]:
        return [one for one in self._communicators.values() if isinstance(one, AllReduce)]

    # ---- going down ----

    def shutdown(self) -> None:
        """destroy_process_group calls it. Finishes what was begun, and says good-bye to the other ranks."""
        if self._closed:
            return
        self._closed = True
        if self._line is not None:
            self._line.end()
        for one in self._open_communicators():
            one.close()
        self._fallback.close()

    def abort(self) -> None:
        """Ends what was begun, on all ranks."""
        for one in self._open_communicators():
            one.session.control.abort("the process group was aborted")
        self.shutdown()


def _size_refusal(tensors: list[Any], limit: int, setting: str, together: bool = False) -> Refusal | None:
    """`limit`: bytes of each, or of all `together`."""
    for one in tensors:
        if one.layout is not torch.strided:
            return Refusal("layout", f"layout {_bare(one.layout)} is not strided")
    sizes = [one.numel() * one.element_size() for one in tensors]
    if (size := sum(sizes) if together else max(sizes)) > limit:
        return Refusal("size", f"{size} bytes are more than {setting} ({limit}); raise it on all ranks to have it here")
    return None


def _bare(name: object) -> str:
    return str(name).removeprefix("torch.")
