"""How ranks meet before anything moves over the fabric, and how they make sure that they agree.

Nothing here imports grpc or torch until an exchange is made. All waits are bounded, and errors name the ranks.
"""

from __future__ import annotations

import json
import logging
import re
import threading
from collections.abc import Mapping
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Protocol

from .control.address import Tls, parse_address
from .control.meeting import MAX_PAYLOAD_BYTES, MAX_TIMEOUT_S, MAX_WORLD, ExchangeError, ranks
from .errors import ConfigError, SetupError

if TYPE_CHECKING:
    from .control.address import Address
    from .control.meeting import Identity
    from .control.rendezvous import Guest, Host

log = logging.getLogger(__name__)

_SAY_AFTER_S = 5.0
_HASH = re.compile(r"[0-9a-f]{32,}")
_HASH_SHOWN = 12  # digits, as roce-ring plan prints

__all__ = ["Exchange", "ExchangeError", "RendezvousExchange", "Tls", "TorchExchange", "agree", "gather_errors"]


class Exchange(Protocol):
    """What a session needs from whatever brought its ranks together. Every rank makes the same calls in order."""

    rank: int
    world: int

    def all_gather(self, payload: bytes, timeout_s: float) -> list[bytes]:
        """Everybody's bytes, index = rank. Raises ExchangeError naming the ranks that did not come in `timeout_s`."""
        ...

    def barrier(self, timeout_s: float) -> None: ...

    def close(self) -> None: ...


class RendezvousExchange:
    """Ranks meet at an address that rank 0 serves, started in any order.

    `address`: `unix:/path` or `127.0.0.1:port` for one host; `host:port` for several, with mutual TLS only. `job`: any
    word that all ranks of one job share and another job does not. Returns once all ranks are there, or raises
    ExchangeError on every rank within `timeout_s`."""

    def __init__(
        self,
        address: str,
        rank: int,
        world: int,
        *,
        job: str = "default",
        timeout_s: float = 60.0,
        tls: Tls | None = None,
    ) -> None:
        where = parse_address(address, tls)
        problems = [
            f"{name} is {value!r}, expected a whole number"
            for name, value in (("rank", rank), ("world", world))
            if not isinstance(value, int) or isinstance(value, bool)
        ]
        if problems:
            raise ConfigError("; ".join(problems), "int(...) what came from the command line or the environment")
        if not 1 <= world <= MAX_WORLD:
            problems.append(f"world is {world}, expected 1 to {MAX_WORLD}")
        elif not 0 <= rank < world:
            problems.append(f"rank is {rank}, expected 0 to {world - 1} in a world of {world}")
        if not 0 < len(job) <= 64 or not job.isprintable():
            problems.append(f"job is {job[:80]!r}, expected 1 to 64 printable characters")
        problems += _timeout_problem(timeout_s)
        if problems:
            raise ConfigError("; ".join(problems))
        self.rank, self.world = rank, world
        self._side: Host | Guest | None = None
        if world == 1:
            return
        from .control.rendezvous import identify

        who = identify(job, rank, world)
        # A person at a second terminal looks at this one: after a few seconds it must say what it waits for.
        whom = f"the other {world - 1} of {world} ranks" if rank == 0 else "rank 0 and the others"
        waiting = threading.Timer(_SAY_AFTER_S, log.warning, ("rank %d waits at %s for %s", rank, address, whom))
        waiting.daemon = True
        waiting.start()
        try:
            self._meet(where, tls, who, timeout_s)
        finally:
            waiting.cancel()

    def _meet(self, where: Address, tls: Tls | None, who: Identity, timeout_s: float) -> None:
        from .control.rendezvous import AddressTakenError, Guest, Host

        if self.rank == 0:
            try:
                self._side = Host(where, tls, who)
            except AddressTakenError as taken:
                # Whoever serves it knows best why a second rank 0 cannot: it answers with its own job.
                try:
                    Guest(where, tls, who, min(timeout_s, 2.0)).close()
                except ExchangeError as error:
                    if "did not arrive" not in error.message:
                        raise
                raise ExchangeError(str(taken), "stop what serves it, or give this job another address") from taken
        else:
            self._side = Guest(where, tls, who, timeout_s)
        try:
            self.barrier(timeout_s)
        except BaseException:
            self.close()
            raise

    def all_gather(self, payload: bytes, timeout_s: float) -> list[bytes]:
        problems = _timeout_problem(timeout_s) + _payload_problem(payload)
        if problems:
            raise ConfigError("; ".join(problems))
        if self._side is None:
            if self.world > 1:
                raise ExchangeError("this exchange is closed", "make a new one on every rank")
            return [payload]
        return self._side.all_gather(payload, timeout_s)

    def barrier(self, timeout_s: float) -> None:
        self.all_gather(b"", timeout_s)

    def close(self) -> None:
        """Leaves. On rank 0 of a failed meeting it first tells ranks that come late, for up to 3 s."""
        side, self._side = self._side, None
        if side is not None:
            side.close()


class TorchExchange:
    """Ranks that torch.distributed has brought together, over a CPU (gloo) process group that stays the caller's.

    Sends to every peer and receives from every peer one by one instead of calling a gloo collective, because then every
    rank, not only rank 0, knows which peer did not come. After a failure gloo's connection to that peer is unusable."""

    def __init__(self, group: Any = None) -> None:
        """`group`: a torch ProcessGroup; None is the default group."""
        import torch.distributed as dist

        if not dist.is_initialized():
            raise ConfigError("torch.distributed is not initialised", "call torch.distributed.init_process_group first")
        group = group or dist.group.WORLD
        if dist.get_rank(group) < 0:
            raise ConfigError("this process is not in that process group", "only its members may make an exchange")
        backend = dist.get_backend(group)
        if "gloo" not in backend:
            raise ConfigError(
                f"this process group's backend is {backend}, expected gloo: set-up data lives on the CPU",
                "pass torch.distributed.new_group(backend='gloo')",
            )
        self._dist, self._group = dist, group
        self.rank, self.world = dist.get_rank(group), dist.get_world_size(group)

    def all_gather(self, payload: bytes, timeout_s: float) -> list[bytes]:
        import torch

        problems = _timeout_problem(timeout_s) + _payload_problem(payload)
        if problems:
            raise ConfigError("; ".join(problems))
        sizes = self._swap(
            [torch.tensor([len(payload)])] * self.world,
            [torch.zeros(1, dtype=torch.int64) for _ in range(self.world)],
            timeout_s,
        )
        lengths = [int(size.item()) for size in sizes]
        lengths[self.rank] = len(payload)
        for rank, length in enumerate(lengths):
            if not 0 <= length <= MAX_PAYLOAD_BYTES:
                raise ExchangeError(
                    f"rank {rank} announced {length} bytes, the limit is {MAX_PAYLOAD_BYTES}",
                    "use one version of roce-ring everywhere",
                )
        mine = torch.frombuffer(bytearray(payload), dtype=torch.uint8) if payload else torch.zeros(0, dtype=torch.uint8)
        rooms = [torch.zeros(length, dtype=torch.uint8) for length in lengths]
        out = [room.numpy().tobytes() for room in self._swap([mine] * self.world, rooms, timeout_s)]
        out[self.rank] = payload
        return out

    def _swap(self, outgoing: list[Any], incoming: list[Any], timeout_s: float) -> list[Any]:
        """Sends outgoing[p] to, fills incoming[p] from every other p. Raises ExchangeError naming who did not come."""
        import time

        deadline = time.monotonic() + timeout_s
        peers = [p for p in range(self.world) if p != self.rank]
        pending = []
        failed: set[int] = set()
        for p in peers:
            there = self._dist.get_global_rank(self._group, p)
            for start, tensor in ((self._dist.isend, outgoing[p]), (self._dist.irecv, incoming[p])):
                if tensor.numel() and p not in failed:
                    try:
                        pending.append((p, start(tensor, there, group=self._group)))
                    except RuntimeError:  # the connection is gone already
                        failed.add(p)
        for p, work in pending:
            left = max(deadline - time.monotonic(), 0.001)
            try:
                if work is not None and not work.wait(timedelta(seconds=left)):
                    failed.add(p)
            except RuntimeError:  # timed out, or the connection broke
                failed.add(p)
        if failed:
            arrived = sorted(set(range(self.world)) - set(failed))
            missing = ranks(sorted(failed))
            raise ExchangeError(
                f"{missing} went away or did not arrive within {timeout_s:g} s; "
                f"arrived: {', '.join(map(str, arrived))}",
                f"read the log of {missing}; start all ranks again",
            )
        return incoming

    def barrier(self, timeout_s: float) -> None:
        self.all_gather(b"", timeout_s)

    def close(self) -> None:
        """Nothing: the process group is its owner's."""


def agree(exchange: Exchange, facts: Mapping[str, str | int], timeout_s: float = 60.0) -> None:
    """Collective. Raises SetupError on every rank, with a table of what differs, unless all ranks pass equal facts."""
    everybody = [
        _decode(rank, raw) for rank, raw in enumerate(exchange.all_gather(json.dumps(dict(facts)).encode(), timeout_s))
    ]
    keys = list(dict.fromkeys(key for one in everybody for key in one))
    rows = []
    for key in keys:
        says: dict[str, list[int]] = {}
        for rank, one in enumerate(everybody):
            says.setdefault(str(one[key]) if key in one else "(nothing)", []).append(rank)
        if len(says) > 1:
            columns = sorted(says.items(), key=lambda item: (-len(item[1]), item[1]))
            told = [
                (ranks(who), "say" if len(who) > 1 else "says", _shown(value, list(says))) for value, who in columns
            ]
            rows.append([key, *map(" ".join, told)])
    if rows:
        raise SetupError(
            f"ranks differ in {len(rows)} of {len(keys)} facts, so no rank started:\n" + _table(rows),
            "make these equal on every rank (same version, same plan, same settings), then start all ranks again",
        )


def gather_errors(exchange: Exchange, error: str | None, timeout_s: float = 60.0) -> None:
    """Collective. Raises SetupError on every rank, listing every rank's error, if any rank has one."""
    raw = exchange.all_gather((error or "").encode()[:4096], timeout_s)
    errors = [(rank, one.decode(errors="replace")) for rank, one in enumerate(raw) if one]
    if errors:
        lines = "".join(f"\n  rank {rank}: {text}" for rank, text in errors)
        who = ranks([rank for rank, _ in errors])
        raise SetupError(f"set-up failed on {who}, so no rank started:{lines}", "fix these, then start all ranks again")


def _decode(rank: int, raw: bytes) -> dict[str, str | int]:
    try:
        one = json.loads(raw)
    except ValueError:
        one = None
    if not isinstance(one, dict) or not all(isinstance(value, str | int) for value in one.values()):
        raise ExchangeError(
            f"rank {rank} sent something that is not a list of facts", "use one version of roce-ring everywhere"
        )
    return one


def _shown(value: str, among: list[str]) -> str:
    """A long hash by as many digits as roce-ring plan prints, or as tell it from the others."""
    if not _HASH.fullmatch(value):
        return value
    digits = next(n for n in range(_HASH_SHOWN, len(value) + 1) if len({one[:n] for one in among}) == len(among))
    return value[:digits]


def _table(rows: list[list[str]]) -> str:
    width = [max(len(row[i]) for row in rows if i < len(row)) for i in range(max(map(len, rows)))]
    return "\n".join("  " + " | ".join(cell.ljust(width[i]) for i, cell in enumerate(row)).rstrip() for row in rows)


def _timeout_problem(timeout_s: float) -> list[str]:
    return (
        []
        if 0 < timeout_s <= MAX_TIMEOUT_S
        else [f"timeout_s is {timeout_s}, expected more than 0 and at most {MAX_TIMEOUT_S:g}"]
    )


def _payload_problem(payload: bytes) -> list[str]:
    return (
        []
        if len(payload) <= MAX_PAYLOAD_BYTES
        else [f"payload has {len(payload)} bytes, the limit is {MAX_PAYLOAD_BYTES}"]
    )
