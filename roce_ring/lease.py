"""A session's lease at its node's agent: while it lives, the agent does nothing that would cut the session off."""

from __future__ import annotations

import logging
import queue
import threading
from pathlib import Path
from typing import TYPE_CHECKING

from .errors import RoceRingError, SetupError

if TYPE_CHECKING:
    from .control.proto.roce_ring.v1 import mesh_agent_service_pb2 as pb

log = logging.getLogger(__name__)

RUN_DIR = Path("/run/roce-ring")  # where the agent has its sockets, unless it was told otherwise
SOCKET = "lease.sock"
_ANSWER_S = 5.0
_AGAIN_S = 2.0


class Lease:
    """Held from construction to close(). Raises SetupError if the agent refuses, for example because another plan
    stands. An agent that goes away later does not stop the session: that is logged, and the lease is taken again when
    it is back."""

    def __init__(self, socket: Path, session: str, holder: str, plan_hash: str) -> None:
        """`plan_hash`: the plan that must stand, or nothing if none is needed."""
        self._socket, self._session, self._holder, self._plan_hash = socket, session, holder, plan_hash
        self._closing, self._answered = threading.Event(), threading.Event()
        self._refusal = ""
        self._requests: queue.SimpleQueue[pb.HoldLeaseRequest | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._hold, name="roce-ring-lease", daemon=True)
        self._thread.start()
        if not self._answered.wait(_ANSWER_S):
            self._refusal = f"the node agent behind {socket} did not answer within {_ANSWER_S:g} s"
        if self._refusal:
            self.close()
            raise SetupError(
                self._refusal, "see 'roce-ring status' and the agent's log ('journalctl -u roce-ring-agent')"
            )

    def close(self) -> None:
        """Gives it back. Safe to call twice."""
        if not self._closing.is_set():
            self._closing.set()
            self._requests.put(self._request(release=True))
            self._requests.put(None)
            self._thread.join(_AGAIN_S)

    def _hold(self) -> None:
        """Once around per connection."""
        while not self._closing.is_set():
            try:
                self._stream()
                why = "it ended the lease"
            except RoceRingError as error:
                why = error.message
            if not self._answered.is_set():
                self._refusal = self._refusal or why
                self._answered.set()
                return
            if not self._closing.is_set():
                log.warning("the node agent went away (%s): the paths stay as they are, but nobody watches them", why)
                self._closing.wait(_AGAIN_S)

    def _stream(self) -> None:
        from .control.address import Address
        from .mesh.agent.client import AgentClient

        with AgentClient(Address(f"unix:{self._socket}", self._socket, True), None, "this node") as agent:
            self._requests = queue.SimpleQueue()
            self._requests.put(self._request())
            if self._closing.is_set():
                return
            for findings in agent.lease(iter(self._requests.get, None)):
                if findings and not self._answered.is_set():
                    self._refusal = "; ".join(f"{item.problem}; {item.fix}" for item in findings)
                    return
                self._answered.set()
                for item in findings:
                    log.warning("node agent: %s", item)

    def _request(self, release: bool = False) -> pb.HoldLeaseRequest:
        from .control.proto.roce_ring.v1 import mesh_agent_service_pb2 as pb

        return pb.HoldLeaseRequest(
            session=self._session, holder=self._holder, plan_hash=self._plan_hash, release=release
        )


def take_lease(run_dir: str, session: str, holder: str, plan_hash: str) -> Lease | None:
    """At the agent of this node; None if it has none, or none that can be asked: an agent that is down keeps no session
    from starting. Raises SetupError if it refuses."""
    from .control.rundir import Reach, probe

    for place in (Path(run_dir) if run_dir else RUN_DIR, RUN_DIR):
        reach = probe(place / SOCKET)
        if reach is Reach.RUNNING:
            return Lease(place / SOCKET, session, holder, plan_hash)
        if reach is not None:
            why = "it is down" if reach is Reach.STALE else "this user may not ask it"
            log.warning("no lease from the node agent behind %s (%s): nobody watches the paths", place / SOCKET, why)
            return None
    return None
