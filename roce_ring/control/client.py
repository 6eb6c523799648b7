"""Talks to one running rank. Every call has a deadline, and every failure is one sentence."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import TypeVar

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc

from ..errors import RoceRingError
from .convert import from_proto
from .model import IdlePolicy, RankEvent, RankInfo, RankState, RankStats
from .proto.roce_ring.v1 import rank_service_pb2 as pb
from .proto.roce_ring.v1 import rank_service_pb2_grpc as pb_grpc
from .rundir import Reach, probe
from .service import HEALTH_SERVICE

R = TypeVar("R")


class ControlError(RoceRingError):
    """A rank could not be asked, or refused. `code` is one of not-running, stale, permission-denied, no-answer, busy,
    refused, failed."""


class RankClient:
    """Client of the rank behind one control socket (rundir.scan finds them). Use it as a context manager."""

    def __init__(self, path: Path, timeout_s: float = 2.0) -> None:
        """`timeout_s` bounds every call."""
        self.path = path
        self.timeout_s = timeout_s
        reach = probe(path)
        if reach is None:
            raise ControlError(
                "not-running", f"nothing is running behind {path}", "`roce-ring status` lists the ranks that run"
            )
        if reach is Reach.STALE:
            raise ControlError(
                "stale",
                f"the rank behind {path} is gone; its socket was left behind",
                "the next rank that starts there removes it",
            )
        if reach is Reach.DENIED:
            raise ControlError(
                "permission-denied",
                f"control socket {path} may not be opened by this user",
                "run as the user that runs the rank, or join the group that owns the socket",
            )
        self._channel = grpc.insecure_channel(f"unix:{path}", options=[("grpc.enable_retries", 0)])
        self._stub = pb_grpc.RankServiceStub(self._channel)

    def __enter__(self) -> RankClient:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        self._channel.close()

    def info(self) -> RankInfo:
        return from_proto(RankInfo, self._call(self._stub.GetInfo, pb.GetInfoRequest()).info)

    def state(self) -> RankState:
        return from_proto(RankState, self._call(self._stub.GetState, pb.GetStateRequest()).state)

    def stats(self) -> RankStats:
        return from_proto(RankStats, self._call(self._stub.GetStats, pb.GetStatsRequest()).stats)

    def set_idle(
        self, idle_spins: int | None, nap_us: int | None, session_id: str = ""
    ) -> tuple[IdlePolicy, IdlePolicy]:
        """(before, after). None keeps a value. With `session_id` the call is refused if that session is over."""
        request = pb.SetIdlePolicyRequest(idle_spins=idle_spins, nap_us=nap_us, expected_session_id=session_id)
        response = self._call(self._stub.SetIdlePolicy, request)
        return from_proto(IdlePolicy, response.previous), from_proto(IdlePolicy, response.current)

    def abort(self, reason: str, session_id: str = "") -> RankState:
        request = pb.AbortRequest(reason=reason, expected_session_id=session_id)
        return from_proto(RankState, self._call(self._stub.Abort, request).state)

    def drain(self, timeout_s: float, session_id: str = "") -> bool:
        """True once every started operation has finished."""
        request = pb.DrainRequest(timeout_ms=round(timeout_s * 1000), expected_session_id=session_id)
        return bool(self._call(self._stub.Drain, request, self.timeout_s + timeout_s).drained)

    def watch(self, after_index: int = 0, timeout_s: float = 60.0) -> Iterator[RankState | RankEvent]:
        """The state now, then events and new states as they come; ends after `timeout_s` or with the session."""
        with self._sentences(timeout_s):
            try:
                for response in self._stub.Watch(pb.WatchRequest(after_index=after_index), timeout=timeout_s):
                    if response.WhichOneof("update") == "state":
                        yield from_proto(RankState, response.state)
                    else:
                        yield from_proto(RankEvent, response.event)
            except grpc.RpcError as error:
                if error.code() is not grpc.StatusCode.DEADLINE_EXCEEDED:
                    raise

    def healthy(self) -> bool:
        """What a load balancer would be told. Answered even while the session is stuck."""
        request = health_pb2.HealthCheckRequest(service=HEALTH_SERVICE)
        check = health_pb2_grpc.HealthStub(self._channel).Check  # type: ignore[attr-defined]  # stubs lack it
        response = self._call(check, request)
        return bool(response.status == health_pb2.HealthCheckResponse.SERVING)

    def _call(self, method: Callable[..., R], request: object, timeout_s: float | None = None) -> R:
        limit = timeout_s or self.timeout_s
        with self._sentences(limit):
            return method(request, timeout=limit)

    @contextmanager
    def _sentences(self, timeout_s: float) -> Iterator[None]:
        """Turns gRPC's and the decoder's errors into ControlError."""
        try:
            yield
        except grpc.RpcError as error:
            code, details = error.code(), error.details() or ""
            if code is grpc.StatusCode.DEADLINE_EXCEEDED:
                raise ControlError(
                    "no-answer",
                    f"the rank behind {self.path} did not answer within {timeout_s:g} s",
                    "its process is stopped or overloaded: look at it with ps and at its log",
                ) from error
            if code in (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.CANCELLED):
                raise ControlError(
                    "not-running", f"the rank behind {self.path} went away during the call", "read its log"
                ) from error
            if code is grpc.StatusCode.RESOURCE_EXHAUSTED:
                raise ControlError("busy", details, "try again, or stop other clients") from error
            if code in (grpc.StatusCode.INVALID_ARGUMENT, grpc.StatusCode.FAILED_PRECONDITION):
                message, _, hint = details.partition("\n")
                raise ControlError("refused", message, hint) from error
            raise ControlError("failed", details, "read the rank's log") from error
        except ValueError as error:
            raise ControlError(
                "failed",
                f"the rank behind {self.path} answered with {error}",
                "use one version of roce-ring everywhere",
            ) from error
