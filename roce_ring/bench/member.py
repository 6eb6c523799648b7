"""One rank of a run over several hosts: this process. The same command on every host of the plan; ranks meet over the
management network."""

from __future__ import annotations

import contextlib
import logging
import socket
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from ..communicator import AllReduce
from ..control.address import parse_address
from ..errors import ConfigError
from ..exchange import RendezvousExchange, Tls, agree
from ..modes import modes
from ..settings import Settings
from ..topology import plan_of
from .cases import Spec
from .job import Answer, Logged, Result
from .measure import measure
from .process import interruptible

if TYPE_CHECKING:
    from ..mesh.model import Plan

NAME = "bench"  # of the job, unless the environment gives another: a bench beside an engine must not meet it
_NET = Path("/sys/class/net")


@dataclass(frozen=True, slots=True)
class Place:
    """Where this rank stands, and where it meets the others."""

    address: str
    rank: int
    world: int
    tls: Tls | None


def place(address: str, settings: Settings, rank: int | None, tls: Path | None, names: str) -> Place:
    """`rank` None: what the plan says of this host. `tls`: directory with ca.pem, cert.pem and key.pem; `names`: the
    certificate names that may take part, by default the plan's hosts. Raises ConfigError."""
    if not settings.plan:
        raise ConfigError(
            "--join needs the plan that says who reaches whom over which port",
            "--plan PLAN, the plan.json that roce-ring plan --out wrote",
        )
    plan = plan_of(settings.plan)
    world = len(plan.hosts)
    if rank is None:
        rank = rank_here(plan, settings.plan)
    elif rank >= world:
        raise ConfigError(f"--rank is {rank}, expected 0 to {world - 1}: plan {settings.plan} has {world} hosts")
    elif len(ports := ranks_by_port(plan)) == 1 and ports != [rank]:
        seen = f"this host has the ports of rank {ports[0]} ({plan.hosts[ports[0]]}) of plan {settings.plan}"
        raise ConfigError(f"--rank is {rank}, but {seen}", "leave --rank out")
    allowed = tuple(one.strip() for one in names.split(",") if one.strip()) or plan.hosts
    files = Tls(tls / "ca.pem", tls / "cert.pem", tls / "key.pem", allowed) if tls else None
    parse_address(address, files, "--join", "--tls DIR, a directory with ca.pem, cert.pem and key.pem")
    if files:
        files.read()  # what is wrong with them is told before anybody waits
    return Place(address, rank, world, files)


def rank_here(plan: Plan, file: str, net: Path | None = None, host: str = "") -> int:
    """The rank whose ports this host has, or whose name it has if no port tells. Raises ConfigError."""
    host = host or socket.gethostname()
    by_mac = ranks_by_port(plan, net)
    by_name = [node.rank for node in plan.nodes if host.split(".")[0] == node.host.split(".")[0]]
    found = by_mac or by_name
    if len(found) != 1:
        why = (
            f"ports of ranks {', '.join(map(str, found))}" if found else "no port and not the name of any of its ranks"
        )
        raise ConfigError(
            f"plan {file} does not tell which rank this host ({host}) is: it has {why}",
            f"--rank 0 to {len(plan.nodes) - 1}, or the plan of this ring",
        )
    return found[0]


def ranks_by_port(plan: Plan, net: Path | None = None) -> list[int]:
    """The ranks of which this host has a port."""
    macs = {path.read_text(encoding="ascii").strip().lower() for path in (net or _NET).glob("*/address")}
    return [node.rank for node in plan.nodes if macs & {hca.mac.lower() for hca in node.hcas}]


def run_member(
    place: Place, spec: Spec, settings: Settings, timeout_s: float, tell: Callable[[Answer], object]
) -> Result:
    """Runs `spec` as one rank; the same result on all. `tell` gets progress (rank 0) and log records as they come.
    Raises RoceRingError, on every rank if one fails after the meeting."""
    settings = spec.roomy(settings)
    if spec.ops == ["all_reduce"] and not any(
        modes()[one].needs_forwarding(place.world) for one in spec.modes or ["full"]
    ):
        settings = replace(settings, mode=spec.modes[0])  # so that nobody but ring neighbours is connected
    if settings.name == Settings().name:
        settings = replace(settings, name=NAME)
    with interruptible(), _forwarded(tell):
        exchange = RendezvousExchange(
            place.address, place.rank, place.world, job=settings.name, timeout_s=timeout_s, tls=place.tls
        )
        with contextlib.closing(exchange):
            agree(exchange, {f"bench {key}": str(value) for key, value in msgspec.to_builtins(spec).items()}, timeout_s)
            with AllReduce(exchange, settings, device=spec.device_of(place.rank), profile=spec.profile) as communicator:
                result = measure(spec, exchange, communicator, None, tell)
                exchange.barrier(timeout_s)  # nobody leaves while others still measure
        return result


@contextlib.contextmanager
def _forwarded(tell: Callable[[Answer], object]) -> Iterator[None]:
    class Handler(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            tell(Logged(record.getMessage()))

    handler = Handler(logging.WARNING)
    logging.getLogger().addHandler(handler)
    try:
        yield
    finally:
        logging.getLogger().removeHandler(handler)
