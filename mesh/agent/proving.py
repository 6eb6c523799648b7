"""Proves every path of a plan with real RDMA writes, both ways, and that relays passed them on in hardware.

A caller joins the ends that the nodes' agents open: agents need not know or trust each other.
"""

from __future__ import annotations

import queue
from collections.abc import Collection, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from statistics import median

import msgspec

from roce_ring.control.proto.roce_ring.v1 import mesh_agent_service_pb2 as pb
from roce_ring.errors import RoceRingError

from ..finding import Finding, finding
from ..model import Path, Plan
from ..things import Rule
from ..trace import relays
from .client import AgentClient
from .model import NodeStatus

WRITES, SIZE, WRITE_S = 8, 32768, 1.0  # eight RoCE packets of 4096 bytes each: a wrong MTU on the way shows
_STREAM_S = 60.0


class Proof(msgspec.Struct, frozen=True):
    """One path in one direction. ``ok``: proved; otherwise ``why`` not: broken, or unknown because an end or a relay
    was not asked. ``latency_us``: median of its writes, 0 if none was acknowledged. ``relayed``: frames
    that each relay's rule counted meanwhile, in travel order."""

    source: str
    target: str
    plane: int
    via: tuple[str, ...]
    ok: bool
    why: str
    latency_us: float
    relayed: tuple[int, ...]


def prove(
    plan: Plan, agents: Mapping[str, AgentClient], before: Mapping[str, NodeStatus]
) -> tuple[list[Proof], list[Finding], dict[str, NodeStatus]]:
    """Every path of the plan, those of nodes that are not in ``agents`` as unknown; what is wrong; and the nodes' new
    states. ``before``: as of now."""
    paths = {
        f"{index}": path
        for index, path in enumerate(plan.paths)
        if plan.hosts[path.source] in agents and plan.hosts[path.target] in agents
    }
    with ExitStack() as stack:
        ends = {host: stack.enter_context(_Ends(agent)) for host, agent in agents.items()}
        results = _write_all(plan, paths, ends)
    after, found = _look(agents)
    proofs = []
    for name, path in paths.items():
        proof, problems = _judge(plan, path, results[name], before, after)
        proofs.append(proof)
        found += problems
    proofs += [_not_asked(plan, path, agents) for path in plan.paths if path not in paths.values()]
    return proofs, found + _in_software(plan, before, after), after


def _not_asked(plan: Plan, path: Path, agents: Collection[str]) -> Proof:
    source, target = plan.hosts[path.source], plan.hosts[path.target]
    absent = " and ".join(host for host in (source, target) if host not in agents)
    via = tuple(plan.hosts[rank] for rank in path.via)
    return Proof(source, target, path.plane, via, False, f"unknown: {absent} took no part", 0.0, ())


def _look(agents: Mapping[str, AgentClient]) -> tuple[dict[str, NodeStatus], list[Finding]]:
    """All nodes as they are now, and a finding for each that does not answer any more."""
    states, found = {}, []
    with ThreadPoolExecutor(max_workers=max(1, len(agents))) as pool:
        asked = {host: pool.submit(agent.status, True) for host, agent in agents.items()}
    for host, future in asked.items():
        try:
            states[host] = future.result()
        except RoceRingError as error:
            fix = error.hint or "see the agent's log there"
            found.append(finding("agent-unreachable", host, error.message, "an answer", fix))
    return states, found


class _Ends:
    """One agent's ProbePaths stream, as calls."""

    def __init__(self, agent: AgentClient) -> None:
        self._requests: queue.SimpleQueue[pb.ProbePathsRequest | None] = queue.SimpleQueue()
        self._answers = agent.probes(iter(self._requests.get, None), _STREAM_S)

    def __enter__(self) -> _Ends:
        return self

    def __exit__(self, *_: object) -> None:
        self._requests.put(None)

    def ask(self, request: pb.ProbePathsRequest) -> pb.ProbePathsResponse:
        self._requests.put(request)
        return next(self._answers)


def _write_all(plan: Plan, paths: Mapping[str, Path], ends: Mapping[str, _Ends]) -> dict[str, pb.ProbeResult]:
    """Opens both ends of every pair of opposite paths, joins them, writes from both. Ends are named by their path."""
    results: dict[str, pb.ProbeResult] = {}
    of_host: dict[str, list[str]] = {host: [] for host in ends}
    for name, path in paths.items():
        of_host[plan.hosts[path.source]].append(name)

    def each(request: Mapping[str, pb.ProbePathsRequest]) -> Iterator[pb.ProbePathsResponse]:
        with ThreadPoolExecutor(max_workers=max(1, len(request))) as pool:
            asked = {host: pool.submit(ends[host].ask, message) for host, message in request.items()}
            for host, future in asked.items():
                try:
                    yield future.result()
                except (RoceRingError, StopIteration) as error:
                    for name in of_host[host]:
                        results[name] = pb.ProbeResult(name=name, why=str(error) or f"the agent of {host} hung up")

    opened: dict[str, bytes] = {}
    opening = {
        host: pb.ProbePathsRequest(open=pb.ProbePathsRequest.Open(ends=[_end(plan, n, paths[n]) for n in names]))
        for host, names in of_host.items()
    }
    for answer in each(opening):
        for made in answer.endpoints:
            if made.error:
                results[made.name] = pb.ProbeResult(name=made.name, why=made.error)
            else:
                opened[made.name] = made.endpoint
    back = _opposites(paths)
    for name in paths:
        if back[name] not in opened and name not in results:
            results[name] = pb.ProbeResult(name=name, why=f"no queue pair at its far end: {results[back[name]].why}")
    joining = {
        host: pb.ProbePathsRequest(
            connect=pb.ProbePathsRequest.Connect(
                peers=[pb.ProbeEndpoint(name=n, endpoint=opened[back[n]]) for n in names if n not in results]
            )
        )
        for host, names in of_host.items()
    }
    for answer in each(joining):
        for made in answer.endpoints:
            if made.error:
                results[made.name] = pb.ProbeResult(name=made.name, why=made.error)
    writing = {
        host: pb.ProbePathsRequest(
            write=pb.ProbePathsRequest.Write(
                names=[n for n in names if n not in results],
                count=WRITES,
                size_bytes=SIZE,
                timeout_ms=round(WRITE_S * 1000),
            )
        )
        for host, names in of_host.items()
    }
    for answer in each(writing):
        results.update({result.name: result for result in answer.results})
    return results


def _end(plan: Plan, name: str, path: Path) -> pb.ProbeEnd:
    hca = plan.nodes[path.source].hcas[path.source_hca]
    return pb.ProbeEnd(name=name, rdma=hca.rdma, address=path.source_address, flow_label=path.flow_label)


def _opposites(paths: Mapping[str, Path]) -> dict[str, str]:
    """The name of the same path seen from its other end."""
    ends = {(p.source, p.target, p.source_address, p.target_address): name for name, p in paths.items()}
    return {name: ends[p.target, p.source, p.target_address, p.source_address] for name, p in paths.items()}


def _judge(
    plan: Plan,
    path: Path,
    result: pb.ProbeResult,
    before: Mapping[str, NodeStatus],
    after: Mapping[str, NodeStatus],
) -> tuple[Proof, list[Finding]]:
    source, target = plan.hosts[path.source], plan.hosts[path.target]
    where = f"{source} to {target}, plane {path.plane}"
    via = tuple(plan.hosts[rank] for rank in path.via)
    if via:
        where += f" via {' and '.join(via)}"
    rules = relays(plan, path)
    keys = [(rank, Rule(rule, hardware=True).key) for rank, rule in rules]
    unseen = [host for host in via if host not in before or host not in after]
    if unseen:
        keys = []  # a relay that cannot be asked proves nothing, and refutes nothing
    relayed = tuple(_packets(plan, rank, key, after) - _packets(plan, rank, key, before) for rank, key in keys)
    latency = median(result.latencies_us) if result.latencies_us else 0.0
    why = f"unknown: writes arrive, but nobody looked at relay {', '.join(unseen)}" if unseen else ""
    proof = Proof(
        source, target, path.plane, via, result.ok and not unseen, result.why or why, latency, relayed
    )  # fmt: skip
    found = []
    if not result.ok:
        fix = "'roce-ring doctor' on its nodes; see the rules it passes with 'roce-ring status PLAN'"
        found.append(finding("path-broken", where, result.why or "no answer", "acknowledged RDMA writes", fix))
    elif any(count < WRITES for count in relayed):
        seen = f"the rules on its way counted {', '.join(map(str, relayed))} frames for {WRITES} writes"
        fix = "see 'tc -s filter show' on the relay and the marker at the source: frames went another way"
        found.append(finding("path-not-relayed", where, seen, f"at least {WRITES} at each", fix))
    return proof, found


def _packets(plan: Plan, rank: int, key: str, seen: Mapping[str, NodeStatus]) -> int:
    status = seen.get(plan.hosts[rank])
    things = status.things if status else ()
    return max(0, next((thing.packets for thing in things if thing.key == key), 0))


def _in_software(plan: Plan, before: Mapping[str, NodeStatus], after: Mapping[str, NodeStatus]) -> list[Finding]:
    """Relays whose kernel forwarded at least as many datagrams as one path has sent."""
    found = []
    relaying = {plan.hosts[rank] for path in plan.paths for rank in path.via}
    for host in sorted(relaying & set(before) & set(after)):
        moved = after[host].forwarded - before[host].forwarded
        if moved >= WRITES:
            fix = "the marker at the source does not mark, or the rule is not there: frames reach this kernel as IP"
            seen = f"its kernel forwarded {moved} datagrams meanwhile"
            found.append(finding("path-in-software", host, seen, "none", fix))
    return found
