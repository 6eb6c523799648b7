"""Starts ranks as processes of this machine, listens to them, and leaves nothing behind: no process, socket or file,
whether the run ends, fails, or is interrupted."""

from __future__ import annotations

import contextlib
import os
import selectors
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path
from typing import IO, Any

import msgspec

from ..control.rundir import remove_stale, run_dir
from ..errors import RoceRingError
from ..settings import Settings
from .cases import Spec
from .job import Answer, Failed, Job, Result, decode
from .mps import mps
from .process import interruptible

_GRACE_S = 2.0  # how long ranks may take to leave by themselves
_OTHERS_S = 0.5  # after the first failure, how long to wait for one that explains it
_TAIL_LINES = 5


class RankFailed(RoceRingError):
    """A rank ended before the run did."""


class _Rank:
    """One process, its answers and the end of its stderr."""

    def __init__(self, rank: int, job: Path, stderr: IO[bytes]) -> None:
        self.rank, self.stderr = rank, stderr
        command = [sys.executable, "-m", "roce_ring.bench.rank", str(job), str(rank)]
        # A process group of its own: Ctrl-C reaches the launcher alone, which then stops all ranks in order.
        self.process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=stderr, process_group=0
        )
        assert self.process.stdout
        self.answers: Any = self.process.stdout
        os.set_blocking(self.answers.fileno(), False)
        self._begun = b""
        self.failed: Failed | None = None

    def read(self) -> list[Answer] | None:
        """Whole lines that have come; None at the end of the stream."""
        raw: bytes | None = self.answers.read(1 << 16)  # None: nothing there now
        if raw is None:
            return []
        *lines, self._begun = (self._begun + raw).split(b"\n")
        return [decode(line) for line in lines] if raw else None

    def tail(self) -> str:
        self.stderr.seek(0)
        lines = self.stderr.read().decode(errors="replace").strip().splitlines()
        return "".join(f"\n  | {line}" for line in lines[-_TAIL_LINES:])

    def ended(self) -> str:
        code = self.process.returncode
        if code < 0:
            with contextlib.suppress(ValueError):
                return f"was killed by {signal.Signals(-code).name}"
        return f"ended with status {code}"


def run_local(world: int, spec: Spec, settings: Settings, paths: int, tell: Callable[[Answer], None]) -> Result:
    """Runs `spec` on `world` new processes. `tell` gets progress and log records as they come. Raises RankFailed with
    the rank's own words, or with how it ended."""
    settings = replace(spec.roomy(settings), name=f"bench-{os.getpid()}")
    with contextlib.ExitStack() as cleanup:
        cleanup.enter_context(interruptible())
        # Only this user can look into the directory; what is in it goes with it.
        place = Path(cleanup.enter_context(tempfile.TemporaryDirectory(prefix="roce-ring-bench-")))
        cleanup.callback(_remove_sockets, settings)
        address = f"unix:{place / 'meet.sock'}"
        job = Job(os.getpid(), world, address, str(place / "gloo"), paths, asdict(settings), spec)
        order = place / "job.json"
        order.write_bytes(msgspec.json.encode(job))
        if spec.share == "mps":
            cleanup.enter_context(mps())
        ranks: list[_Rank] = []
        cleanup.callback(_stop, ranks)
        for rank in range(world):
            stderr = cleanup.enter_context((place / f"rank-{rank}.stderr").open("w+b"))
            ranks.append(_Rank(rank, order, stderr))
        result = _listen(ranks, tell)
        for one in ranks:
            one.process.wait(_GRACE_S)
        return result


def _listen(ranks: list[_Rank], tell: Callable[[Answer], None]) -> Result:
    """Until every rank has closed its stream. Sleeps until somebody says something: the ranks need the cores."""
    result: Result | None = None
    deadline: float | None = None
    with selectors.DefaultSelector() as open_streams:
        for one in ranks:
            open_streams.register(one.answers, selectors.EVENT_READ, one)
        while open_streams.get_map():
            left = None if deadline is None else deadline - time.monotonic()
            if left is not None and left <= 0:
                break
            for key, _ in open_streams.select(left):
                rank: _Rank = key.data
                answers = rank.read()
                if answers is None:
                    open_streams.unregister(rank.answers)
                    if rank.process.wait(_GRACE_S) != 0:
                        deadline = deadline or time.monotonic() + _OTHERS_S
                for answer in answers or []:
                    if isinstance(answer, Result):
                        result = answer
                    elif isinstance(answer, Failed):
                        rank.failed = answer
                    elif deadline is None:
                        tell(answer)
    if deadline is not None or result is None:
        raise _what_happened(ranks)
    return result


def _what_happened(ranks: list[_Rank]) -> RankFailed:
    """A rank that could not say why it ended explains those that could: they lost a peer."""
    ended = [one for one in ranks if one.process.poll()]
    speechless = [one for one in ended if not one.failed]
    if speechless:
        sentences = [f"rank {one.rank} (pid {one.process.pid}) {one.ended()}{one.tail()}" for one in speechless]
        return RankFailed("rank", "; ".join(sentences) + "\nall other ranks were stopped", "start it again")
    if not ended:
        return RankFailed("rank", "the ranks ended without a result", "report this")
    failed = ended[0].failed
    assert failed
    return RankFailed("rank", failed.message, failed.hint)


def _stop(ranks: list[_Rank]) -> None:
    """Asks, waits, kills. Ends only what this launcher started."""
    for one in ranks:
        if one.process.poll() is None:
            one.process.terminate()
    deadline = time.monotonic() + _GRACE_S
    for one in ranks:
        try:
            one.process.wait(max(deadline - time.monotonic(), 0.01))
        except subprocess.TimeoutExpired:
            one.process.kill()
            one.process.wait()
        one.answers.close()


def _remove_sockets(settings: Settings) -> None:
    """Control sockets of ranks that had no time to."""
    directory = run_dir(settings.run_dir)
    if directory.is_dir():
        remove_stale(directory)
