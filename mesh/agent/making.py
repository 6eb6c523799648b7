"""Makes things and takes them back, one command at a time, with the record always ahead of the deed."""

from __future__ import annotations

import contextlib
import logging
import subprocess
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from pathlib import Path

from ..finding import Finding, finding
from ..marker import PROGRAM, RUN_DIR, marker_program, running
from ..model import NodePlan
from ..snapshot import CommandFailed, Run, Snapshot, run_command
from ..things import Clsact, Queue, Step, Thing
from .dataplane import SYSFS, Dataplane
from .state import State

log = logging.getLogger(__name__)
_BACK_POLL_S = 0.2
_READY_S = 10  # a marker installs a handful of rules in milliseconds


class Maker:
    """Runs steps. ``keep`` writes the state to disk."""

    def __init__(self, state: State, keep: Callable[[], None], run: Run = run_command, sysfs: Path = SYSFS) -> None:
        self._state, self._keep, self._run, self._sysfs = state, keep, run, sysfs
        self._started: list[subprocess.Popen[bytes]] = []

    def make(self, things: Sequence[Thing], now: Snapshot, remember: bool) -> None:
        """Raises CommandFailed at the first command that fails; what was made before stays.

        ``remember``: what is in a thing's place now is what a teardown brings back.
        """
        for thing in things:
            if thing.key not in self._state.owned:
                self._state.owned[thing.key] = dict(thing.save(now)) if remember else {}
        self._keep()
        for thing in things:
            if isinstance(thing, Queue):
                self._resize(thing)
            else:
                self._steps(thing.make())

    def _resize(self, queue: Queue) -> None:
        """A failure is kept, not raised: the plan's size limits are those of the queue as it was, slower and safe.
        It is written down before, so that a reload that takes the machine down is not repeated at every boot."""
        tried = self._state.queues_tried
        tried[queue.hca.pci] = "the agent or the machine went down during its reload"
        self._keep()
        try:
            self._steps(queue.make())
            del tried[queue.hca.pci]
        except CommandFailed as failed:
            tried[queue.hca.pci] = str(failed)
            with contextlib.suppress(CommandFailed):  # it may have taken MTU and address all the same
                self._steps(queue.restore())
        self._keep()

    def unmake(self, thing: Thing, now: Snapshot) -> None:
        """One thing that has to go for a moment; it stays ours. Raises CommandFailed."""
        if thing.sight(now).state != "absent":
            self._steps(thing.unmake(self._state.owned.get(thing.key, {})))

    def take_back(self, node: NodePlan, plane: Dataplane, keys: Collection[str]) -> list[Finding]:
        """Takes back those of our things that ``keys`` names, last made first. What cannot be taken back is a finding,
        and stays ours. The caller keeps the state."""
        left: list[Finding] = []
        now = plane.look(node)
        filtered = False
        for thing in reversed(plane.things(node)):
            if thing.key not in keys or thing.key not in self._state.owned:
                continue
            if isinstance(thing, Clsact) and not filtered:
                filtered, now = True, plane.look(node)  # what hangs on it, now that our own filters are gone
            if problem := self._take_back(thing, now):
                fix = "take it back by hand; the agent tries again until it is gone"
                left.append(finding("object-failed", f"{node.host}: {thing.key}", problem, "gone", fix))
            else:
                del self._state.owned[thing.key]
        return left

    def _take_back(self, thing: Thing, now: Snapshot) -> str:
        sight = thing.sight(now)
        if sight.state == "other" and sight.code != "rule-not-in-hardware":  # that one is ours, and no use
            log.warning("%s is not ours any more (%s): left as it is", thing.key, sight.seen)
            return ""
        if sight.state == "absent" and not self._state.owned[thing.key]:
            return ""
        if why := thing.in_use(now):
            log.warning("%s stays: %s", thing.key, why)
            return ""
        try:
            self._steps(thing.unmake(self._state.owned[thing.key]))
        except CommandFailed as failed:
            return str(failed)
        return ""

    def _steps(self, steps: Iterator[Step]) -> None:
        for step in steps:
            log.info("%s", step)
            if step.netdev:
                self._wait_for(step)
            elif step.detached:
                self._start(step)
            elif step.argv[0] == PROGRAM:
                self._run(_beside(step.argv), timeout_s=step.timeout_s)
            else:
                self._run(step.argv, timeout_s=step.timeout_s)

    def _wait_for(self, step: Step) -> None:
        """Both get their names from udev, one by one, after the reload is done."""
        deadline = time.monotonic() + step.timeout_s
        while True:
            with contextlib.suppress(CommandFailed):
                self._run(("ip", "-j", "link", "show", "dev", step.netdev))
                if (self._sysfs / "class" / "infiniband" / step.rdma).exists():
                    return
            if time.monotonic() > deadline:
                both = f"{step.netdev} and {step.rdma}"
                raise CommandFailed(f"{both} did not come back within {step.timeout_s:g} s of their function's reload")
            time.sleep(_BACK_POLL_S)

    def _start(self, step: Step) -> None:
        """A program that outlives the agent: in a session of its own, its words in a file beside its state."""
        device = step.argv[step.argv.index("--device") + 1]
        said = RUN_DIR / f"{device}.log"
        try:
            argv = _beside(step.argv)
            for folder in (RUN_DIR.parent, RUN_DIR):  # as closed as those who share them want them
                folder.mkdir(mode=0o750, exist_ok=True)
            with said.open("wb") as out:
                process = subprocess.Popen(
                    argv, stdin=subprocess.DEVNULL, stdout=out, stderr=subprocess.STDOUT, start_new_session=True
                )
        except OSError as error:
            raise CommandFailed(f"'{step}' cannot be started: {error}") from None
        self._started.append(process)
        deadline = time.monotonic() + _READY_S
        while time.monotonic() < deadline:
            found = running(device)
            if found is not None and found.marks is not None:
                return
            if process.poll() is not None:
                words = " ".join(said.read_text(errors="replace").split()) or f"exit status {process.returncode}"
                raise CommandFailed(f"'{step}' ended at once: {words}")
            time.sleep(0.02)
        process.terminate()
        raise CommandFailed(f"'{step}' was not ready within {_READY_S} s; it was stopped")

    def reap(self) -> None:
        """Programs of ours that ended leave nothing behind in the process table."""
        self._started = [process for process in self._started if process.poll() is None]


def _beside(argv: Sequence[str]) -> tuple[str, ...]:
    """The marker's command with its program as installed with us: a service's PATH need not lead there."""
    try:
        return str(marker_program()), *argv[1:]
    except FileNotFoundError as error:
        raise CommandFailed(str(error)) from None
