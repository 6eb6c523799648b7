"""MeshAgentService: asks the agent, and turns its refusals into findings. Sockets and threads are server.py's."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator

import grpc

from roce_ring.control.names import require_name
from roce_ring.control.proto.roce_ring.v1 import mesh_agent_service_pb2 as pb
from roce_ring.control.proto.roce_ring.v1 import mesh_agent_service_pb2_grpc as pb_grpc

from ..finding import Refused
from .agent import Agent
from .convert import findings_to_proto, to_proto
from .probing import ProbeEnds

_LONGEST_NAME = 200  # of a session or its holder
_POLL_S = 0.5  # how late a stream may notice that its client has gone


class MeshAgentServicer(pb_grpc.MeshAgentServiceServicer):
    """One listener's. ``names``: whose certificates may call; None where file permissions decide. ``changes``: whether
    its callers may change the node."""

    def __init__(self, agent: Agent, names: frozenset[str] | None = None, changes: bool = True) -> None:
        self._agent, self._names, self._changes = agent, names, changes
        self._stopping = threading.Event()

    def stop(self) -> None:
        """Ends the streams."""
        self._stopping.set()

    def ValidatePlan(self, request: pb.ValidatePlanRequest, context: grpc.ServicerContext) -> pb.ValidatePlanResponse:
        self._admit(context, changes=True)
        try:
            plan, found, steps = self._agent.validate(request.plan, request.host)
        except Refused as refused:
            return pb.ValidatePlanResponse(findings=findings_to_proto(refused.findings))
        return pb.ValidatePlanResponse(
            plan_hash=plan.hash, findings=findings_to_proto(found), commands=[str(step) for step in steps]
        )

    def StagePlan(self, request: pb.StagePlanRequest, context: grpc.ServicerContext) -> pb.StagePlanResponse:
        self._admit(context, changes=True)
        try:
            return pb.StagePlanResponse(plan_hash=self._agent.stage(request.plan, request.host).hash)
        except Refused as refused:
            return pb.StagePlanResponse(findings=findings_to_proto(refused.findings))

    def CommitPlan(self, request: pb.CommitPlanRequest, context: grpc.ServicerContext) -> pb.CommitPlanResponse:
        self._admit(context, changes=True)
        try:
            self._agent.commit(request.plan_hash, request.force)
        except Refused as refused:
            return pb.CommitPlanResponse(findings=findings_to_proto(refused.findings))
        return pb.CommitPlanResponse()

    def TeardownPlan(self, request: pb.TeardownPlanRequest, context: grpc.ServicerContext) -> pb.TeardownPlanResponse:
        self._admit(context, changes=True)
        try:
            left = self._agent.teardown(request.force)
        except Refused as refused:
            left = list(refused.findings)
        return pb.TeardownPlanResponse(findings=findings_to_proto(left))

    def GetNodeStatus(
        self, request: pb.GetNodeStatusRequest, context: grpc.ServicerContext
    ) -> pb.GetNodeStatusResponse:
        self._admit(context, changes=False)
        shown = self._agent.verify() if request.look else self._agent.status()
        return pb.GetNodeStatusResponse(status=to_proto(pb.NodeStatus, shown))

    def WatchNode(self, request: pb.WatchNodeRequest, context: grpc.ServicerContext) -> Iterator[pb.WatchNodeResponse]:
        self._admit(context, changes=False)
        after = request.after_index
        while context.is_active() and not self._stopping.is_set():
            for event in self._agent.events(after, _POLL_S):
                after = max(after, event.index)
                yield pb.WatchNodeResponse(event=to_proto(pb.AgentEvent, event))

    def ProbePaths(
        self, request_iterator: Iterator[pb.ProbePathsRequest], context: grpc.ServicerContext
    ) -> Iterator[pb.ProbePathsResponse]:
        self._admit(context, changes=True)
        with ProbeEnds() as ends:
            for request in request_iterator:
                yield ends.answer(request)

    def HoldLease(
        self, request_iterator: Iterator[pb.HoldLeaseRequest], context: grpc.ServicerContext
    ) -> Iterator[pb.HoldLeaseResponse]:
        self._admit(context, changes=False)
        first = next(request_iterator, None)
        if first is None:
            return
        holder = _shown(first.holder)
        over = threading.Event()
        released = threading.Event()

        def listen() -> None:
            for request in request_iterator:  # ends with the stream
                if request.release:
                    released.set()
                    over.set()

        try:
            # registered before anybody is told, so that there is no moment in which it would not be seen
            lease = self._agent.lease(_shown(first.session), holder, first.plan_hash)
        except Refused as refused:
            yield pb.HoldLeaseResponse(findings=findings_to_proto(refused.findings))
            return
        try:
            self._agent.tell("note", f"lease of {holder} (session {_shown(first.session)})")
            if not context.add_callback(over.set):  # the client has gone meanwhile
                return
            threading.Thread(target=_quietly(listen), name="roce-ring-lease", daemon=True).start()
            yield pb.HoldLeaseResponse()
            told: set[tuple[str, str]] = set()
            while not over.wait(_POLL_S) and not self._stopping.is_set():
                wrong = [item for item in self._agent.status().findings if item.severity == "error"]
                if new := [item for item in wrong if (item.code, item.where) not in told]:
                    yield pb.HoldLeaseResponse(findings=findings_to_proto(new))
                told = {(item.code, item.where) for item in wrong}
        finally:
            if not self._stopping.is_set():  # an agent that goes down leaves its leases to the next one
                self._agent.leases.drop(lease)
                how = "ended" if released.is_set() else "ended without a word: its process is gone"
                self._agent.tell("note" if released.is_set() else "warning", f"lease of {holder} {how}")

    def _admit(self, context: grpc.ServicerContext, changes: bool) -> None:
        require_name(context, self._names, "the agent")
        if changes and not self._changes:
            context.abort(
                grpc.StatusCode.PERMISSION_DENIED,
                "sessions may look and hold leases here, not change the node\nask as root, on agent.sock",
            )


def _shown(text: str) -> str:
    """What a session calls itself, for logs and terminals: on one line, and not endless."""
    return "".join(char if char.isprintable() else "?" for char in text[:_LONGEST_NAME])


def _quietly(work: Callable[[], None]) -> Callable[[], None]:
    """A stream that breaks off raises in whoever reads it; there is nobody to tell."""

    def run() -> None:
        with contextlib.suppress(grpc.RpcError, Exception):
            work()

    return run
