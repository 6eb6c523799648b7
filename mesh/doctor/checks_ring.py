"""Checks across nodes: do the two ends of every cable fit, do all nodes hold the same versions, is anybody missing."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from .. import functions
from ..cables import Cable
from ..facts import Port
from ..finding import Finding, Refused, finding
from ..model import Plan
from ..planner import make_plan
from .checks_software import holders
from .evidence import Evidence, Function, facts_of
from .view import Found, View

# What the planner says of several nodes and the checks of one node do not; the rest would be said twice.
_ACROSS = {
    *("port-alone", "subnet-crowded", "subnet-overlap", "crossed-planes", "planes-disagree", "same-index-cable"),
    *("ring-closes-early", "ring-broken", "node-alone", "duplicate-address", "duplicate-mac", "duplicate-host"),
    *("open-chain", "single-plane", "node-count", "bad-value"),
}


def implied_plan(nodes: Sequence[Evidence]) -> tuple[Plan | None, tuple[Finding, ...]]:
    """The plan that follows from what was seen, if these nodes are a ring, and what speaks against it."""
    if len(nodes) < 2 or any(item.soft for node in nodes for item in node.functions):
        return None, ()
    try:
        plan, found = make_plan(facts_of(nodes))
    except Refused as refused:
        return None, tuple(item for item in refused.findings if item.code in _ACROSS)
    return plan, tuple(item for item in found if item.code in _ACROSS)


def ends(plan: Plan | None, views: Sequence[View]) -> Found:
    if plan is None:
        return
    by_place: dict[tuple[int, int, int], Port] = {}
    for view in views:
        for item, port in view.ports:
            if view.part is not None and (hca := view.hca(item)) is not None:
                by_place[view.part.rank, hca.port, hca.plane] = port
    cables = []
    for cable in plan.cables:
        a, b = cable.ends
        cables.append(Cable((a.rank, a.port), (b.rank, b.port), cable.networks))
    yield from functions.mtu_ends(by_place, cables)


def cabling(plan: Plan | None, views: Sequence[View]) -> Found:
    """What answers at the far end of a port is the port that the plan has there."""
    if plan is None:
        return
    owners = {hca.mac: (node.host, node.rank, hca) for node in plan.nodes for hca in node.hcas}
    far: dict[tuple[int, int], tuple[int, int]] = {}
    for cable in plan.cables:
        a, b = cable.ends
        far |= {(a.rank, a.port): (b.rank, b.port), (b.rank, b.port): (a.rank, a.port)}
    for view in views:
        for item in view.functions:
            hca = view.hca(item)
            if view.part is None or hca is None:
                continue
            yield from _silent(plan, view, item, *far[view.part.rank, hca.port])
            for mac in view.node.far_macs.get(item.netdev, ()):
                host, rank, there = owners.get(mac, ("", -1, None))
                # Both planes share the cable, and two functions of one port hear each other inside the card.
                fine = (far[view.part.rank, hca.port], (view.part.rank, hca.port))
                if there is None or (rank, there.port) in fine:
                    continue
                wanted_rank, wanted_port = far[view.part.rank, hca.port]
                expected = f"{plan.hosts[wanted_rank]} port {wanted_port}, as in the plan"
                seen = f"{host} {there.netdev} ({mac}) answers at the other end of its cable"
                fix = f"plug this cable into {expected.partition(',')[0]}, or plan again with the cables as they are"
                if rank == wanted_rank:
                    fix = f"on {host} swap the two cables, or plan again with the cables as they are"
                yield view.find("cable-moved", item.netdev, seen, expected, fix)


def _silent(plan: Plan, view: View, item: Function, rank: int, port: int) -> Found:
    hca = view.hca(item)
    peers = [there for there in plan.nodes[rank].hcas if hca and (there.port, there.plane) == (port, hca.plane)]
    for there in peers:
        address = there.address.partition("/")[0]
        if item.link_up and address in view.node.silent.get(item.netdev, ()):
            where = f"{plan.hosts[rank]} {there.netdev}"
            seen = f"the link is up, and {address} of {where} does not answer ARP"
            fix = f"see that {where} is up with that address, and that the cable leads there"
            yield view.find("peer-silent", item.netdev, seen, f"{where} at the other end", fix)


def planned_hosts(plan: Plan | None, views: Sequence[View]) -> Found:
    if plan is None:
        return
    for view in views:
        if view.part is None:
            fix = "name the plan of this ring, or the host as the plan does (--ssh takes its names)"
            seen = f"the plan has {', '.join(plan.hosts)}"
            yield finding("host-not-planned", view.host, seen, f"a plan with {view.host}", fix)
    seen_hosts = {view.part.host for view in views if view.part is not None}
    missing = [host for host in plan.hosts if host not in seen_hosts]
    if missing and len(views) > 1:  # one node alone is what was asked for
        fix = f"'roce-ring doctor --ssh {' '.join(plan.hosts)}' looks at all of them"
        yield finding("node-not-asked", ", ".join(missing), "not looked at", "every node of the plan", fix)


def gid_indices(plan: Plan | None, views: Sequence[View]) -> Found:
    found: dict[int, list[str]] = {}
    for view in views:
        for item, port in view.ports:
            if (row := functions.matching_gid(port)) is not None:
                found.setdefault(row.index, []).append(f"{view.host} {item.rdma}")
    if len(found) > 1:
        usual = max(found, key=lambda index: len(found[index]))
        odd = [f"{name} {index}" for index, names in found.items() if index != usual for name in names]
        fix = (
            "none for roce-ring, which looks it up per device; for an engine with one global index re-add the addresses"
        )
        yield finding("gid-index-differs", ", ".join(odd), "the GID sits at another index", f"index {usual}", fix)


def versions(plan: Plan | None, views: Sequence[View]) -> Found:
    """What must be equal for equal results (NCCL), and what should be for equal speed."""
    for name, code, read in _VERSIONS:
        by_value: dict[str, list[str]] = {}
        for view in views:
            for value in sorted(read(view.node)):
                by_value.setdefault(value, []).append(view.host)
        if len(by_value) > 1 and len({tuple(hosts) for hosts in by_value.values()}) > 1:
            where = ", ".join(dict.fromkeys(host for hosts in by_value.values() for host in hosts))
            seen = f"{name} " + ", ".join(f"{value} on {' and '.join(hosts)}" for value, hosts in by_value.items())
            yield finding(code, where, seen, f"one {name} on all nodes", "install the same on all nodes")


def plans(plan: Plan | None, views: Sequence[View]) -> Found:
    """Without a plan given: do all hold the same one."""
    held = {hash: f"{view.host} {who}" for view in views if not view.given for who, hash in holders(view)}
    if len(held) > 1:
        seen = ", ".join(f"{where} holds plan {hash[:12]}" for hash, where in held.items())
        fix = "give all nodes and ranks the same plan ('roce-ring up', ROCE_RING_PLAN), and start all ranks again"
        yield finding("plan-differs", ", ".join(held.values()), seen, "one plan on all nodes", fix)


def _firmware(node: Evidence) -> set[str]:
    return {item.firmware for item in _hardware(node) if item.firmware}


def _hardware(node: Evidence) -> list[Function]:
    return [item for item in node.functions if not item.soft]


def _loaded_nccl(node: Evidence) -> set[str]:
    return {process.libraries["nccl"] for process in node.processes if "nccl" in process.libraries}


def _installed(name: str) -> Callable[[Evidence], set[str]]:
    return lambda node: {node.libraries[name]} if name in node.libraries else set()


_VERSIONS: tuple[tuple[str, str, Callable[[Evidence], set[str]]], ...] = (
    ("loaded NCCL", "nccl-differs", _loaded_nccl),
    ("installed NCCL", "versions-differ", _installed("nccl")),
    ("kernel", "versions-differ", lambda node: {node.kernel.release}),
    ("libibverbs", "versions-differ", _installed("libibverbs")),
    ("NIC firmware", "versions-differ", _firmware),
)
