"""RankService: checks every field of a request, asks the session, answers. Sockets and threads are server.py's."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator
from functools import partial
from typing import NoReturn, TypeVar

import grpc

from ..errors import RoceRingError
from ..settings import KNOBS
from .convert import to_proto
from .model import IdlePolicy, RankState
from .proto.roce_ring.v1 import rank_service_pb2 as pb
from .proto.roce_ring.v1 import rank_service_pb2_grpc as pb_grpc
from .service import RankControl

log = logging.getLogger(__name__)
T = TypeVar("T")

MAX_REASON_CHARS = 200
MAX_DRAIN_MS = 600_000
WATCHERS = 4
_EVENT_POLL_S = 0.5  # how late a watcher may notice that its client has gone


class RankServicer(pb_grpc.RankServiceServicer):
    """`calls` bounds the calls that run at once, so that a session that no longer answers cannot use up the threads
    that health checks are answered on."""

    def __init__(self, control: RankControl, calls: int) -> None:
        self._control = control
        self._calls = threading.BoundedSemaphore(calls)
        self._watchers = threading.BoundedSemaphore(WATCHERS)
        self._change = threading.Lock()  # one change at a time, so that "previous" is true
        self._stopping = threading.Event()

    def stop(self) -> None:
        """Ends the watch streams."""
        self._stopping.set()

    def GetInfo(self, request: pb.GetInfoRequest, context: grpc.ServicerContext) -> pb.GetInfoResponse:
        return pb.GetInfoResponse(info=to_proto(pb.RankInfo, self._ask(context, self._control.info)))

    def GetState(self, request: pb.GetStateRequest, context: grpc.ServicerContext) -> pb.GetStateResponse:
        return pb.GetStateResponse(state=to_proto(pb.RankState, self._ask(context, self._control.state)))

    def GetStats(self, request: pb.GetStatsRequest, context: grpc.ServicerContext) -> pb.GetStatsResponse:
        return pb.GetStatsResponse(stats=to_proto(pb.RankStats, self._ask(context, self._control.stats)))

    def Watch(self, request: pb.WatchRequest, context: grpc.ServicerContext) -> Iterator[pb.WatchResponse]:
        if not self._watchers.acquire(blocking=False):
            context.abort(
                grpc.StatusCode.RESOURCE_EXHAUSTED, f"{WATCHERS} clients watch this rank already: end one of them"
            )
        try:
            after, last = request.after_index, None
            while context.is_active() and not self._stopping.is_set():
                state = self._ask(context, self._control.state, count=False)
                if state != last:
                    last = state
                    yield pb.WatchResponse(state=to_proto(pb.RankState, state))
                for event in self._ask(context, partial(self._control.events, after, _EVENT_POLL_S), count=False):
                    after = max(after, event.index)
                    yield pb.WatchResponse(event=to_proto(pb.RankEvent, event))
        finally:
            self._watchers.release()

    def SetIdlePolicy(
        self, request: pb.SetIdlePolicyRequest, context: grpc.ServicerContext
    ) -> pb.SetIdlePolicyResponse:
        spins = request.idle_spins if request.HasField("idle_spins") else None
        nap_us = request.nap_us if request.HasField("nap_us") else None
        if spins is None and nap_us is None:
            _refuse(context, "neither idle_spins nor nap_us is set: give at least one")
        if spins is not None:
            _check_range(context, "idle_spins", spins, 0, int(KNOBS["idle_spins"].high or 0))
        if nap_us is not None:
            _check_range(context, "nap_us", nap_us, int(KNOBS["nap_us"].low or 0), int(KNOBS["nap_us"].high or 0))
        with self._change:
            self._check_session(context, request.expected_session_id)
            before = self._ask(context, self._control.stats)
            after = self._ask(context, lambda: self._control.set_idle(spins, nap_us))
        previous = to_proto(pb.IdlePolicy, IdlePolicy(before.idle_spins, before.nap_us))
        return pb.SetIdlePolicyResponse(previous=previous, current=to_proto(pb.IdlePolicy, after))

    def Abort(self, request: pb.AbortRequest, context: grpc.ServicerContext) -> pb.AbortResponse:
        reason = request.reason.strip()
        if not 0 < len(reason) <= MAX_REASON_CHARS or not reason.isprintable():
            _refuse(context, f"reason holds {len(reason)} characters, expected 1 to {MAX_REASON_CHARS} printable ones")
        with self._change:
            self._check_session(context, request.expected_session_id)
            self._ask(context, lambda: self._control.abort(reason))
        return pb.AbortResponse(state=self._state(context))

    def Drain(self, request: pb.DrainRequest, context: grpc.ServicerContext) -> pb.DrainResponse:
        _check_range(context, "timeout_ms", request.timeout_ms, 1, MAX_DRAIN_MS)
        self._check_session(context, request.expected_session_id)
        drained = self._ask(context, lambda: self._control.drain(request.timeout_ms / 1000))
        return pb.DrainResponse(drained=drained, state=self._state(context))

    def _state(self, context: grpc.ServicerContext) -> pb.RankState:
        state: RankState = self._ask(context, self._control.state)
        return to_proto(pb.RankState, state)

    def _check_session(self, context: grpc.ServicerContext, expected: str) -> None:
        if not expected:
            return
        current = self._ask(context, self._control.info).session_id
        if expected != current:
            sentence = f"session {expected[:32]} is over, this rank now runs session {current}: look again, then repeat"
            context.abort(grpc.StatusCode.FAILED_PRECONDITION, sentence)

    def _ask(self, context: grpc.ServicerContext, call: Callable[[], T], count: bool = True) -> T:
        """Runs one call on the session and turns what it raises into a status."""
        if count and not self._calls.acquire(blocking=False):
            _abort(
                context,
                grpc.StatusCode.RESOURCE_EXHAUSTED,
                "too many calls at once: the session answers slowly or not at all",
            )
        try:
            return call()
        except RoceRingError as error:
            _abort(context, grpc.StatusCode.FAILED_PRECONDITION, f"{error.message}\n{error.hint}")
        except Exception as error:
            log.exception("a control call failed")
            _abort(context, grpc.StatusCode.INTERNAL, f"the session failed to answer: {type(error).__name__}: {error}")
        finally:
            if count:
                self._calls.release()


def _check_range(context: grpc.ServicerContext, name: str, value: int, low: int, high: int) -> None:
    if not low <= value <= high:
        _refuse(context, f"{name} is {value}, expected {low} to {high}")


def _refuse(context: grpc.ServicerContext, sentence: str) -> NoReturn:
    _abort(context, grpc.StatusCode.INVALID_ARGUMENT, sentence)


def _abort(context: grpc.ServicerContext, code: grpc.StatusCode, sentence: str) -> NoReturn:
    context.abort(code, sentence)
    raise AssertionError("grpc's abort always raises")
