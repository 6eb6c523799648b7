"""The agent of one node: one plan at a time, made true in one go or not at all, and kept true.

Locks: ``_work`` is held by whoever changes the node (a call, or the watch); ``_view`` only to swap what is shown, so
that status is answered while a card reloads for a minute.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Iterable, Iterator
from pathlib import Path

import msgspec

from ..finding import Finding, Refused, finding, raise_errors
from ..loading import plan_from_json
from ..model import NodePlan, Plan
from ..snapshot import CommandFailed, Run, Snapshot, run_command
from ..things import Address, LinkUp, MarkerProgram, Queue, Step, Thing
from .dataplane import SYSFS, Dataplane, choose, differs, problems
from .leases import Leases
from .making import Maker
from .model import AgentEvent, NodeStatus, ThingStatus
from .seeing import about, absent, has_link, lease_held, look, sights
from .sensors import Rises, forwarded_datagrams, missing_gids
from .state import FILE, StateError, load, save

log = logging.getLogger(__name__)
EVENTS = 256  # kept for those who come late
LEASE_WAIT_S = 3.0  # for work under way; a session waits 5 s for its answer
_MEND_THAT = "mend that, then 'roce-ring up' again"


class Agent:
    """Raises StateError if the state cannot be read. Every refusal is a :class:`Refused` with all its findings."""

    def __init__(
        self,
        directory: Path,
        dataplane: str = "auto",
        run: Run = run_command,
        sysfs: Path = SYSFS,
        version: str = "",
    ) -> None:
        self._directory, self._named, self._version = directory, dataplane, version
        self._run, self._sysfs = run, sysfs
        self._state, booted = load(directory)
        save(directory, self._state)
        self._maker = Maker(self._state, self._keep, run, sysfs)
        self._work, self._view = threading.RLock(), threading.Condition()
        self.leases = Leases(directory, booted)
        self._events: deque[AgentEvent] = deque(maxlen=EVENTS)
        self._last_event = 0
        self._plan, self._node = self._remembered()
        self._plane: Dataplane | None = None
        self._held_back: list[Finding] = []  # findings that stay until the next commit or teardown
        self._rises = Rises()
        self._status = NodeStatus(version, self._state.host, -1, self._state.phase, "", "", "", 0.0, 0)
        self._publish()

    # what callers ask for

    def validate(self, document: str, host: str) -> tuple[Plan, list[Finding], list[Step]]:
        """The plan, what speaks against it here, and the commands that a commit would run. Changes nothing."""
        plan, node = self._read(document, host)
        plane = choose(self._named, node, self._run, self._sysfs)
        now = look(plane, node)
        found = list(problems(plan, node, now, plane, self._sysfs))
        if self._plan is not None and self._plan.hash != plan.hash:
            found.append(self._conflict(plan))
        missing = absent(plane, node, now)
        back = {thing.hca for thing in missing if isinstance(thing, Queue)}  # with their addresses
        steps = [step for x in missing if not (isinstance(x, Address) and x.hca in back) for step in x.make()]
        return plan, found, steps

    def stage(self, document: str, host: str) -> Plan:
        """The plan is checked, and kept for a commit."""
        plan, found, _ = self.validate(document, host)
        with self._work:
            raise_errors(found)
            self._state.staged, self._state.staged_host = document, host
            self._keep()
        self._look_again()
        return plan

    def commit(self, plan_hash: str, force: bool = False) -> None:
        """Everything of the staged plan stands, or nothing has changed. The same plan again mends what is amiss.

        ``force``: even if that interrupts a running session.
        """
        with self._work:
            if self._state.staged:
                plan, node = self._read(self._state.staged, self._state.staged_host)
            elif self._plan is not None and self._node is not None:
                plan, node = self._plan, self._node
            else:
                raise Refused([self._not_staged(plan_hash, "nothing")])
            if plan.hash != plan_hash:
                raise Refused([self._not_staged(plan_hash, f"plan {plan.hash[:12]}")])
            if self._plan is not None and self._plan.hash != plan.hash:
                raise Refused([self._conflict(plan)])
            fresh = self._state.phase != "active"
            plane = choose(self._named, node, self._run, self._sysfs)
            self._check(plan, node, plane, force)
            if self._state.staged:
                self._state.plan, self._state.host = self._state.staged, self._state.staged_host
                self._state.staged = self._state.staged_host = ""
            self._state.queues_tried = {}
            self._state.phase = "applying" if fresh else "active"
            self._plan, self._node, self._plane = plan, node, plane
            self._publish()
            try:
                self._apply(take_back=fresh)
            finally:
                self._look_again()

    def teardown(self, force: bool = False) -> list[Finding]:
        """Takes back everything that is ours. What could not be is returned, and tried again until it is gone."""
        with self._work:
            if self._node is not None:
                if (held := self.leases.all()) and not force:
                    raise Refused([lease_held(self._node, held, "'roce-ring down' would cut it off")])
                self._find_plane()
                self._state.phase = "removing"
            self._state.staged = self._state.staged_host = ""
            self._keep()
            left = self._remove() if self._node is not None else []
        self._look_again()
        return left

    def verify(self) -> NodeStatus:
        """A new look at everything, cards included."""
        self._look_again(thorough=True)
        return self.status()

    def status(self) -> NodeStatus:
        """As of the last look; leases as of now. Never waits for work that is under way."""
        with self._view:
            shown = self._status
        return msgspec.structs.replace(shown, leases=self.leases.all())

    def lease(self, session: str, holder: str, plan_hash: str) -> int:
        """A lease, for ``leases.drop``. ``plan_hash``: the plan that must stand, or nothing if none is needed, or the
        session does not know which. Raises Refused. None is given while the node changes: whoever changes it has seen
        all leases there are."""
        if not self._work.acquire(timeout=LEASE_WAIT_S):
            seen, fix = "its agent is changing what the plan sets up", "try again when 'roce-ring status PLAN' says ok"
            raise Refused([finding("plan-differs", self._state.host or "this node", seen, "a plan that stands", fix)])
        try:
            raise_errors(self._lease_problems(plan_hash))
            return self.leases.take(session, holder)
        finally:
            self._work.release()

    def _lease_problems(self, plan_hash: str) -> Iterator[Finding]:
        node = self._node
        if not plan_hash:
            return
        if self._plan is None or node is None or self._state.phase != "active":
            seen, fix = "this node's agent holds no plan", "'roce-ring up' with the session's plan first"
            yield finding("plan-differs", node.host if node else "this node", seen, f"plan {plan_hash[:12]}", fix)
        elif self._plan.hash != plan_hash:
            seen = f"this node's agent holds plan {self._plan.hash[:12]}, the session has {plan_hash[:12]}"
            fix = "start the session with the plan that stands, or 'roce-ring down' and 'roce-ring up' with the other"
            yield finding("plan-differs", node.host, seen, "one plan", fix)

    def events(self, after: int, timeout_s: float) -> list[AgentEvent]:
        """Events with an index above ``after``, oldest first; waits up to ``timeout_s`` while there are none."""
        with self._view:
            self._view.wait_for(lambda: self._last_event > after, timeout_s)
            return [event for event in self._events if event.index > after]

    # what happens by itself

    def tick(self) -> None:
        """One round of the watch: finish what a crash interrupted, else look, and make again what is gone."""
        with self._work:
            try:
                if self._node is not None:
                    self._find_plane()
                if self._state.phase == "applying":
                    self._finish()
                elif self._state.phase == "removing":
                    self._remove()
                elif self._state.phase == "active":
                    self._mend()
            except Refused as refused:
                self._hold_back(list(refused.findings))
        self._maker.reap()
        self._look_again()

    def settle(self, timeout_s: float) -> bool:
        """Waits for work under way: a reload that is cut off leaves a function without MTU and address. False if it
        takes longer; the next agent finishes it."""
        if done := self._work.acquire(timeout=timeout_s):
            self._work.release()
        return done

    def tell(self, severity: str, text: str) -> None:
        """Something happened: into the log, and to everybody who watches."""
        log.log({"error": logging.ERROR, "warning": logging.WARNING}.get(severity, logging.INFO), "%s", text)
        with self._view:
            self._last_event += 1
            self._events.append(AgentEvent(self._last_event, time.time(), severity, text))
            self._view.notify_all()

    def _tell(self, item: Finding) -> None:
        self.tell(item.severity, str(item).removeprefix(f"{item.severity} "))

    def _remembered(self) -> tuple[Plan | None, NodePlan | None]:
        """The plan of before, known before anybody can ask. Raises StateError."""
        if not self._state.plan:
            return None, None
        try:
            return self._read(self._state.plan, self._state.host)
        except Refused as refused:
            why = "; ".join(item.problem for item in refused.findings)
            raise StateError(
                f"state file {self._directory / FILE} holds a plan that this version cannot read ({why}): take it back "
                "with the version that wrote it, or remove the file and let 'roce-ring up' adopt what stands"
            ) from None

    def _find_plane(self) -> None:
        """Raises Refused as long as the devices of the plan are not there."""
        if self._plane is None and self._node is not None:
            self._plane = choose(self._named, self._node, self._run, self._sysfs)

    def _finish(self) -> None:
        """An apply that ended in the middle: all of it, or nothing."""
        plan, node, plane = self._holding()
        self.tell("warning", "an apply was interrupted; finishing it")
        try:
            self._check(plan, node, plane, force=False)
            self._apply(take_back=True)
        except Refused as refused:
            if self._state.phase == "applying":
                self._state.phase = "removing"
                self._remove()
            why = "; ".join(item.problem for item in refused.findings)
            self._hold_back([finding("apply-interrupted", node.host, why, "a finished apply", _MEND_THAT)])

    def _check(self, plan: Plan, node: NodePlan, plane: Dataplane, force: bool) -> None:
        """Raises Refused where the plan cannot stand, or making it would cut off a running session."""
        now = look(plane, node)
        found = list(problems(plan, node, now, plane, self._sysfs))
        cutting = [thing.key for thing in absent(plane, node, now) if thing.interrupts(now)]
        if cutting and not force and (held := self.leases.all()):
            found.append(lease_held(node, held, f"setting {', '.join(cutting)} would cut it off"))
        raise_errors(found)

    def _apply(self, take_back: bool) -> None:
        """Makes what is absent, and sees that it stands. Raises Refused where not; ``take_back`` then undoes all."""
        plan, node, plane = self._holding()
        try:
            self._keep()
            now = plane.look(node, thorough=True)
            early = [thing for thing in self._wanted(node, plane, now) if isinstance(thing, LinkUp | Queue)]
            if any(isinstance(thing, Queue) for thing in early):
                self._stop_markers(early, now)
                self._maker.make(early, now, remember=True)
                now = plane.look(node, thorough=True)  # a reload takes with it what stood on its function
            self._maker.make(self._wanted(node, plane, now), now, remember=True)
            wrong = list(self._amiss(node, plane))
            if not wrong:
                self._state.phase, self._state.booted = "active", False
                self._keep()
        except CommandFailed as failed:
            wrong = [finding("object-failed", node.host, str(failed), "success", _MEND_THAT)]
        except Refused as refused:
            wrong = list(refused.findings)
        if wrong:
            left = []
            if take_back:
                self._state.phase = "removing"
                left = self._remove()
            raise Refused([*wrong, *left])
        self._hold_back([])
        self.tell("note", f"plan {plan.hash[:12]} stands on {node.host}")

    def _amiss(self, node: NodePlan, plane: Dataplane) -> Iterator[Finding]:
        """What does not stand although all commands worked."""
        for thing, sight in sights(plane, node, plane.look(node, thorough=True)):
            if sight.state == "other":
                yield differs(node, thing, sight)
            elif sight.state == "absent" and not self._gave_up(thing):
                where, seen = f"{node.host}: {thing.key}", "not there, though its commands worked"
                yield finding("object-failed", where, seen, "as planned", _MEND_THAT)

    def _wanted(self, node: NodePlan, plane: Dataplane, now: Snapshot) -> list[Thing]:
        return [thing for thing in absent(plane, node, now) if not self._gave_up(thing)]

    def _gave_up(self, thing: Thing) -> bool:
        return isinstance(thing, Queue) and thing.hca.pci in self._state.queues_tried

    def _stop_markers(self, early: list[LinkUp | Queue], now: Snapshot) -> None:
        """Ours on functions that are about to be reloaded: a reload needs them idle, and takes the marks anyway."""
        _, node, plane = self._holding()
        devices = {thing.hca.rdma for thing in early if isinstance(thing, Queue)}
        for thing in plane.things(node):
            if isinstance(thing, MarkerProgram) and thing.marker.rdma in devices and thing.key in self._state.owned:
                self._maker.unmake(thing, now)

    def _failed_queues(self, node: NodePlan) -> Iterator[Finding]:
        """An error where the plan's size limits count on the size: it was there when planned, and a boot took it."""
        fix = "see 'devlink dev param show' and the kernel's log; 'roce-ring up' tries once more"
        for hairpin in node.hairpins:
            if (why := self._state.queues_tried.get(hairpin.pci)) is not None:
                code = "hairpin-small" if hairpin.seen < hairpin.wanted else "hairpin-failed"
                yield finding(code, f"{node.host} {hairpin.pci}", why, f"a queue of {hairpin.wanted} packets", fix)

    def _remove(self) -> list[Finding]:
        """Takes back all that is ours, and forgets the plan once nothing is left."""
        _, node, plane = self._holding()
        try:
            left = self._maker.take_back(node, plane, set(self._state.owned))
            if not left:
                self._state.phase, self._state.plan, self._state.host, self._state.owned = "idle", "", "", {}
                self._state.queues_tried = {}
                self._plan = self._node = self._plane = None
                self._rises = Rises()
                self.tell("note", f"the plan was taken back from {node.host}")
            self._keep()
        except CommandFailed as failed:
            left = [finding("object-failed", node.host, str(failed), "gone", "the agent tries again by itself")]
        except Refused as refused:  # what the file names beyond what there is does no harm
            left = list(refused.findings)
        self._hold_back(left)
        return left

    def _mend(self) -> None:
        """Makes again what is gone, as far as that interrupts nobody; after a boot, everything."""
        plan, node, plane = self._holding()
        if self._state.booted:
            self._check(plan, node, plane, force=False)
            self._apply(take_back=False)
            return
        now = look(plane, node, thorough=False)
        made, failed = [], []
        for thing in absent(plane, node, now):
            if thing.interrupts(now) or not has_link(thing, now):
                continue
            try:  # one function's trouble keeps nothing of the others from coming back
                self._maker.make([thing], now, remember=False)
                made.append(thing.key)
            except CommandFailed as error:
                where = f"{node.host}: {thing.key}"
                failed.append(finding("object-failed", where, str(error), "success", "the agent tries again by itself"))
        if made:
            self.tell("warning", f"gone, and made again: {', '.join(made)}")
        self._hold_back(failed)

    # what is shown

    def _look_again(self, thorough: bool = False) -> None:
        with self._work:
            node, plane = self._node, self._plane
            if node is None or plane is None:
                self._publish()
                return
            try:
                now = look(plane, node, thorough)
            except Refused as refused:
                self._publish(found=refused.findings)
                return
            things: list[ThingStatus] = []
            found: list[Finding] = []
            for thing, sight in sights(plane, node, now):
                packets, octets = thing.packets(now) or (-1, -1)
                ours = thing.key in self._state.owned
                things.append(ThingStatus(thing.key, sight.state, sight.seen, ours, packets, octets))
                if self._state.phase == "active" and not self._gave_up(thing):
                    found += about(node, thing, sight, now)
            if self._state.phase == "active":  # before and after, what is not there is no news
                found += self._failed_queues(node)
                found += missing_gids(node, self._sysfs)
                found += self._rises.findings(node, plane.counters(node))
            self._publish(things, found)

    def _publish(self, things: Iterable[ThingStatus] = (), found: Iterable[Finding] = ()) -> None:
        shown = NodeStatus(
            version=self._version,
            host=self._state.host or self._state.staged_host,
            rank=self._node.rank if self._node else -1,
            phase=self._state.phase,
            plan_hash=self._plan.hash if self._plan else "",
            staged_hash=self._staged_hash(),
            dataplane=self._plane.name if self._plane else "",
            looked_unix_s=time.time(),
            forwarded=forwarded_datagrams(),
            things=tuple(things),
            findings=(*self._held_back, *found),
            error_counters=dict(self._rises.counters),
        )
        with self._view:
            old, self._status = self._status, shown
            self._view.notify_all()
        before = {(item.code, item.where) for item in old.findings}
        after = {(item.code, item.where) for item in shown.findings}
        for item in shown.findings:
            if (item.code, item.where) not in before and item not in self._held_back:
                self._tell(item)
        for code, where in sorted(before - after):
            self.tell("note", f"no longer {code}: {where}")

    # small things

    def _read(self, document: str, host: str) -> tuple[Plan, NodePlan]:
        plan = plan_from_json(document, "the plan that was sent")
        for node in plan.nodes:
            if node.host == host:
                return plan, node
        seen, fix = f"the plan has no node {host!r}", f"name one of {', '.join(plan.hosts)}"
        raise Refused([finding("wrong-node", host, seen, "a node of the plan", fix)])

    def _staged_hash(self) -> str:
        return plan_from_json(self._state.staged, "staged plan").hash if self._state.staged else ""

    def _holding(self) -> tuple[Plan, NodePlan, Dataplane]:
        assert self._plan is not None and self._node is not None and self._plane is not None
        return self._plan, self._node, self._plane

    def _hold_back(self, found: list[Finding]) -> None:
        """Findings that stay until the next commit or teardown, each told once."""
        old, self._held_back = self._held_back, found
        for item in found:
            if item not in old:
                self._tell(item)

    def _conflict(self, plan: Plan) -> Finding:
        seen = f"it holds plan {self._plan.hash[:12] if self._plan else ''}"
        fix = "'roce-ring down' with that plan first, then 'roce-ring up' with this one"
        return finding("plan-conflict", self._state.host, seen, f"no plan, or {plan.hash[:12]}", fix)

    def _not_staged(self, wanted: str, seen: str) -> Finding:
        return finding("not-staged", "commit", f"{seen} is staged", f"plan {wanted[:12]}", "stage it first")

    def _keep(self) -> None:
        try:
            save(self._directory, self._state)
        except StateError as failed:
            fix = "make room there, or let it be written to"
            where = self._state.host or "this node's agent"
            raise Refused([finding("object-failed", where, str(failed), "a state on disk", fix)]) from None
