"""SGLang's plug-in (entry point group sglang.srt.plugins, SGLang 0.5.11 and newer). No file of the engine changes: its
own hook registry wraps three functions, and only if the environment turns roce-ring on.

- dispatch_custom_allreduce, which a process group asks for the class of its custom all-reduce: ours is answered.
- GroupCoordinator._all_gather_into_tensor, because SGLang has no place for a custom all-gather.
- Scheduler.process_batch_result, where a step's results have arrived: a lost rank ends the engine there. Graph replays
  of a failed session return at once, so without this the engine would go on with sums that never were.
"""

from __future__ import annotations

import logging
import os
import pkgutil
import sys
from collections.abc import Callable
from typing import Any

from .switches import REQUIRED, Switches, is_required

log = logging.getLogger(__name__)

_DISTRIBUTED = "sglang.srt.distributed"
DISPATCH = f"{_DISTRIBUTED}.device_communicators.custom_all_reduce.dispatch_custom_allreduce"
GATHER = f"{_DISTRIBUTED}.parallel_state.GroupCoordinator._all_gather_into_tensor"
SCHEDULER = "sglang.srt.managers.scheduler"
STEP = f"{SCHEDULER}.Scheduler.process_batch_result"


def register() -> None:
    """What SGLang calls in each of its processes, before any process group exists. Raises SystemExit if roce-ring is
    required and cannot be hooked in; any other exception SGLang would log and forget."""
    from ..errors import ConfigError

    try:
        switches = Switches.from_env(os.environ, "sglang")
    except ConfigError as error:
        # This rank's vote will say so too, and then no rank goes on alone.
        log.error("roce-ring: %s", error)
        switches = Switches(on=True, required=is_required(os.environ))
    if not switches.on:
        return
    hooks: dict[str, Callable[..., Any]] = {DISPATCH: dispatch, GATHER: all_gather}
    if SCHEDULER in sys.modules:  # the process that runs the model; others would import it for nothing
        hooks[STEP] = after_step
    missing = [target for target in hooks if not _exists(target)]
    if missing:
        told = (
            f"roce-ring is not used: this SGLang ({_version()}) has no {', '.join(missing)}; "
            "expected a version from 0.5.11 to 0.5.23, or a newer roce-ring"
        )
        log.error("%s", told)
        if switches.required:
            raise SystemExit(f"{told}; {REQUIRED}=1, so this engine ends")
        return
    from sglang.srt.plugins.hook_registry import HookRegistry, HookType

    for target, hook in hooks.items():
        HookRegistry.register(target, hook, HookType.AROUND)


def dispatch(original: Callable[..., Any], *args: Any, **kwargs: Any) -> Callable[..., Any]:
    """Around dispatch_custom_allreduce: something to call in place of the class it returns. Versions before 0.5.13 pass
    it nothing, so who is in the group only the constructor's call tells."""

    def make(*own: Any, group: Any, device: Any, **others: Any) -> Any:
        from .opening import open_communicator

        ours = open_communicator(group, device, "sglang", log)
        if ours is not None:
            return ours
        return original(*args, **kwargs)(*own, group=group, device=device, **others)

    return make


def all_gather(original: Callable[..., Any], group: Any, output: Any, input: Any) -> Any:
    """Around GroupCoordinator._all_gather_into_tensor."""
    from .communicator import Communicator

    ours = group.ca_comm
    if isinstance(ours, Communicator) and ours.should_all_gather(input, output):
        return ours.all_gather_into(output, input)
    return original(group, output, input)


def after_step(original: Callable[..., Any], scheduler: Any, batch: Any, result: Any, *args: Any, **kwargs: Any) -> Any:
    """Around Scheduler.process_batch_result, which begins by waiting for the step: we wait first, and look."""
    from .communicator import check_all
    from .opening import check_asked

    check_asked("SGLang", "start it without --disable-custom-all-reduce", log)
    done = getattr(result, "copy_done", None)
    if done is not None:
        done.synchronize()
    check_all()
    return original(scheduler, batch, result, *args, **kwargs)


def _exists(target: str) -> bool:
    try:
        pkgutil.resolve_name(target)
    except (ImportError, AttributeError, ValueError):
        return False
    return True


def _version() -> str:
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version("sglang")
    except PackageNotFoundError:
        return "not installed as a package"
