"""vLLM's plug-in (entry point group vllm.general_plugins, vLLM 0.33). No file of the engine changes: three names are
replaced in memory, and only if the environment turns roce-ring on.

- CustomAllreduce, which a tensor-parallel group's communicator imports at the moment it makes one. Not a platform
  plug-in instead: of those only one can be active, and it would have to follow CudaCommunicator's constructor.
- CudaCommunicator.all_gather, because vLLM has no place for a custom all-gather in it.
- WorkerWrapperBase.init_device, after which a process has its worker: a step's results then come with a look at the
  session, so that a lost rank ends the engine. Graph replays of a failed session return at once, and without this the
  engine would go on with sums that never were.
"""

from __future__ import annotations

import functools
import importlib
import logging
import os
from collections.abc import Callable
from typing import Any

from .switches import REQUIRED, Switches, is_required

log = logging.getLogger("vllm.roce_ring")  # below vLLM's own, which shows INFO; a stranger's it would drop

_DEVICE = "vllm.distributed.device_communicators"
CUSTOM = (f"{_DEVICE}.custom_all_reduce", "CustomAllreduce")
GATHER = (f"{_DEVICE}.cuda_communicator", "CudaCommunicator.all_gather")
WORKER = ("vllm.v1.worker.worker_base", "WorkerWrapperBase.init_device")

_hooked: list[str] = []  # vLLM loads its plug-ins more than once in a process


def register() -> None:
    """What vLLM calls in each of its processes, before any process group exists. Raises SystemExit if roce-ring is
    required and cannot be hooked in."""
    from ..errors import ConfigError

    try:
        switches = Switches.from_env(os.environ, "vllm")
    except ConfigError as error:
        # This rank's vote will say so too, and then no rank goes on alone.
        log.error("roce-ring: %s", error)
        switches = Switches(on=True, required=is_required(os.environ))
    if not switches.on or _hooked:
        return
    hooks: tuple[tuple[tuple[str, str], Callable[[Any], Any]], ...] = (
        (CUSTOM, custom_all_reduce),
        (GATHER, all_gather),
        (WORKER, init_device),
    )
    places = [(_holder(*target), target[1].rpartition(".")[2]) for target, _ in hooks]
    missing = [
        ".".join(target) for (target, _), (holder, name) in zip(hooks, places, strict=True) if not hasattr(holder, name)
    ]
    if missing:
        told = (
            f"roce-ring is not used: this vLLM ({_version()}) has no {', '.join(missing)}; "
            "expected version 0.33, or a newer roce-ring"
        )
        log.error("%s", told)
        if switches.required:
            raise SystemExit(f"{told}; {REQUIRED}=1, so this engine ends")
        return
    for (holder, name), (_, hook) in zip(places, hooks, strict=True):
        setattr(holder, name, hook(getattr(holder, name)))
        _hooked.append(name)


def custom_all_reduce(original: type) -> type:
    """In place of CustomAllreduce: what is made is our communicator, or the engine's own where all ranks said no."""

    class CustomAllreduce(original):  # type: ignore[misc]
        def __new__(cls, group: Any, device: Any, *_: Any, **__: Any) -> Any:
            from .opening import open_communicator

            ours = open_communicator(group, device, "vllm", log)
            return super().__new__(cls) if ours is None else ours  # __init__ follows for the engine's own only

    CustomAllreduce.__module__ = original.__module__  # what is not ours does not look like ours
    return CustomAllreduce


def all_gather(original: Callable[..., Any]) -> Callable[..., Any]:
    """Around CudaCommunicator.all_gather."""
    from .communicator import Communicator

    @functools.wraps(original)
    def gather(communicator: Any, input_: Any, dim: int = -1) -> Any:
        ours = communicator.ca_comm
        gathered = ours.gathered(input_, dim) if isinstance(ours, Communicator) else None
        return original(communicator, input_, dim) if gathered is None else gathered

    return gather


def init_device(original: Callable[..., Any]) -> Callable[..., Any]:
    """Around WorkerWrapperBase.init_device."""

    @functools.wraps(original)
    def init(wrapper: Any, *args: Any, **kwargs: Any) -> Any:
        done = original(wrapper, *args, **kwargs)
        worker = wrapper.worker
        for name in ("execute_model", "sample_tokens"):  # either may return a step's results
            setattr(worker, name, after_step(getattr(worker, name)))
        return done

    return init


def after_step(original: Callable[..., Any]) -> Callable[..., Any]:
    """Around one of a worker's two halves of a step. Results that are still on their way have a get_output, which waits
    for them: the look follows that wait."""
    from .communicator import check_all
    from .opening import check_asked

    def looked(call: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(call)
        def then(*args: Any, **kwargs: Any) -> Any:
            result = call(*args, **kwargs)
            check_all()
            return result

        return then

    @functools.wraps(original)
    def step(*args: Any, **kwargs: Any) -> Any:
        check_asked("vLLM", "start it without --disable-custom-all-reduce", log)
        result = original(*args, **kwargs)
        if hasattr(result, "get_output"):
            result.get_output = looked(result.get_output)
        else:
            check_all()
        return result

    return step


def _holder(module: str, name: str) -> Any:
    """What has the last part of a dotted name as its attribute; None if that is not there."""
    try:
        holder: Any = importlib.import_module(module)
    except ImportError:
        return None
    for part in name.split(".")[:-1]:
        holder = getattr(holder, part, None)
    return holder


def _version() -> str:
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version("vllm")
    except PackageNotFoundError:
        return "not installed as a package"
