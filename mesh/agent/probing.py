"""This node's ends of the paths that somebody proves: opened, connected and written over on behalf of one caller."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from types import TracebackType
from typing import TypeVar

from roce_ring.control.proto.roce_ring.v1 import mesh_agent_service_pb2 as pb
from roce_ring.errors import RoceRingError
from roce_ring.probe import Probe

MOST_ENDS = 256  # 16 nodes have 15 peers, with at most 4 paths each, at both ends of a write
T = TypeVar("T")
R = TypeVar("R")


class ProbeEnds:
    """A context manager: what was opened is closed at the end, whatever happened."""

    def __init__(self) -> None:
        self._probes: dict[str, Probe] = {}

    def __enter__(self) -> ProbeEnds:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for probe in self._probes.values():
            probe.close()

    def answer(self, request: pb.ProbePathsRequest) -> pb.ProbePathsResponse:
        if request.HasField("open"):
            return pb.ProbePathsResponse(endpoints=_each(self._open, request.open.ends[:MOST_ENDS]))
        if request.HasField("connect"):
            return pb.ProbePathsResponse(endpoints=_each(self._connect, request.connect.peers))
        asked = request.write
        results = _each(lambda name: self._write(name, asked), [name for name in asked.names if name in self._probes])
        return pb.ProbePathsResponse(results=results)

    def _open(self, end: pb.ProbeEnd) -> pb.ProbeEndpoint:
        try:
            probe = Probe(end.rdma, end.address, end.flow_label)
        except RoceRingError as error:
            return pb.ProbeEndpoint(name=end.name, error=str(error))
        self._probes[end.name] = probe
        return pb.ProbeEndpoint(name=end.name, endpoint=probe.endpoint)

    def _connect(self, peer: pb.ProbeEndpoint) -> pb.ProbeEndpoint:
        if peer.name not in self._probes:
            return pb.ProbeEndpoint(name=peer.name, error="this end is not open")
        try:
            self._probes[peer.name].connect(peer.endpoint)
        except RoceRingError as error:
            return pb.ProbeEndpoint(name=peer.name, error=str(error))
        return pb.ProbeEndpoint(name=peer.name)

    def _write(self, name: str, asked: pb.ProbePathsRequest.Write) -> pb.ProbeResult:
        try:
            done = self._probes[name].write(asked.count, asked.size_bytes, asked.timeout_ms / 1000)
        except RoceRingError as error:
            return pb.ProbeResult(name=name, why=str(error))
        return pb.ProbeResult(name=name, ok=done.ok, why=done.why, latencies_us=done.latencies_us)


def _each(work: Callable[[T], R], items: Iterable[T]) -> list[R]:
    """All at once: a dead path takes its whole time limit."""
    wanted = list(items)
    if not wanted:
        return []
    with ThreadPoolExecutor(max_workers=min(len(wanted), 16)) as pool:
        return list(pool.map(work, wanted))
