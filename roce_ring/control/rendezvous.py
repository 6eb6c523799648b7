"""The gRPC side of a rendezvous, host (rank 0) and guest (all others). What it means is in meeting.py."""

from __future__ import annotations

import os
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from typing import Any, NoReturn, cast

import grpc

from .address import Address, Tls
from .meeting import MAX_PAYLOAD_BYTES, MAX_TIMEOUT_S, MAX_WORLD, ExchangeError, Identity, Meeting
from .names import require_name
from .pool import DaemonPool
from .proto.roce_ring.v1 import rendezvous_service_pb2 as pb
from .proto.roce_ring.v1 import rendezvous_service_pb2_grpc as pb_grpc
from .rundir import SOCKET_MODE, SocketLock, TakenError
from .stranger import stranger

RENDEZVOUS_VERSION = 1
_GRACE_S = 2.0  # how much later than a rank's own limit the host may still answer
_FAILED_LINGER_S = 3.0  # how long a failed host stays to tell ranks that arrive late
_LOOK_S = 1.0  # how often a guest that waits looks whether it waits for another program
_CHANNEL = [
    ("grpc.enable_http_proxy", 0),  # fabric and management addresses are never behind a web proxy
    ("grpc.enable_retries", 0),
    ("grpc.initial_reconnect_backoff_ms", 50),
    ("grpc.max_reconnect_backoff_ms", 500),  # ranks start in any order, rank 0 last too
]


def identify(job: str, rank: int, world: int) -> Identity:
    return Identity(job, rank, world, socket.gethostname(), os.getpid())


class AddressTakenError(Exception):
    """Rank 0 cannot have this address; most likely something serves it already."""


class Host:
    """Rank 0's side. Raises AddressTakenError if the address is in use."""

    def __init__(self, address: Address, tls: Tls | None, who: Identity) -> None:
        self._meeting = Meeting(who.job, who.world, address.target)
        self._token = self._meeting.join(who)
        self._round = 0
        self._closing = threading.Event()
        self._lock: SocketLock | None = None
        if address.unix:
            try:
                self._lock = SocketLock(address.unix, f"job {who.job}, rank 0", "the rendezvous address")
            except TakenError as error:
                raise AddressTakenError(error.message) from error
        else:
            _bind_once(address.target)
        # Two threads a rank: its Join stream and its AllGather. The rest is for strays, who are turned away at once.
        self._pool = DaemonPool(2 * who.world + 4, "roce-ring-rendezvous")
        try:
            self._server = self._listen(address, tls, who.world)
        except BaseException as error:
            self._release()
            if isinstance(error, RuntimeError):  # gRPC's "failed to bind": another rank 0 was a moment faster
                raise AddressTakenError(f"rank 0 cannot listen on {address.target}: address already in use") from error
            raise

    def _listen(self, address: Address, tls: Tls | None, world: int) -> grpc.Server:
        options = [("grpc.so_reuseport", 0), ("grpc.max_receive_message_length", MAX_PAYLOAD_BYTES + 4096)]
        server = grpc.server(cast(Any, self._pool), options=options, maximum_concurrent_rpcs=2 * world + 64)
        servicer = _Servicer(self._meeting, frozenset(tls.names) if tls else None, self._closing)
        pb_grpc.add_RendezvousServiceServicer_to_server(servicer, server)
        if tls:
            ca, cert, key = tls.read()
            credentials = grpc.ssl_server_credentials([(key, cert)], root_certificates=ca, require_client_auth=True)
            server.add_secure_port(address.target, credentials)
        else:
            server.add_insecure_port(address.target)
            if address.unix:
                address.unix.chmod(SOCKET_MODE)
        server.start()
        return server

    def all_gather(self, payload: bytes, timeout_s: float) -> list[bytes]:
        self._round += 1
        return self._meeting.all_gather(self._token, self._round - 1, payload, timeout_s)

    def close(self) -> None:
        self._meeting.leave(self._token, "closed the exchange")
        if self._meeting.failure:
            self._meeting.wait_all_told(_FAILED_LINGER_S)
        self._closing.set()
        self._server.stop(_GRACE_S).wait(_GRACE_S + 1)
        self._release()

    def _release(self) -> None:
        self._pool.shutdown()
        if self._lock:
            self._lock.release()


def _bind_once(target: str) -> None:
    """Binds and lets go again: gRPC would print a line of its own and not say why it cannot."""
    host, _, port = target.rpartition(":")
    try:
        family, kind, _, _, where = socket.getaddrinfo(host.strip("[]"), int(port), type=socket.SOCK_STREAM)[0]
        with socket.socket(family, kind) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind(where)
    except OSError as error:
        reason = (error.strerror or str(error)).lower()
        raise AddressTakenError(f"rank 0 cannot listen on {target}: {reason}") from error


class Guest:
    """Any other rank's side. Waits up to `timeout_s` for rank 0 to be there."""

    def __init__(self, address: Address, tls: Tls | None, who: Identity, timeout_s: float) -> None:
        self._address = address
        self._round = 0
        options = [*_CHANNEL, ("grpc.max_receive_message_length", MAX_WORLD * MAX_PAYLOAD_BYTES)]
        if tls:
            ca, cert, key = tls.read()
            credentials = grpc.ssl_channel_credentials(root_certificates=ca, private_key=key, certificate_chain=cert)
            self._channel = grpc.secure_channel(address.target, credentials, options)
        else:
            self._channel = grpc.insecure_channel(address.target, options)
        self._stub = pb_grpc.RendezvousServiceStub(self._channel)
        try:
            self._token = self._join(who, timeout_s, tls is not None)
        except BaseException:
            self._channel.close()
            raise

    def _join(self, who: Identity, timeout_s: float, secure: bool) -> bytes:
        self._wait_until_ready(timeout_s, secure)
        request = pb.JoinRequest(
            job=who.job,
            rank=who.rank,
            world=who.world,
            host=who.host,
            pid=who.pid,
            rendezvous_version=RENDEZVOUS_VERSION,
        )
        # The stream lives as long as this object, so it has no deadline; a timer bounds the wait for its first message.
        self._stream = self._stub.Join(request)
        timer = threading.Timer(timeout_s, self._stream.cancel)
        timer.start()
        try:
            return bytes(next(self._stream).member_token)
        except StopIteration:
            raise self._gone() from None
        except grpc.RpcError as error:
            if error.code() is grpc.StatusCode.CANCELLED:
                raise self._silent(timeout_s, secure) from None
            raise self._sentence(error, timeout_s) from error
        finally:
            timer.cancel()

    def _wait_until_ready(self, timeout_s: float, secure: bool) -> None:
        ready = grpc.channel_ready_future(self._channel)
        deadline = time.monotonic() + timeout_s
        while (left := deadline - time.monotonic()) > 0:
            with suppress(grpc.FutureTimeoutError):
                ready.result(min(left, _LOOK_S))
                return
            said = None if secure else stranger(self._address, _LOOK_S)
            if said is not None:
                raise self._stranger(f"says {said!r}")
        raise self._silent(timeout_s, secure)

    def all_gather(self, payload: bytes, timeout_s: float) -> list[bytes]:
        request = pb.AllGatherRequest(
            member_token=self._token, round=self._round, payload=payload, timeout_ms=max(1, round(timeout_s * 1000))
        )
        self._round += 1
        try:
            return list(self._stub.AllGather(request, timeout=timeout_s + _GRACE_S).payloads)
        except grpc.RpcError as error:
            raise self._sentence(error, timeout_s) from error

    def close(self) -> None:
        with suppress(grpc.RpcError):  # rank 0 has left first
            self._stub.Leave(pb.LeaveRequest(member_token=self._token), timeout=1.0)
        self._stream.cancel()
        self._channel.close()

    def _silent(self, timeout_s: float, secure: bool) -> ExchangeError:
        more = ", or the two certificates are not signed by the same authority" if secure else ""
        return ExchangeError(
            f"rank 0 did not arrive within {timeout_s:g} s: nobody answers at address {self._address.target}",
            f"read rank 0's log: it may have stopped before it listened, or use another address{more}",
        )

    def _stranger(self, how: str) -> ExchangeError:
        return ExchangeError(
            f"another program serves address {self._address.target}, not a rank 0 of roce-ring: it {how}",
            "stop that program, or give this job another address",
        )

    def _gone(self) -> ExchangeError:
        return ExchangeError(
            f"rank 0 went away: it hosted the rendezvous at {self._address.target}",
            "read rank 0's log; start all ranks again",
        )

    def _sentence(self, error: grpc.RpcError, timeout_s: float) -> ExchangeError:
        code, details = error.code(), error.details() or ""
        if code is grpc.StatusCode.DEADLINE_EXCEEDED:
            return ExchangeError(
                f"rank 0 did not answer within {timeout_s:g} s at rendezvous address {self._address.target}",
                "rank 0 is stopped or overloaded: look at its process and its log",
            )
        if code in (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.CANCELLED):
            return self._gone()
        if code is grpc.StatusCode.UNIMPLEMENTED:
            return self._stranger("speaks gRPC, but knows no rendezvous")
        message, _, hint = details.partition("\n")
        return ExchangeError(message, hint)


class _Servicer(pb_grpc.RendezvousServiceServicer):
    def __init__(self, meeting: Meeting, names: frozenset[str] | None, closing: threading.Event) -> None:
        self._meeting, self._names, self._closing = meeting, names, closing

    def Join(self, request: pb.JoinRequest, context: grpc.ServicerContext) -> Iterator[pb.JoinResponse]:
        require_name(context, self._names, "rank 0")
        if request.rendezvous_version != RENDEZVOUS_VERSION:
            _refuse(
                context,
                f"rendezvous versions differ: rank 0 has {RENDEZVOUS_VERSION}, "
                f"rank {request.rank} has {request.rendezvous_version}",
            )
        if (
            not 0 < len(request.job) <= 64
            or len(request.host) > 255
            or not request.job.isprintable()
            or not request.host.isprintable()
        ):
            _refuse(context, "job or host name is empty, too long or not printable")
        if not 1 < request.world <= MAX_WORLD or request.rank >= request.world:
            _refuse(
                context,
                f"rank {request.rank} of world {request.world} does not exist; worlds have 2 to {MAX_WORLD} ranks",
            )
        gone = threading.Event()
        if not context.add_callback(gone.set):
            return
        try:
            token = self._meeting.join(Identity(request.job, request.rank, request.world, request.host, request.pid))
        except ExchangeError as error:
            _abort(context, error)
        try:
            yield pb.JoinResponse(member_token=token)
            while not gone.wait(0.25) and not self._closing.is_set():
                pass
        finally:
            self._meeting.leave(token, "went away")

    def AllGather(self, request: pb.AllGatherRequest, context: grpc.ServicerContext) -> pb.AllGatherResponse:
        require_name(context, self._names, "rank 0")
        if len(request.payload) > MAX_PAYLOAD_BYTES:
            _refuse(context, f"payload has {len(request.payload)} bytes, the limit is {MAX_PAYLOAD_BYTES}")
        if not 1 <= request.timeout_ms <= MAX_TIMEOUT_S * 1000:
            _refuse(context, f"timeout_ms is {request.timeout_ms}, expected 1 to {MAX_TIMEOUT_S * 1000:.0f}")
        try:
            payloads = self._meeting.all_gather(
                request.member_token, request.round, request.payload, request.timeout_ms / 1000
            )
        except ExchangeError as error:
            _abort(context, error)
        return pb.AllGatherResponse(payloads=payloads)

    def Leave(self, request: pb.LeaveRequest, context: grpc.ServicerContext) -> pb.LeaveResponse:
        require_name(context, self._names, "rank 0")
        try:
            self._meeting.leave(request.member_token, "closed the exchange")
        except ExchangeError as error:
            _abort(context, error)
        return pb.LeaveResponse()


def _refuse(context: grpc.ServicerContext, sentence: str) -> NoReturn:
    context.abort(grpc.StatusCode.INVALID_ARGUMENT, sentence)
    raise AssertionError("grpc's abort always raises")


def _abort(context: grpc.ServicerContext, error: ExchangeError) -> NoReturn:
    context.abort(grpc.StatusCode.FAILED_PRECONDITION, f"{error.message}\n{error.hint}")
    raise AssertionError("grpc's abort always raises")
