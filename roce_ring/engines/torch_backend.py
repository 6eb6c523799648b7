"""torch.distributed's backend `roce_ring`: importing this module registers it, and nothing else does (docs/torch.md).

import roce_ring.engines.torch_backend
torch.distributed.init_process_group("cpu:gloo,cuda:roce_ring")
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch
import torch.distributed as dist

from ..communicator import AllReduce
from ..errors import ConfigError, RoceRingError
from .torch_fallback import Refusal
from .torch_group import NAME, Group

Elsewhere = Callable[[Any], Any]  # given the fallback's process group

# What torch called before 2.13, by its name now.
_OLD = {
    "all_gather_single": "_allgather_base",
    "all_gather_single_coalesced": "allgather_into_tensor_coalesced",
    "reduce_scatter_single": "_reduce_scatter_base",
    "reduce_scatter_single_coalesced": "reduce_scatter_tensor_coalesced",
}

# Calls that only the fallback has: torch's method -> what a user calls it.
_NOT_OURS = {
    "send": "send",
    "recv": "recv",
    "recv_anysource": "recv",
    "reduce": "reduce",
    "gather": "gather",
    "scatter": "scatter",
    "alltoall": "all_to_all",
    "alltoall_base": "all_to_all_single",
    "all_to_all_single": "all_to_all_single",
    "allgather_coalesced": "all_gather_coalesced",
}


class RingGroup(Group):
    """The calls, named as torch names them. torch.distributed's functions make `opts`; who calls a group itself may
    leave it out. Tensors come in lists because a rank once had several devices."""

    # ---- sums ----

    def allreduce(self, tensors: list[Any], opts: Any = None) -> Any:
        opts = opts or dist.AllreduceOptions()
        return self._all_reduce(tensors, opts, lambda group: group.allreduce(tensors, opts))

    def allreduce_coalesced(self, tensors: list[Any], opts: Any) -> Any:
        return self._all_reduce(tensors, opts, lambda group: group.allreduce_coalesced(tensors, opts))

    def _all_reduce(self, tensors: list[Any], opts: Any, elsewhere: Elsewhere) -> Any:
        def task(communicator: AllReduce) -> None:
            for tensor in _filled(tensors):
                dense = tensor.contiguous()
                communicator.all_reduce(dense, out=dense)
                self._average(dense, opts)
                if dense is not tensor:
                    tensor.copy_(dense)

        return self._go("all_reduce", tensors, self._sum_refusal(opts, tensors), opts, elsewhere, task)

    def _average(self, total: Any, opts: Any) -> None:
        if opts.reduceOp == dist.ReduceOp.AVG:
            total.div_(self._world)

    def reduce_scatter(self, outputs: list[Any], inputs: list[list[Any]], opts: Any = None) -> Any:
        opts = opts or dist.ReduceScatterOptions()
        [out], [parts] = outputs, inputs
        refusal = self._sum_refusal(opts, parts, together=True) or self._paths_refusal()
        if any(part.numel() != out.numel() for part in parts):
            refusal = refusal or Refusal("uneven", "its parts differ in size")

        def task(communicator: AllReduce) -> None:
            if out.numel():
                total = communicator.reduce_scatter(torch.cat([part.reshape(-1) for part in parts]))
                self._average(total, opts)
                out.copy_(total.view(out.shape))

        def elsewhere(group: Any) -> Any:
            return group.reduce_scatter(outputs, inputs, opts)

        return self._go("reduce_scatter", outputs, refusal, opts, elsewhere, task)

    def reduce_scatter_single(self, output: Any, input: Any, opts: Any) -> Any:
        def elsewhere(group: Any) -> Any:
            return _by_name(group, "reduce_scatter_single")(output, input, opts)

        return self._reduce_scatter([output], [input], opts, elsewhere)

    def reduce_scatter_single_coalesced(self, outputs: list[Any], inputs: list[Any], opts: Any) -> Any:
        def elsewhere(group: Any) -> Any:
            return _by_name(group, "reduce_scatter_single_coalesced")(outputs, inputs, opts)

        return self._reduce_scatter(outputs, inputs, opts, elsewhere)

    def _reduce_scatter(self, outputs: list[Any], inputs: list[Any], opts: Any, elsewhere: Elsewhere) -> Any:
        what = "reduce_scatter_tensor"
        for out, x in zip(outputs, inputs, strict=True):
            _check(what, "input", x, out, out.numel() * self._world)

        def task(communicator: AllReduce) -> None:
            for out, x in zip(outputs, inputs, strict=True):
                if x.numel():
                    total = communicator.reduce_scatter(_vector(x), out=_room(out))
                    self._average(total, opts)
                    _put(total, out)

        refusal = self._sum_refusal(opts, inputs) or self._paths_refusal()
        return self._go(what, outputs, refusal, opts, elsewhere, task)

    # ---- gathers ----

    def allgather(self, outputs: list[list[Any]], inputs: list[Any], opts: Any = None) -> Any:
        opts = opts or dist.AllgatherOptions()
        [outs], [shard] = outputs, inputs
        sizes = [out.numel() for out in outs]
        if len(outs) != self._world:
            raise ValueError(f"all_gather: {len(outs)} outputs for {self._world} ranks")
        _check("all_gather", f"output {self._rank}", outs[self._rank], shard, shard.numel())

        def task(communicator: AllReduce) -> None:
            if any(sizes):
                flat = communicator.all_gather(_vector(shard), sizes=sizes)
                for out, part in zip(outs, flat.split(sizes), strict=True):
                    out.copy_(part.view(out.shape))

        def elsewhere(group: Any) -> Any:
            return group.allgather(outputs, inputs, opts)

        return self._go("all_gather", outs, self._gather_refusal(outs), opts, elsewhere, task)

    def all_gather_single(self, output: Any, input: Any, opts: Any) -> Any:
        def elsewhere(group: Any) -> Any:
            return _by_name(group, "all_gather_single")(output, input, opts)

        return self._all_gather([output], [input], opts, elsewhere)

    def all_gather_single_coalesced(self, outputs: list[Any], inputs: list[Any], opts: Any) -> Any:
        def elsewhere(group: Any) -> Any:
            return _by_name(group, "all_gather_single_coalesced")(outputs, inputs, opts)

        return self._all_gather(outputs, inputs, opts, elsewhere)

    def _all_gather(self, outputs: list[Any], inputs: list[Any], opts: Any, elsewhere: Elsewhere) -> Any:
        what = "all_gather_into_tensor"
        for out, shard in zip(outputs, inputs, strict=True):
            _check(what, "output", out, shard, shard.numel() * self._world)

        def task(communicator: AllReduce) -> None:
            for out, shard in zip(outputs, inputs, strict=True):
                if shard.numel():
                    _put(communicator.all_gather(_vector(shard), out=_room(out)), out)

        return self._go(what, outputs, self._gather_refusal(inputs), opts, elsewhere, task)

    def broadcast(self, tensors: list[Any], opts: Any = None) -> Any:
        """A gather to which one rank gives everything and the others nothing."""
        opts = opts or dist.BroadcastOptions()
        root = opts.rootRank

        def task(communicator: AllReduce) -> None:
            for tensor in _filled(tensors):
                flat = _vector(tensor)
                sizes = [flat.numel() if rank == root else 0 for rank in range(self._world)]
                communicator.all_gather(flat if root == self._rank else flat[:0], out=flat, sizes=sizes)
                if not tensor.is_contiguous():
                    tensor.copy_(flat.view(tensor.shape))

        def elsewhere(group: Any) -> Any:
            return group.broadcast(tensors, opts)

        return self._go("broadcast", tensors, self._gather_refusal(tensors), opts, elsewhere, task)

    # ---- and ----

    def barrier(self, opts: Any = None) -> Any:
        """Returns when all ranks are here and what was in their current streams is done."""
        opts = opts or dist.BarrierOptions()
        gpu = self._communicators.get("cuda")
        if isinstance(gpu, AllReduce):
            torch.cuda.current_stream(torch.device(gpu.session.device)).synchronize()
            try:
                gpu.check()
            except RoceRingError as error:
                raise self._in_torchs_words("barrier", error) from error
        flag = torch.zeros(1)

        def task(communicator: AllReduce) -> None:
            communicator.all_reduce(flag)  # which every mode has the paths for

        return self._go("barrier", [flag], None, opts, lambda _: self._fallback.gloo.barrier(opts), task)

    def _pass_on(self, method: str, arguments: tuple[Any, ...]) -> Any:
        device = _first_tensor(arguments).device
        if self._ours(device):
            self._fallback.say(_NOT_OURS[method], Refusal("call", f"backend {NAME} has none"), device)
        return getattr(self._fallback.group, method)(*arguments)


def _filled(tensors: Iterable[Any]) -> Iterable[Any]:
    return (one for one in tensors if one.numel())


def _vector(tensor: Any) -> Any:
    """Its elements in one piece: a view of it, or a copy if they are not. (reshape may return a view with gaps.)"""
    return tensor.contiguous().view(-1)


def _room(out: Any) -> Any:
    """An output as a vector, or None if its elements do not lie in one piece."""
    return out.view(-1) if out.is_contiguous() else None


def _put(result: Any, out: Any) -> None:
    """Into an output that _room() was None for."""
    if not out.is_contiguous():
        out.copy_(result.view(out.shape))


def _check(what: str, which: str, tensor: Any, other: Any, count: int) -> None:
    if (tensor.numel(), tensor.dtype) != (count, other.dtype):
        raise ValueError(
            f"{what}: the {which} has {tensor.numel()} elements of {tensor.dtype}, expected {count} of {other.dtype}"
        )


def _first_tensor(arguments: Iterable[Any]) -> Any:
    for one in arguments:
        if isinstance(one, torch.Tensor):
            return one
        if isinstance(one, list) and (found := _first_tensor(one)) is not None:
            return found
    return None


def _by_name(group: Any, name: str) -> Any:
    return getattr(group, name if hasattr(group, name) else _OLD[name])


def _passing_on(method: str) -> Any:
    def call(self: RingGroup, *arguments: Any) -> Any:
        return self._pass_on(method, arguments)

    return call


for _method in _NOT_OURS:
    if hasattr(dist.ProcessGroup, _method):
        setattr(RingGroup, _method, _passing_on(_method))
for _new, _old in _OLD.items():
    setattr(RingGroup, _old, getattr(RingGroup, _new))


def _create(options: Any, backend_options: Any) -> RingGroup:
    if backend_options is not None:
        raise ConfigError(f"backend {NAME} takes no pg_options", "set ROCE_RING_* in the environment instead")
    return RingGroup(options)


dist.Backend.register_backend(NAME, _create, extended_api=True, devices=["cpu", "cuda"])
