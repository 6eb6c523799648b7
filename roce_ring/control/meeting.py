"""The state behind a rendezvous: who has joined, who gave what to which round, and why it failed. No gRPC here.

A meeting fails once and for good, for every rank and with one sentence, so that no rank starts alone. It fails when
world sizes differ, a rank joins twice, a rank does not arrive in time, or a rank that is still needed leaves.
"""

from __future__ import annotations

import secrets
import threading
import time
from dataclasses import dataclass, field

from ..errors import SetupError

MAX_WORLD = 16
MAX_PAYLOAD_BYTES = 1 << 20
MAX_TIMEOUT_S = 3600.0


class ExchangeError(SetupError):
    """Ranks could not meet, or one that did went away. The same sentence on every rank that is reached."""

    def __init__(self, message: str, hint: str = "") -> None:
        super().__init__(message, hint)
        self.code = "exchange"


@dataclass(frozen=True, slots=True)
class Identity:
    """Who wants to take part."""

    job: str
    rank: int
    world: int
    host: str
    pid: int

    def __str__(self) -> str:
        return f"pid {self.pid} on {self.host}"


@dataclass(slots=True)
class _Member:
    identity: Identity
    rounds: int = 0  # given so far
    gone: str = ""  # why it no longer takes part


@dataclass(slots=True)
class _Round:
    payloads: dict[int, bytes] = field(default_factory=dict)
    taken: int = 0


class Meeting:
    """One job's ranks 0..world-1. Thread-safe; every wait is bounded."""

    def __init__(self, job: str, world: int, address: str) -> None:
        self.job, self.world, self.address = job, world, address
        self.failure: ExchangeError | None = None
        self._members: dict[int, _Member] = {}
        self._tokens: dict[bytes, int] = {}
        self._rounds: dict[int, _Round] = {}
        self._told: set[int] = set()  # ranks that came after the failure
        self._change = threading.Condition()

    def join(self, who: Identity) -> bytes:
        """Returns the token that later calls show. Raises ExchangeError."""
        with self._change:
            host = self._members[0].identity if 0 in self._members else who
            if who.job != self.job:  # a stray: it must not harm the job that meets here
                raise ExchangeError(
                    f"address {self.address} belongs to job {self.job!r} (rank 0: {host}), not to job {who.job!r}",
                    "give each job an address of its own",
                )
            if self.failure:
                self._told.add(who.rank)
                self._change.notify_all()
                raise self.failure
            if who.world != self.world:
                members = [*(member.identity for member in self._members.values()), who]
                said = {world: [one.rank for one in members if one.world == world] for world in (self.world, who.world)}
                raise self.fail(
                    "world sizes differ: "
                    + "; ".join(
                        f"{ranks(who_says)} {'say' if len(who_says) > 1 else 'says'} {world}"
                        for world, who_says in said.items()
                    ),
                    "start every rank with the same world size",
                )
            if who.rank in self._members:
                first = self._members[who.rank].identity
                sentence = f"rank {who.rank} joined twice: {first} and {who}"
                hint = f"give every process a rank of its own, 0 to {self.world - 1}"
                if str(first) == str(who):
                    sentence = f"rank {who.rank} joined twice: {who}, both times"
                    hint = "give a second communicator of one process an address and a ROCE_RING_NAME of its own"
                if len(self._members) == self.world and all(member.rounds for member in self._members.values()):
                    raise ExchangeError(f"{sentence}; the first one's job is complete and goes on", hint)
                raise self.fail(sentence, hint)
            token = secrets.token_bytes(16)
            self._members[who.rank] = _Member(who)
            self._tokens[token] = who.rank
            self._change.notify_all()
            return token

    def all_gather(self, token: bytes, number: int, payload: bytes, timeout_s: float) -> list[bytes]:
        """Everybody's bytes of round `number`, index = rank. Raises ExchangeError within `timeout_s`."""
        deadline = time.monotonic() + timeout_s
        with self._change:
            rank = self._rank(token)
            member = self._members[rank]
            if self.failure:  # the others have given up: this rank must not go on alone
                raise self.failure
            if number != member.rounds:
                raise self.fail(
                    f"rank {rank} gave round {number} after {member.rounds} rounds",
                    "use one version of roce-ring everywhere",
                )
            member.rounds += 1
            this = self._rounds.setdefault(number, _Round())
            this.payloads[rank] = payload
            self._change.notify_all()
            while len(this.payloads) < self.world:
                if self.failure:
                    raise self.failure
                missing = [r for r in range(self.world) if r not in this.payloads]
                for r in missing:
                    if r in self._members and self._members[r].gone:
                        raise self.fail(
                            f"rank {r} ({self._members[r].identity}) {self._members[r].gone}",
                            "read that rank's log; start all ranks again",
                        )
                if time.monotonic() >= deadline:
                    raise self._expired(missing, sorted(this.payloads), timeout_s)
                self._change.wait(deadline - time.monotonic())
            this.taken += 1
            if this.taken == self.world:
                del self._rounds[number]
            return [this.payloads[r] for r in range(self.world)]

    def leave(self, token: bytes, why: str) -> None:
        """The rank takes no further part. `why` completes "rank 2 ...". The first reason stands."""
        with self._change:
            member = self._members[self._rank(token)]
            member.gone = member.gone or why
            self._change.notify_all()

    def fail(self, sentence: str, hint: str) -> ExchangeError:
        """The first failure stands, for everybody. Returns it, to raise."""
        with self._change:
            if self.failure is None:
                self.failure = ExchangeError(sentence, hint)
            self._change.notify_all()
            return self.failure

    def wait_all_told(self, timeout_s: float) -> None:
        """Until every rank but 0 has come and gone: whoever comes meanwhile hears why the meeting failed."""

        def all_told() -> bool:
            gone = {rank for rank, member in self._members.items() if member.gone}
            return gone | self._told >= set(range(1, self.world))

        with self._change:
            self._change.wait_for(all_told, timeout_s)

    def _rank(self, token: bytes) -> int:
        if token not in self._tokens:
            raise ExchangeError(
                "this process has not joined the rendezvous", "join first; a restarted rank starts over with all others"
            )
        return self._tokens[token]

    def _expired(self, missing: list[int], arrived: list[int], timeout_s: float) -> ExchangeError:
        joined = [r for r in missing if r in self._members]
        more = f"; {ranks(joined)} joined before and did not come to this step" if joined else ""
        return self.fail(
            f"{ranks(missing)} did not arrive within {timeout_s:g} s; arrived: {', '.join(map(str, arrived))}{more}",
            f"read the log of {ranks(missing)}, and check that it uses address {self.address}",
        )


def ranks(numbers: list[int]) -> str:
    """rank 3, or ranks 0, 1, 3."""
    return f"rank{'s' if len(numbers) > 1 else ''} {', '.join(map(str, numbers))}"
