"""Talks to one node's agent. Every call has a deadline, and every failure is one sentence."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import TracebackType
from typing import TypeVar

import grpc

from roce_ring.control.address import Address, Tls
from roce_ring.control.proto.roce_ring.v1 import mesh_agent_service_pb2 as pb
from roce_ring.control.proto.roce_ring.v1 import mesh_agent_service_pb2_grpc as pb_grpc
from roce_ring.control.rundir import Reach, probe
from roce_ring.control.stranger import stranger
from roce_ring.errors import RoceRingError

from ..finding import Finding
from .convert import findings_from_proto, from_proto
from .model import AgentEvent, NodeStatus
from .server import MAX_REQUEST_BYTES

R = TypeVar("R")
COMMIT_S = 600.0  # four functions that are reloaded one after the other, and a margin
ANSWER_S = 5.0


class AgentError(RoceRingError):
    """An agent could not be asked. `code` is one of not-running, permission-denied, no-answer, failed."""


class AgentClient:
    """Use it as a context manager. Raises AgentError at once if nobody listens there."""

    def __init__(self, address: Address, tls: Tls | None, host: str, way: str = "") -> None:
        """``way``: how it is reached, in words, where the address says nothing to a user."""
        self.host = host
        way = way or (f"at {address.target}" if address.unix is None else f"behind {address.unix}")
        self._where = f"the agent of {host} {way}"
        if address.unix is not None:
            self._look_first(address)
            self._channel = grpc.insecure_channel(address.target, _OPTIONS)
        elif tls is not None:
            ca, cert, key = tls.read()
            self._channel = grpc.secure_channel(address.target, grpc.ssl_channel_credentials(ca, key, cert), _OPTIONS)
        else:
            self._channel = grpc.insecure_channel(address.target, _OPTIONS)
        self._stub = pb_grpc.MeshAgentServiceStub(self._channel)

    def _look_first(self, address: Address) -> None:
        assert address.unix is not None
        reach = probe(address.unix)
        if reach is Reach.DENIED:
            fix = "run as root; sessions and onlookers use lease.sock, as members of its group"
            raise AgentError("permission-denied", f"{self._where} may not be asked by this user", fix)
        if reach is not Reach.RUNNING:
            fix = f"start it on {self.host}: 'systemctl start roce-ring-agent' or 'roce-ring agent'"
            raise AgentError("not-running", f"{self._where} does not run", fix)
        if (said := stranger(address, ANSWER_S)) is not None:
            raise AgentError("not-running", f"something else answers for {self._where}: {said!r}", "see the address")

    def __enter__(self) -> AgentClient:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        self._channel.close()

    def validate(self, plan: str) -> tuple[tuple[Finding, ...], tuple[str, ...]]:
        """What speaks against the plan there, and the commands that a commit would run."""
        answer = self._call(self._stub.ValidatePlan, pb.ValidatePlanRequest(plan=plan, host=self.host), 60)
        return findings_from_proto(answer.findings), tuple(answer.commands)

    def stage(self, plan: str) -> tuple[Finding, ...]:
        """Why it was not staged; empty if it was."""
        return self._found(self._stub.StagePlan, pb.StagePlanRequest(plan=plan, host=self.host), 60)

    def commit(self, plan_hash: str, force: bool = False) -> tuple[Finding, ...]:
        """Why it does not stand; empty if it does."""
        request = pb.CommitPlanRequest(plan_hash=plan_hash, force=force)
        return self._found(self._stub.CommitPlan, request, COMMIT_S)

    def teardown(self, force: bool = False) -> tuple[Finding, ...]:
        """What is left, or why nothing was taken back; empty if all is gone."""
        return self._found(self._stub.TeardownPlan, pb.TeardownPlanRequest(force=force), 60)

    def status(self, look: bool = False) -> NodeStatus:
        """As of the last look; ``look``: of a new and thorough one."""
        answer = self._call(self._stub.GetNodeStatus, pb.GetNodeStatusRequest(look=look), 60 if look else ANSWER_S)
        return from_proto(NodeStatus, answer.status)

    def watch(self, after: int = 0) -> Iterator[AgentEvent]:
        """Events as they come, until the agent ends."""
        with self._sentences(0):
            for answer in self._stub.WatchNode(pb.WatchNodeRequest(after_index=after)):
                yield from_proto(AgentEvent, answer.event)

    def probes(self, requests: Iterator[pb.ProbePathsRequest], timeout_s: float) -> Iterator[pb.ProbePathsResponse]:
        """The stream of ProbePaths: one answer per request."""
        with self._sentences(timeout_s):
            yield from self._stub.ProbePaths(requests, timeout=timeout_s)

    def lease(self, requests: Iterator[pb.HoldLeaseRequest]) -> Iterator[tuple[Finding, ...]]:
        """The stream of HoldLease: what each answer says."""
        with self._sentences(0):
            for answer in self._stub.HoldLease(requests):
                yield findings_from_proto(answer.findings)

    def _found(self, method: Callable[..., R], request: object, timeout_s: float) -> tuple[Finding, ...]:
        return findings_from_proto(self._call(method, request, timeout_s).findings)  # type: ignore[attr-defined]

    def _call(self, method: Callable[..., R], request: object, timeout_s: float) -> R:
        with self._sentences(timeout_s):
            return method(request, timeout=timeout_s)

    @contextmanager
    def _sentences(self, timeout_s: float) -> Iterator[None]:
        """Turns gRPC's errors into AgentError."""
        try:
            yield
        except grpc.RpcError as error:
            code, (message, _, hint) = error.code(), (error.details() or "").partition("\n")
            if code is grpc.StatusCode.DEADLINE_EXCEEDED:
                fix = "the node is stopped or overloaded; see its agent's log"
                raise AgentError("no-answer", f"{self._where} did not answer within {timeout_s:g} s", fix) from error
            if code is grpc.StatusCode.PERMISSION_DENIED:
                raise AgentError("permission-denied", f"{self._where} refuses: {message}", hint) from error
            if code in (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.CANCELLED):
                fix = "see its log, the address, and with TLS that both certificates come from the same authority"
                raise AgentError("not-running", f"{self._where} cannot be reached", fix) from error
            if code is grpc.StatusCode.UNIMPLEMENTED:
                fix = "install the same version on every node"
                raise AgentError("failed", f"{self._where} does not know this call", fix) from error
            raise AgentError("failed", f"{self._where} failed: {message}", "read its log") from error


_OPTIONS = [("grpc.enable_retries", 0), ("grpc.max_send_message_length", MAX_REQUEST_BYTES)]
