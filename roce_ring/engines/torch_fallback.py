"""The group beside a process group of ours, for what ours does not take: gloo for CPU tensors, NCCL for CUDA."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist

log = logging.getLogger(__name__)

BESIDE = {"cpu": "gloo", "cuda": "nccl"}


@dataclass(frozen=True, slots=True)
class Refusal:
    """Why a call is not ours. Calls of one `kind` are told of once."""

    kind: str
    why: str


class Fallback:
    """Made at once and not at need: a send involves two ranks, and gloo needs all of them to connect. NCCL connects
    when it is first used, and takes its memory then."""

    def __init__(self, options: Any) -> None:
        """`options`: torch's DistributedBackendOptions. Collective over the group's ranks."""
        rank, world, store = options.group_rank, options.group_size, options.store
        kinds = dist.ProcessGroup.BackendType
        self.name = f"{options.group_id}/fallback"
        self.group = dist.ProcessGroup(dist.PrefixStore("fallback", store), rank, world)
        self.gloo = dist.ProcessGroupGloo(dist.PrefixStore("fallback/gloo", store), rank, world, options.timeout)
        self.group._register_backend(torch.device("cpu"), kinds.GLOO, self.gloo)
        if torch.cuda.is_available() and dist.is_nccl_available():
            nccl_options = dist.ProcessGroupNCCL.Options()
            nccl_options._timeout = options.timeout
            nccl = dist.ProcessGroupNCCL(dist.PrefixStore("fallback/nccl", store), rank, world, nccl_options)
            self.group._register_backend(torch.device("cuda"), kinds.NCCL, nccl)
        self.group._set_group_name(self.name)
        self.group._set_group_desc(f"fallback of process group {options.group_id}")
        self._rank = rank
        self._said: set[tuple[str, str]] = set()

    def say(self, what: str, refusal: Refusal, device: Any) -> None:
        """Once for each kind of call. All ranks do the same, so one says it aloud; a send and its receive are their
        ranks' own."""
        if (what, refusal.kind) in self._said:
            return
        self._said.add((what, refusal.kind))
        loud = self._rank == 0 or what in ("send", "recv")
        where = BESIDE.get(device.type, device.type)
        told = f"{what} goes to {where} (group {self.name}): {refusal.why}. Said once"
        log.log(logging.WARNING if loud else logging.INFO, "%s", told)

    def close(self) -> None:
        """It ends here and not with whatever refers to the process group last, such as a model in DDP: gloo's threads
        may need Python's lock to end, and the end of a model holds it."""
        self.group.shutdown()
        self.group = self.gloo = None
