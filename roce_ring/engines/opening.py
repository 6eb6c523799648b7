"""From an engine's process group to a communicator, on all its ranks or on none."""

from __future__ import annotations

import contextlib
import dataclasses
import importlib.util
import logging
import os
from collections import Counter
from pathlib import Path
from typing import Any

from ..communicator import AllReduce
from ..errors import ConfigError, RoceRingError
from ..exchange import ExchangeError, TorchExchange
from ..native import MAX_WORLD, native
from ..settings import Settings
from ..topology import plan_of
from .communicator import Communicator, live
from .switches import REQUIRED, Switches, is_required
from .vote import Ballot, hold

_opened: Counter[tuple[int, ...]] = Counter()  # of this process, by the group's ranks
_asked: list[str] = []  # what became of each group that asked
_checked: list[bool] = []


def open_communicator(group: Any, device: Any, engine: str, log: logging.Logger) -> Communicator | None:
    """Collective over `group`, a torch.distributed gloo group. None: every rank goes on with the engine's own, and has
    been told why by one warning. `device`: a torch device, its name, or a GPU's number.

    Ends the process (SystemExit, which no engine swallows) where a rank has set ROCE_RING_REQUIRED=1."""
    import torch.distributed as dist

    members = tuple(dist.get_process_group_ranks(group))
    _asked.append(f"a group of {len(members)} ranks")
    mine, switches, settings = _ballot(members, device, engine)
    required = mine.required
    try:
        exchange = TorchExchange(group)
        outcome = hold(exchange, mine)
        required = outcome.required
        if outcome.none_of_ours:
            log.info("roce-ring: no plan speaks of a group of %d ranks; it stays with %s", len(members), engine)
            return None
        if not outcome.yes:
            _declined(log, outcome.why, required)
            return None
        assert settings is not None  # whoever has none has voted no
        _opened[members] += 1
        name = group_name(settings.name, members, dist.get_world_size(), _opened[members])
        ours = AllReduce(exchange, dataclasses.replace(settings, name=name), device=device_name(device))
    except ExchangeError as error:
        _declined(log, f"{error}; does every node have the same environment line?", required)
        return None
    except RoceRingError as error:
        _declined(log, str(error), required)
        return None
    session = ours.session
    beyond = "gloo" if session.device == "cpu" else "NCCL"
    communicator = Communicator(ours, gather=switches.gather, log=log, beyond=beyond)
    hcas = session.topology.hcas if session.provider == "verbs" else ()
    _announce(communicator, hcas, ours.settings.gather_bytes if switches.gather else 0, log)
    return communicator


def check_asked(engine: str, hint: str, log: logging.Logger) -> None:
    """At an engine's first step: whether roce-ring is really there. A hook that did not take, or an option that keeps
    the engine from asking for a custom all-reduce, would otherwise show in nothing but the speed."""
    if _checked:
        return
    _checked.append(True)
    if live() or (_asked and not is_required(os.environ)):
        return  # who was asked and said no has been told
    _declined(
        log,
        f"{engine} asked for {', '.join(_asked)}, which the plan is not for"
        if _asked
        else f"{engine} asked for no all-reduce of two or more ranks ({hint})",
        is_required(os.environ),
    )


def _ballot(members: tuple[int, ...], device: Any, engine: str) -> tuple[Ballot, Switches, Settings | None]:
    """What this rank says by itself, without asking another."""
    switches, settings, planned = Switches(), None, None
    problems = []
    try:
        switches = Switches.from_env(os.environ, engine)
    except ConfigError as error:
        problems.append(str(error))
    try:
        settings = Settings.from_env(os.environ)
        planned = planned_world(settings)
    except ConfigError as error:
        problems.append(str(error))
    if len(members) > MAX_WORLD:
        problems.append(f"the group has {len(members)} ranks, at most {MAX_WORLD} are served")
    try:
        native()
    except (RoceRingError, OSError, AttributeError) as error:  # a library that is missing or of another version
        problems.append(f"roce-ring's libraries cannot be loaded: {error}")
    if device_name(device) != "cpu" and importlib.util.find_spec("cupy") is None:
        problems.append("CuPy is not installed (pip install 'roce-ring[cuda]')")
    return Ballot("; ".join(problems), planned in (None, len(members)), is_required(os.environ)), switches, settings


def planned_world(settings: Settings) -> int | None:
    """How many ranks the environment's plan is for; None: there is no plan, and any group will do. Raises
    ConfigError."""
    if settings.plan:
        return len(plan_of(settings.plan).hosts)
    return settings.peer_hca_maps.count(";") + 1 if settings.peer_hca_maps else None


def group_name(base: str, members: tuple[int, ...], everybody: int, nth: int) -> str:
    """The name of a session in the run directory: one process may be in several groups, and in one group twice.
    `members`: ranks of the whole job. `nth`: counts from 1."""
    part = "" if len(members) == everybody else f".{members[0]}-{members[-1]}"
    return f"{base}{part}{f'.{nth}' if nth > 1 else ''}"


def device_name(device: Any) -> str:
    """cpu or cuda:N, of a torch device, its name, or a GPU's number."""
    name = f"cuda:{device}" if isinstance(device, int) else str(device)
    if name == "cuda":
        import torch

        return f"cuda:{torch.cuda.current_device()}"
    return name


def _declined(log: logging.Logger, why: str, required: bool) -> None:
    told = f"roce-ring is not used, by any rank of this group: {why}"
    if required:
        log.error("%s", told)
        raise SystemExit(f"{told}; {REQUIRED}=1, so this engine ends")
    log.warning("%s", told)


def _announce(one: Communicator, hcas: tuple[str, ...], gather_bytes: int, log: logging.Logger) -> None:
    """The two lines that the recipe's scripts look for in a boot log. `hcas`: those in use."""
    if one.rank:
        return
    log.info(
        "RoCEnante ready: world=%d hcas=%s gid_index=%s max_size=%d",
        one.world_size,
        ",".join(hcas) or "none",
        gid_index(hcas),
        one.max_size,
    )
    if gather_bytes:
        log.info("DSV41_ROCE_GATHER ready: max %d bytes per rank", gather_bytes)


def gid_index(hcas: tuple[str, ...], sys_class: Path = Path("/sys/class/infiniband")) -> str:
    """The RoCE v2 IPv4 entry of the first port's GID table, which is the one that a session takes; joined by '/' where
    HCAs differ; none without HCAs."""
    found = []
    for hca in hcas:
        port = sys_class / hca / "ports" / "1"
        for types in sorted((port / "gid_attrs" / "types").glob("[0-9]*"), key=lambda one: int(one.name)):
            with contextlib.suppress(OSError):  # an empty entry answers with an error
                gid = (port / "gids" / types.name).read_text().strip()
                if types.read_text().strip() == "RoCE v2" and gid.startswith("0000:0000:0000:0000:0000:ffff:"):
                    found.append(types.name)
                    break
    return "/".join(dict.fromkeys(found)) or "none"
