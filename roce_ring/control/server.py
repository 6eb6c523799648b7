"""The control endpoint of one rank: a gRPC server on a unix socket, with a health service that follows by itself."""

from __future__ import annotations

import logging
import threading
import time
from pathlib import Path
from typing import Any, cast

import grpc
from grpc_health.v1 import health, health_pb2, health_pb2_grpc

from ..errors import SetupError
from .model import SERVING_STATES
from .pool import DaemonPool
from .proto.roce_ring.v1 import rank_service_pb2_grpc as pb_grpc
from .rundir import SOCKET_MODE, SocketLock, make_run_dir, remove_stale, socket_path
from .service import HEALTH_SERVICE, RankControl
from .servicer import WATCHERS, RankServicer

log = logging.getLogger(__name__)

MAX_REQUEST_BYTES = 64 * 1024
_CALLS = 4  # at once, beside watch streams; enough for a handful of operators
_HEALTH_THREADS = 2  # never taken by calls or watches, so a health check is always answered
_POLL_S = 0.25
_STALE_S = 2.0  # a session that has not told its state for so long is not healthy


class RankServer:
    """Serves one session from construction to close(). Raises SetupError if the run directory or the socket cannot be
    had, for example because another process serves the same rank of the same session name."""

    def __init__(self, control: RankControl, directory: Path, session_name: str, rank: int) -> None:
        make_run_dir(directory)
        for path in remove_stale(directory):
            log.info("removed stale control socket %s", path)
        self.path = socket_path(directory, session_name, rank)
        self._lock = SocketLock(self.path, f"session {session_name}, rank {rank}")
        try:
            self._servicer = RankServicer(control, _CALLS)
            self._health = _FollowingHealth(control)
            self._server = self._listen()
        except BaseException:
            self._lock.release()
            raise

    def _listen(self) -> grpc.Server:
        self._pool = DaemonPool(_CALLS + WATCHERS + _HEALTH_THREADS, "roce-ring-control")
        options = [("grpc.max_receive_message_length", MAX_REQUEST_BYTES)]
        server = grpc.server(cast(Any, self._pool), options=options, maximum_concurrent_rpcs=64)
        pb_grpc.add_RankServiceServicer_to_server(self._servicer, server)
        health_pb2_grpc.add_HealthServicer_to_server(self._health.servicer, server)
        try:
            server.add_insecure_port(f"unix:{self.path}")
            self.path.chmod(SOCKET_MODE)
        except (RuntimeError, OSError) as error:
            raise SetupError(f"cannot listen on control socket {self.path}: {str(error).lower()}") from error
        self._health.start()
        server.start()
        return server

    def close(self, grace_s: float = 1.0) -> None:
        """Health turns NOT_SERVING, running calls get `grace_s` to end, the socket goes. Closing twice is fine."""
        self._health.stop()
        self._servicer.stop()
        self._server.stop(grace_s).wait(grace_s + 1)
        self._pool.shutdown()
        self._lock.release()


class _FollowingHealth:
    """Copies the session's state into the health service. Two threads: one asks the session and may get stuck with it,
    the other judges by the age of the last answer and cannot."""

    def __init__(self, control: RankControl) -> None:
        self.servicer = health.HealthServicer()
        self._control = control
        self._stop = threading.Event()
        self._seen: tuple[float, bool] = (float("-inf"), False)
        self._publish(False)

    def start(self) -> None:
        for target in (self._ask, self._judge):
            threading.Thread(target=target, name="roce-ring-health", daemon=True).start()

    def stop(self) -> None:
        self._stop.set()
        self.servicer.enter_graceful_shutdown()

    def _ask(self) -> None:
        failed = False
        while not self._stop.is_set():
            try:
                serving = self._control.state().state in SERVING_STATES
                failed = False
            except Exception:
                if not failed:
                    log.exception("the session failed to tell its state; health says NOT_SERVING")
                serving, failed = False, True
            self._seen = (time.monotonic(), serving)
            self._stop.wait(_POLL_S)

    def _judge(self) -> None:
        published = False
        while not self._stop.wait(_POLL_S):
            at, serving = self._seen
            serving = serving and time.monotonic() - at < _STALE_S
            if serving != published:
                self._publish(serving)
                published = serving

    def _publish(self, serving: bool) -> None:
        status = health_pb2.HealthCheckResponse.SERVING if serving else health_pb2.HealthCheckResponse.NOT_SERVING
        for service in ("", HEALTH_SERVICE):
            self.servicer.set(service, status)
