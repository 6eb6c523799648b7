"""Real rank processes for a test: started together, led through steps, bounded in time, and gone afterwards.

A scenario is a function of one `Rank`, at the top level of a test module; every rank runs it in a process of its own.
What it returns, raises and logs comes back as an `Outcome`. A rank says "I am there" with say(), and waits for the test
with wait().
"""

from __future__ import annotations

import logging
import multiprocessing
import os
import re
import signal
import tempfile
import time
import traceback
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from importlib.util import find_spec
from multiprocessing.connection import Connection
from pathlib import Path
from shutil import rmtree
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from roce_ring.communicator import AllReduce
    from roce_ring.settings import Settings

# A fork of a process that has imported everything and started nothing: 20 ms a rank instead of a second.
_processes = multiprocessing.get_context("forkserver")
_processes.set_forkserver_preload(
    [
        "pytest",
        "numpy",
        "roce_ring.communicator",
        "roce_ring.control.client",
        "roce_ring.control.rendezvous",
        "roce_ring.control.server",
        *(["torch", "torch._dynamo"] if find_spec("torch") else []),  # DDP loads the latter
    ]
)

MEETING_S = 20.0
# Say something about the machine that runs the tests, never about the test.
_BUSY_HOST = r"was not scheduled for|^rank \d+ waits at .* for "


@dataclass(frozen=True, slots=True)
class Failure:
    """An exception, across a process boundary."""

    type: str
    family: tuple[str, ...]  # the names of its classes, itself included
    code: str
    message: str
    hint: str
    culprit: int | None
    traceback: str

    @classmethod
    def of(cls, error: BaseException) -> Failure:
        return cls(
            type(error).__name__,
            tuple(one.__name__ for one in type(error).__mro__),
            getattr(error, "code", ""),
            getattr(error, "message", str(error)),
            getattr(error, "hint", ""),
            getattr(error, "culprit", None),
            "".join(traceback.format_exception(error)),
        )


@dataclass(frozen=True, slots=True)
class Outcome:
    rank: int
    value: Any
    error: Failure | None
    log: tuple[tuple[str, str], ...]  # (level, message)
    ended: float  # time.monotonic(), which all processes of a machine share

    def said(self, pattern: str) -> list[str]:
        return [message for _, message in self.log if re.search(pattern, message)]


class _Recorder(logging.Handler):
    def __init__(self) -> None:
        super().__init__(logging.INFO)
        self.records: list[tuple[str, str]] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.records.append((record.levelname, record.getMessage()))


class Rank:
    """What a scenario is given."""

    def __init__(self, rank: int, world: int, where: Path, pipe: Connection, base: dict[str, Any]) -> None:
        self.rank, self.world, self.where = rank, world, where
        self.address = f"unix:{where}/meet.sock"
        self._pipe, self._base = pipe, base

    def settings(self, **more: Any) -> Settings:
        """Lateness is reported late, so that a busy machine does not log what the test is not about."""
        from roce_ring.settings import Settings

        base = replace(Settings(), max_bytes=1 << 20, name="local", run_dir=str(self.where), late_s=10.0)
        return replace(base, **(self._base | more))

    def communicator(self, **settings: Any) -> AllReduce:
        from roce_ring.communicator import AllReduce

        return AllReduce.from_rendezvous(
            self.address, self.rank, self.world, timeout_s=MEETING_S, settings=self.settings(**settings)
        )

    def say(self, step: str) -> None:
        self._pipe.send(step)

    def wait(self, timeout_s: float = 30.0) -> None:
        """Until the test says go()."""
        assert self._pipe.poll(timeout_s), f"rank {self.rank} was never told to go on"
        self._pipe.recv()

    def told(self) -> bool:
        """Whether the test has said go()."""
        return self._pipe.poll(0) and bool(self._pipe.recv())


def _main(
    scenario: Callable[..., Any],
    rank: int,
    world: int,
    where: Path,
    pipe: Connection,
    base: dict[str, Any],
    options: dict[str, Any],
) -> None:
    log = _Recorder()
    logging.getLogger().addHandler(log)
    logging.getLogger().setLevel(logging.INFO)
    value, error = None, None
    try:
        value = scenario(Rank(rank, world, where, pipe, base), **options)
    except BaseException as raised:
        error = Failure.of(raised)
    time.sleep(0.06)  # the session hands its last events over every 50 ms
    pipe.send(Outcome(rank, value, error, tuple(log.records), time.monotonic()))


def _check_log(outcomes: list[Outcome], allow: tuple[str, ...]) -> None:
    patterns = (*allow, _BUSY_HOST)
    odd = [
        f"rank {one.rank}: {level}: {message}"
        for one in outcomes
        for level, message in one.log
        if level not in ("DEBUG", "INFO") and not any(re.search(pattern, message) for pattern in patterns)
    ]
    assert not odd, "ranks logged what the test did not expect:\n" + "\n".join(odd)


@dataclass
class _Process:
    process: Any
    pipe: Connection
    killed: bool = False
    steps: list[str] = field(default_factory=list)
    outcome: Outcome | None = None


class Ranks:
    """One world of rank processes, as the test sees it."""

    def __init__(
        self,
        scenario: Callable[..., Any],
        world: int,
        where: Path,
        settings: dict[str, Any],
        per_rank: dict[int, dict[str, Any]],
        options: dict[str, Any],
    ) -> None:
        self.world, self.where = world, where
        self._ranks: list[_Process] = []
        for rank in range(world):
            ours, theirs = multiprocessing.Pipe()
            given = options | per_rank.get(rank, {})
            process = _processes.Process(target=_main, args=(scenario, rank, world, where, theirs, settings, given))
            process.start()
            theirs.close()
            self._ranks.append(_Process(process, ours))

    def pid(self, rank: int) -> int:
        return int(self._ranks[rank].process.pid)

    def wait_for(self, step: str, ranks: Iterable[int] | None = None, timeout_s: float = 30.0) -> None:
        """Until these ranks (by default all that were not killed) have said `step`."""
        deadline = time.monotonic() + timeout_s
        for rank in range(self.world) if ranks is None else ranks:
            one = self._ranks[rank]
            while not one.killed and step not in one.steps:
                ended = not self._receive(rank, deadline)
                if one.outcome is not None or ended:
                    raise AssertionError(f"rank {rank} did not reach {step!r}: {self._describe(rank)}")

    def wait_for_end(self, rank: int, timeout_s: float = 30.0) -> None:
        """Until this rank's scenario is over, well or not."""
        deadline = time.monotonic() + timeout_s
        while self._ranks[rank].outcome is None and self._receive(rank, deadline):
            pass
        assert self._ranks[rank].outcome, f"rank {rank} hangs: {self._describe(rank)}"

    def go(self, ranks: Iterable[int] | None = None) -> None:
        for rank in range(self.world) if ranks is None else ranks:
            if not self._ranks[rank].killed:
                self._ranks[rank].pipe.send("go")

    def kill(self, rank: int) -> float:
        """kill -9. Returns when, by time.monotonic()."""
        self._ranks[rank].killed = True
        os.kill(self.pid(rank), signal.SIGKILL)
        return time.monotonic()

    def dies(self, rank: int) -> None:
        """This rank's scenario ends its own process."""
        self._ranks[rank].killed = True

    def stop(self, rank: int) -> None:
        os.kill(self.pid(rank), signal.SIGSTOP)

    def resume(self, rank: int) -> None:
        os.kill(self.pid(rank), signal.SIGCONT)

    def finish(self, allow: tuple[str, ...] = (), timeout_s: float = 40.0) -> list[Outcome]:
        """Outcomes of all ranks that were not killed. Fails if one hangs, or logs a warning that `allow` lacks."""
        outcomes = self._collect(timeout_s)
        _check_log(outcomes, allow)
        return outcomes

    def _collect(self, timeout_s: float) -> list[Outcome]:
        deadline = time.monotonic() + timeout_s
        outcomes = []
        for rank, one in enumerate(self._ranks):
            while not one.killed and one.outcome is None and self._receive(rank, deadline):
                pass
            one.process.join(max(deadline - time.monotonic(), 1.0))
            assert one.process.exitcode is not None, f"rank {rank} hangs: {self._describe(rank)}"
            if not one.killed:
                assert one.outcome is not None, f"rank {rank} said nothing: {self._describe(rank)}"
                outcomes.append(one.outcome)
        return outcomes

    def values(self, allow: tuple[str, ...] = (), timeout_s: float = 40.0) -> list[Any]:
        """finish(), where no rank may fail; what the scenarios returned."""
        outcomes = self._collect(timeout_s)
        failed = [f"rank {one.rank}: {one.error.traceback}" for one in outcomes if one.error]
        assert not failed, "\n".join(failed)
        _check_log(outcomes, allow)
        return [one.value for one in outcomes]

    def errors(self, allow: tuple[str, ...] = (), timeout_s: float = 40.0) -> list[Failure]:
        """finish(), where every rank must fail."""
        outcomes = self.finish(allow, timeout_s)
        fine = [one.rank for one in outcomes if one.error is None]
        assert not fine, f"expected an error on every rank, ranks {fine} had none"
        return [one.error for one in outcomes if one.error]

    def _receive(self, rank: int, deadline: float) -> bool:
        """Takes one message. False: none came in time, or the process is gone."""
        one = self._ranks[rank]
        try:
            if not one.pipe.poll(max(deadline - time.monotonic(), 0)):
                return False
            message = one.pipe.recv()
        except (EOFError, ConnectionResetError):
            return False
        if isinstance(message, Outcome):
            one.outcome = message
        else:
            one.steps.append(message)
        return True

    def _describe(self, rank: int) -> str:
        one = self._ranks[rank]
        one.process.join(0.2)
        error = one.outcome.error.traceback if one.outcome and one.outcome.error else ""
        value = one.outcome and one.outcome.value
        return f"steps {one.steps}, exit status {one.process.exitcode}, outcome {value}\n{error}"

    def clean_up(self) -> list[str]:
        """Ends what still runs; returns what should not have been there."""
        left = []
        for rank, one in enumerate(self._ranks):
            if one.process.is_alive():
                if not one.killed:
                    left.append(f"process of rank {rank}")
                one.process.kill()
                one.process.join()
            if not one.killed:
                left += [str(path) for path in Path("/dev/shm").glob(f"roce-ring-{one.process.pid}-*")]
            one.pipe.close()
        return left

    def killed(self) -> set[int]:
        return {rank for rank, one in enumerate(self._ranks) if one.killed}


class Starter:
    """Starts worlds, and checks at the end of the test that nothing of them is left."""

    def __init__(self) -> None:
        # Not tmp_path: the path of a unix socket may not be longer than 107 bytes.
        self.where = Path(tempfile.mkdtemp(prefix="roce-ring-test-"))
        self._worlds: list[Ranks] = []

    def __call__(
        self,
        scenario: Callable[..., Any],
        world: int,
        *,
        settings: dict[str, Any] | None = None,
        per_rank: dict[int, dict[str, Any]] | None = None,
        **options: Any,
    ) -> Ranks:
        """`options` are the scenario's arguments; `per_rank` overrides them for single ranks."""
        ranks = Ranks(scenario, world, self.where, settings or {}, per_rank or {}, options)
        self._worlds.append(ranks)
        return ranks

    def close(self) -> None:
        left = [what for world in self._worlds for what in world.clean_up()]
        killed = {rank for world in self._worlds for rank in world.killed()}
        # Who is killed cannot clean up; its sockets go when the next rank of that name starts.
        excused = [f"*-r{rank}.sock*" for rank in killed] + ["meet.sock*"] * (0 in killed)
        left += [str(path) for path in self.where.iterdir() if not any(path.match(one) for one in excused)]
        rmtree(self.where)
        assert not left, "the test left behind: " + ", ".join(left)
