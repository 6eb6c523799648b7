"""The agent as a process: its sockets, its watch, and its end. ``roce-ring agent`` runs it."""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import socket
import struct
import subprocess
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import grpc
from grpc_health.v1 import health, health_pb2, health_pb2_grpc

from roce_ring.control.address import Address, Tls
from roce_ring.control.pool import DaemonPool
from roce_ring.control.proto.roce_ring.v1 import mesh_agent_service_pb2_grpc as pb_grpc
from roce_ring.control.rundir import SocketLock, TakenError, make_run_dir
from roce_ring.errors import SetupError

from .agent import Agent
from .servicer import MeshAgentServicer

log = logging.getLogger(__name__)

AGENT_SOCKET, LEASE_SOCKET = "agent.sock", "lease.sock"
HEALTH_SERVICE = "roce_ring.v1.MeshAgentService"  # SERVING while the plan stands and nothing is wrong with it
MAX_REQUEST_BYTES = 4 << 20  # the plan of 16 nodes has half a megabyte
_CALLS = 16  # at a time on each listener, each lease and each watch is one: those of others keep nobody from root's
_NODE_LOCK = "\0roce-ring-mesh-agent"  # an abstract socket belongs to its network name space, as routes and rules do
LOOK_S = 5.0
FINISH_S = 75.0  # the reload of a function, and less than systemd waits (TimeoutStopSec)
_SETTLE_S = 0.1  # one change of a link makes a handful of messages


class AgentServer:
    """Serves one agent from construction to close(). Raises SetupError if another agent runs on this node, or a socket
    cannot be had."""

    def __init__(
        self,
        make_agent: Callable[[], Agent],
        directory: Path,
        listen: tuple[Address, Tls] | None = None,
        group: int | None = None,
        admin_group: int | None = None,
    ) -> None:
        """``make_agent``: called once this node is known to be ours. ``group``: who may hold leases and look;
        ``admin_group``: who may change the node. Else only root."""
        self._node_lock = _lock_node()
        try:
            self._agent = make_agent()
            make_run_dir(directory, "--run-dir")
            _let_in(directory, admin_group if group is None else group)
        except BaseException:
            self._node_lock.close()
            raise
        self._directory = directory
        self._stop, self._wake = threading.Event(), threading.Event()
        self._locks: list[SocketLock] = []
        self._servicers: list[MeshAgentServicer] = []
        self._servers: list[grpc.Server] = []
        self._health = health.HealthServicer()
        self._pool = DaemonPool(_CALLS * (2 if listen is None else 3), "roce-ring-agent")
        self._monitor: subprocess.Popen[str] | None = None
        try:
            self._serve_unix(directory / AGENT_SOCKET, admin_group, changes=True)
            self._serve_unix(directory / LEASE_SOCKET, group, changes=False)
            if listen is not None:
                self._serve_tls(*listen)
        except BaseException:
            self.close(0)
            raise

    def run(self) -> None:
        """Watches until stop() or a signal. The kernel tells of changes to links, addresses and routes at once; rules
        and markers are looked at every few seconds."""
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, lambda *_: self.stop())
        threading.Thread(target=self._listen_to_kernel, name="roce-ring-kernel", daemon=True).start()
        log.info("answers on %s", self._directory / AGENT_SOCKET)
        _tell_systemd("READY=1")
        while not self._stop.is_set():
            self._agent.tick()
            self._publish_health()
            if self._wake.wait(LOOK_S):
                self._stop.wait(_SETTLE_S)
                self._wake.clear()

    def stop(self) -> None:
        self._stop.set()
        self._wake.set()

    def close(self, grace_s: float = 1.0) -> None:
        """Nothing of the node's plan is touched: the data plane does not need an agent to run."""
        self.stop()
        if self._monitor is not None:
            self._monitor.kill()
        self._health.enter_graceful_shutdown()
        for servicer in self._servicers:
            servicer.stop()
        for stopped in [server.stop(grace_s) for server in self._servers]:
            stopped.wait(grace_s + 1)
        if not self._agent.settle(0):
            log.info("ends when what is under way is done, at most %g s from now", FINISH_S)
            self._agent.settle(FINISH_S)
        self._pool.shutdown()
        for lock in self._locks:
            lock.release()
        self._node_lock.close()

    def _serve_unix(self, path: Path, group: int | None, changes: bool) -> None:
        try:
            self._locks.append(SocketLock(path, "node agent", "--run-dir"))
        except TakenError as taken:
            raise SetupError(taken.message, "stop that agent, or give this one another --run-dir") from None
        server = self._server(MeshAgentServicer(self._agent, None, changes))
        before = os.umask(0o177)  # never open to more, not even for a moment
        try:
            server.add_insecure_port(f"unix:{path}")
            if group is not None:
                os.chown(path, -1, group)
                path.chmod(0o660)
        except (RuntimeError, OSError) as error:
            raise SetupError(f"cannot listen on {path}: {str(error).lower()}") from error
        finally:
            os.umask(before)
        server.start()

    def _serve_tls(self, address: Address, tls: Tls) -> None:
        ca, cert, key = tls.read()
        server = self._server(MeshAgentServicer(self._agent, frozenset(tls.names)))
        credentials = grpc.ssl_server_credentials([(key, cert)], root_certificates=ca, require_client_auth=True)
        try:
            server.add_secure_port(address.target, credentials)
        except RuntimeError as error:
            fix = "another program has the port, or the address is not one of this host"
            raise SetupError(f"cannot listen on {address.target}", fix) from error
        server.start()

    def _server(self, servicer: MeshAgentServicer) -> grpc.Server:
        options = [("grpc.so_reuseport", 0), ("grpc.max_receive_message_length", MAX_REQUEST_BYTES)]
        server = grpc.server(cast(Any, self._pool), options=options, maximum_concurrent_rpcs=_CALLS)
        pb_grpc.add_MeshAgentServiceServicer_to_server(servicer, server)
        health_pb2_grpc.add_HealthServicer_to_server(self._health, server)
        self._servicers.append(servicer)
        self._servers.append(server)
        return server

    def _publish_health(self) -> None:
        healthy = self._agent.status().healthy
        serving, not_serving = health_pb2.HealthCheckResponse.SERVING, health_pb2.HealthCheckResponse.NOT_SERVING
        self._health.set("", serving)  # the agent itself
        self._health.set(HEALTH_SERVICE, serving if healthy else not_serving)

    def _listen_to_kernel(self) -> None:
        """Without it changes are found a few seconds later."""
        try:
            self._monitor = subprocess.Popen(
                ["ip", "-o", "monitor", "link", "address", "route"],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                text=True,
            )
        except OSError as error:
            log.warning("'ip monitor' cannot be started (%s): changes are found within %g s", error, LOOK_S)
            return
        assert self._monitor.stdout is not None
        if self._stop.is_set():  # close() has looked for it already
            self._monitor.kill()
        for _ in self._monitor.stdout:
            self._wake.set()


def _lock_node() -> socket.socket:
    lock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        lock.bind(_NODE_LOCK)
        lock.listen(1)  # nobody is accepted; whoever connects learns who we are
    except OSError:
        lock.close()
        raise SetupError(
            f"another agent{_owner_of_lock()} runs on this node: two would undo each other's work",
            "see 'systemctl status roce-ring-agent' and 'pgrep -af \"roce-ring agent\"'",
        ) from None
    return lock


def _owner_of_lock() -> str:
    """As the kernel says: anybody can take a name like this one, and then it is no agent."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as asking, contextlib.suppress(OSError):
        asking.settimeout(1)
        asking.connect(_NODE_LOCK)
        pid, uid, _ = struct.unpack("3i", asking.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))
        return f" (process {pid} of user {uid})"
    return ""


def _let_in(directory: Path, group: int | None) -> None:
    """The group's members have to get as far as the sockets. systemd makes the directory the group's by itself."""
    if group is not None and directory.stat().st_gid != group:
        try:
            os.chown(directory, -1, group)
        except OSError as error:
            why = (error.strerror or str(error)).lower()
            raise SetupError(f"cannot give {directory} to the group: {why}", "run the agent as root") from None


def _tell_systemd(state: str) -> None:
    """sd_notify(3), where systemd asks for it: us, not the markers that we start and that speak the same protocol."""
    path = os.environ.pop("NOTIFY_SOCKET", None)
    if path:
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as notify:
            try:
                notify.sendto(state.encode(), "\0" + path[1:] if path.startswith("@") else path)
            except OSError as error:
                log.warning("systemd cannot be told that the agent is ready: %s", error)
