"""Facts in, plan out: the checks, then the ring, the paths and each node's part."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence

from . import checks, functions, repair, ring
from .cables import Cable, Plug
from .facts import Facts, Port, interface
from .finding import Finding, finding, raise_errors
from .functions import matching_gid
from .limits import HAIRPIN_MAX, busiest_load, limits
from .model import SCHEMA, CableEnd, Forwarding, Hca, Path, Plan, PlannedCable, Shape, with_hash
from .nodeplan import FORWARD_LABEL, forwarding, node_plans
from .paths import Way, ways

USUAL_GID_INDEX = 3
QUALIFIED_RELAYS = 3  # the most that another implementation of the counted scheme reports as qualified


def make_plan(facts: Facts) -> tuple[Plan, tuple[Finding, ...]]:
    """The plan and what is worth knowing about it; raises :class:`Refused` with every error found."""
    found = list(checks.check_facts(facts))
    raise_errors(found)
    hosts = tuple(node.host for node in facts)
    plugs = checks.plugs(facts)
    shape, cables, problems = ring.derive(hosts, plugs)
    ports = tuple(checks.ports(facts))
    forwards = len(hosts) > 3 or (len(hosts) == 3 and len(cables) < 3)
    found += _with_best_fix(hosts, plugs, problems)
    found += functions.check_functions(ports, cables, forwards, _relays(hosts, shape) if forwards else ())
    raise_errors(found)
    assert shape is not None  # no ring without a finding
    plan = _assemble(hosts, ports, shape, cables)
    return plan, (*found, *_advice(plan, facts))


def _relays(hosts: Sequence[str], shape: ring.Ring | None) -> tuple[int, ...]:
    """The ranks that pass frames on: all of a ring, all but the ends of a chain; all if the wiring is not known yet."""
    if shape is None:
        return tuple(range(len(hosts)))
    return tuple(rank for rank, *cages in zip(shape.order, shape.ahead, shape.back, strict=True) if None not in cages)


def _with_best_fix(hosts: Sequence[str], plugs: Sequence[Plug], problems: Sequence[Finding]) -> Iterator[Finding]:
    if not problems:
        return
    cages = {plug.cage for plug in plugs if plug.network}
    changes = repair.smallest_changes(hosts, plugs, complete=len(cages) == 2 * len(hosts))
    together = "; then ".join(changes) + "; nothing else has to change"
    asked = _is_a_node_missing(plugs)
    for problem in problems:
        fix = asked + (together if changes else problem.fix)
        yield finding(problem.code, problem.where, problem.seen, problem.expected, fix)


def _is_a_node_missing(plugs: Sequence[Plug]) -> str:
    """The question to ask before addresses are changed, or nothing if it is not likely.

    A node left out of the list leaves its two neighbours each with a port that has no partner on any plane.
    """
    addressed = tuple(plug for plug in plugs if plug.network)
    members = Counter(plug.network for plug in addressed)
    paired = {plug.cage for plug in addressed if members[plug.network] > 1}
    alone = dict.fromkeys(plug.host for plug in addressed if plug.cage not in paired)
    if len(alone) < 2:
        return ""
    return f"is a node missing from the list, next to {' and '.join(alone)}? then add it; if not, "


def _assemble(hosts: Sequence[str], ports: Sequence[Port], shape: ring.Ring, cables: Sequence[Cable]) -> Plan:
    planes = tuple(sorted({port.plane for port in ports}))
    ends = _hcas(ports)
    bare = _paths(shape, planes, ends, 0)
    scheme = forwarding(bare)
    paths = _paths(shape, planes, ends, FORWARD_LABEL) if scheme == "single-relay" else bare
    load = busiest_load(paths, shape.order)
    relays = {rank for path in paths for rank in path.via}
    sizes = {
        (port.rank, port.pci.lower()): port.hairpin_queue_size
        for port in ports
        if port.rank in relays and port.hairpin_queue_size is not None
    }
    smallest = min(sizes.values(), default=None)
    return with_hash(
        Plan(
            schema=SCHEMA,
            hash="",
            shape=_shape(shape),
            planes=planes,
            hosts=tuple(hosts),
            ring=shape.order,
            forwarding=scheme,
            proven=_proven(scheme, shape),
            limits=limits(load, smallest, len(planes)),
            cables=tuple(PlannedCable((CableEnd(*cable.a), CableEnd(*cable.b)), cable.networks) for cable in cables),
            paths=paths,
            nodes=node_plans(shape, hosts, ends, paths, scheme, sizes),
        )
    )


def _shape(shape: ring.Ring) -> Shape:
    return "pair" if len(shape.order) == 2 else "ring" if shape.closed else "chain"


def _proven(scheme: Forwarding, shape: ring.Ring) -> str:
    if scheme == "none":
        return "nothing is forwarded"
    if scheme == "single-relay":
        same = shape.closed and len(shape.order) == 4
        return (
            "proven on hardware (four-Spark ring)"
            if same
            else "the four-Spark ring's rules in a geometry not run on hardware"
        )
    return "unproven on hardware"


def _hcas(ports: Sequence[Port]) -> dict[tuple[int, int, int], Hca]:
    ends: dict[tuple[int, int, int], Hca] = {}
    count: dict[int, int] = {}
    for port in sorted(ports, key=lambda p: (p.rank, p.plane, p.port)):
        index = count.get(port.rank, 0)
        count[port.rank] = index + 1
        right = matching_gid(port)
        gid_index = right.index if right is not None else port.gid_index
        assert port.mac is not None and port.mtu is not None and gid_index is not None  # checked
        address, mac = str(interface(port)), port.mac.lower()
        ends[port.rank, port.plane, port.port] = Hca(
            index, port.rdma, port.netdev, port.pci.lower(), port.plane, port.port, address, mac, port.mtu, gid_index
        )
    return ends


def _paths(
    shape: ring.Ring, planes: Sequence[int], ends: dict[tuple[int, int, int], Hca], label: int
) -> tuple[Path, ...]:
    both = [path for pair in ways(shape, planes) for way in pair for path in _both_directions(way, ends, label)]
    return tuple(sorted(both, key=lambda path: (path.source, path.target)))  # stable: path order inside a pair stays


def _both_directions(way: Way, ends: dict[tuple[int, int, int], Hca], label: int) -> Iterator[Path]:
    first, *via, last = way.ranks
    a, b = ends[first, way.plane, way.leaves], ends[last, way.plane, way.arrives]
    here, there = a.address.split("/")[0], b.address.split("/")[0]
    used = label if via else 0
    yield Path(first, last, way.plane, tuple(via), a.index, b.index, here, there, used)
    yield Path(last, first, way.plane, tuple(reversed(via)), b.index, a.index, there, here, used)


def _advice(plan: Plan, facts: Facts) -> Iterator[Finding]:
    world = len(plan.hosts)
    if plan.limits.hairpin_packets is not None and plan.limits.hairpin_packets < HAIRPIN_MAX:
        low = [f"{node.host} {h.pci} {h.seen}" for node in plan.nodes for h in node.hairpins if h.seen < h.wanted]
        some = ", ".join(low[:4]) + (", ..." if len(low) > 4 else "")
        seen = f"{len(low)} function(s) below the maximum, the smallest {plan.limits.hairpin_packets}: {some}"
        better = limits(plan.limits.load, HAIRPIN_MAX, len(plan.planes)).max_bytes
        now = plan.limits.max_bytes
        fix = f"set {HAIRPIN_MAX} as --dry-run shows and plan again: the size cap grows from {now} to {better}"
        yield finding("hairpin-small", "hairpin queues", seen, f"{HAIRPIN_MAX} packets", fix)
    indices = {hca.gid_index for node in plan.nodes for hca in node.hcas}
    if indices != {USUAL_GID_INDEX}:
        odd = [f"{n.host} {h.rdma} {h.gid_index}" for n in plan.nodes for h in n.hcas if h.gid_index != USUAL_GID_INDEX]
        fix = (
            "none for roce-ring, which looks it up per device; for an engine with one global index re-add the addresses"
        )
        yield finding(
            "gid-index-differs",
            ", ".join(odd),
            "the GID sits at another index",
            f"index {USUAL_GID_INDEX} everywhere",
            fix,
        )
    if not _ring_order(plan):
        fix = "plan with the order that --propose-order prints"
        seen = f"the ring is {' -> '.join(map(str, plan.ring))} in ranks"
        expected = (
            "consecutive ranks on neighbouring nodes (NCCL's ring and engines that count hops by rank distance need it)"
        )
        yield finding("order-not-ring", "tensor-parallel order", seen, expected, fix)
    if plan.shape == "chain":
        ends = f"{plan.hosts[plan.ring[0]]} and {plan.hosts[plan.ring[-1]]}"
        fix = (
            f"cable the free ports of {ends} and address both ends; a chain forwards more and NCCL's ring cannot close"
        )
        yield finding("open-chain", ends, "no addressed cable joins these two", "a closed ring", fix)
    if len(plan.planes) == 1:
        fix = "give the other plane's functions addresses too: one plane carries about 100 of 200 Gb/s"
        yield finding("single-plane", "all nodes", f"only plane {plan.planes[0]} has addresses", "both planes", fix)
    most = max(len(path.via) for path in plan.paths)
    if most > 1:
        tail = f", beyond the {QUALIFIED_RELAYS} that anybody reports" if most > QUALIFIED_RELAYS else ""
        fix = "measure the farthest pair with 'ib_write_lat' before serving, and watch for drops"
        yield finding(
            "relays-unproven", "farthest pair", f"{most} relays on the way{tail}", "one relay, the proven case", fix
        )
    if world not in (4, 8):
        fix = "use roce-ring's own communicator; the other engines' lines are printed for it"
        yield finding("engine-world", "nodes", f"{world} ranks", "4 or 8 for the recipe's SGLang overlay", fix)
    if len({tuple(hca.rdma for hca in node.hcas) for node in plan.nodes}) > 1:
        yield finding(
            "names-differ",
            "RDMA devices",
            "the lists differ between nodes",
            "one list for all",
            "give line r to rank r",
        )


def _ring_order(plan: Plan) -> bool:
    """Whether every rank and the next one (wrapping) are joined by a cable."""
    if plan.shape == "chain":
        return all(abs(a - b) == 1 for a, b in zip(plan.ring, plan.ring[1:], strict=False))
    world = len(plan.ring)
    steps = {(plan.ring[(place + 1) % world] - rank) % world for place, rank in enumerate(plan.ring)}
    return steps <= {1} or steps <= {world - 1}
