"""What each node has to set up so that every path works: routes, neighbours, relay rules, markers.

A path over relays needs, at its source, a /32 route to the far port, a permanent neighbour entry that names the next
node's MAC, and a mark (an EtherType) that hides the frame from the relay's RDMA engine; at each relay, one tc rule that
passes it on. The last relay restores EtherType 0x0800. The EtherType lies outside the packet's checksum (ICRC).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence

from .limits import HAIRPIN_MAX
from .model import Forwarding, Hairpin, Hca, Mark, Marker, Neighbour, NodePlan, Path, RelayRule, Route
from .ring import Ring

IPV4 = 0x0800
TAG = 0x88B4  # + relays left; 0x88b5, one relay left, is IEEE's first local experimental EtherType
FORWARD_LABEL = 0x3FFF  # flow label of forwarded queue pairs in the single-relay scheme
FORWARD_SPORT = 0xC000 | FORWARD_LABEL  # the UDP source port that label gives: 65535
SINGLE_BASE = 49152  # first preference and handle of the single-relay rules
COUNTED_BASE = 10  # preference of a counted rule is this plus the relays left

Ends = Mapping[tuple[int, int, int], Hca]  # (rank, plane, port) -> function


def forwarding(paths: Iterable[Path]) -> Forwarding:
    """Which scheme the longest path needs."""
    most = max((len(path.via) for path in paths), default=0)
    return "none" if most == 0 else "single-relay" if most == 1 else "counted-relays"


def node_plans(
    ring: Ring,
    hosts: Sequence[str],
    ends: Ends,
    paths: Sequence[Path],
    scheme: Forwarding,
    hairpins: Mapping[tuple[int, str], int],
) -> tuple[NodePlan, ...]:
    """One plan per rank. ``hairpins`` maps (relay's rank, PCI address) to the queue size in effect."""
    by_source: dict[int, list[Path]] = defaultdict(list)
    for path in paths:
        if path.via:
            by_source[path.source].append(path)
    toward = _toward(ring)
    rules = _relay_rules(toward, ends, paths, scheme)
    position = {rank: place for place, rank in enumerate(ring.order)}
    plans = []
    for rank, host in enumerate(hosts):
        hcas = tuple(hca for (owner, _, _), hca in sorted(ends.items()) if owner == rank)
        mine = sorted(by_source[rank], key=lambda path: (path.source_hca, path.target))
        own_rules = tuple(rules[rank])
        relaying = {rule.device for rule in own_rules}
        plans.append(
            NodePlan(
                rank, host, position[rank], hcas,
                routes=tuple(Route(p.target_address, hcas[p.source_hca].netdev, p.source_address) for p in mine),
                neighbours=tuple(
                    Neighbour(p.target_address, _next_mac(toward, ends, p), hcas[p.source_hca].netdev) for p in mine
                ),
                clsact=tuple(hca.netdev for hca in hcas if hca.netdev in relaying),
                rules=own_rules,
                markers=_markers(hcas, mine, scheme),
                hairpins=tuple(
                    Hairpin(hca.pci, seen, HAIRPIN_MAX) for hca in hcas if (seen := hairpins.get((rank, hca.pci)))
                ),
            )
        )  # fmt: skip
    return tuple(plans)


def _toward(ring: Ring) -> dict[tuple[int, int], int]:
    """(rank, its neighbour) -> the cage of ``rank`` that is cabled to that neighbour."""
    toward: dict[tuple[int, int], int] = {}
    for place, (rank, out) in enumerate(zip(ring.order, ring.ahead, strict=True)):
        after = (place + 1) % len(ring.order)
        back = ring.back[after]
        if out is not None and back is not None:
            toward[rank, ring.order[after]], toward[ring.order[after], rank] = out, back
    return toward


def _next_mac(toward: Mapping[tuple[int, int], int], ends: Ends, path: Path) -> str:
    return ends[path.via[0], path.plane, toward[path.via[0], path.source]].mac


def _relay_rules(
    toward: Mapping[tuple[int, int], int], ends: Ends, paths: Iterable[Path], scheme: Forwarding
) -> dict[int, list[RelayRule]]:
    # relay -> (index of the function it enters by, relays left) -> (entry, exit, next node's MAC, first sender's MAC)
    wanted: dict[int, dict[tuple[int, int], tuple[Hca, Hca, str, str]]] = defaultdict(dict)
    for path in paths:
        ranks = (path.source, *path.via, path.target)
        for step, (before, relay, after) in enumerate(zip(ranks, ranks[1:], ranks[2:], strict=False)):
            entry = ends[relay, path.plane, toward[relay, before]]
            out = ends[relay, path.plane, toward[relay, after]]
            next_mac = ends[after, path.plane, toward[after, relay]].mac
            sender_mac = ends[path.source, path.plane, toward[path.source, ranks[1]]].mac
            wanted[relay][entry.index, len(path.via) - step] = entry, out, next_mac, sender_mac
    rules: dict[int, list[RelayRule]] = defaultdict(list)
    single = scheme == "single-relay"
    for relay, by_key in wanted.items():
        for ordinal, ((_, left), (entry, out, next_mac, sender_mac)) in enumerate(sorted(by_key.items())):
            rules[relay].append(
                RelayRule(
                    device=entry.netdev,
                    ethertype=TAG + left,
                    match_source_mac=sender_mac if single else None,
                    match_target_mac=entry.mac if single else None,
                    preference=SINGLE_BASE + ordinal if single else COUNTED_BASE + left,
                    handle=SINGLE_BASE + ordinal if single else left,
                    set_ethertype=TAG + left - 1 if left > 1 else IPV4,
                    set_target_mac=next_mac,
                    output=out.netdev,
                )
            )
    return rules


def _markers(hcas: Sequence[Hca], forwarded: Sequence[Path], scheme: Forwarding) -> tuple[Marker, ...]:
    marks: dict[int, list[Mark]] = defaultdict(list)
    for path in forwarded:
        if scheme == "single-relay":
            marks[path.source_hca] = [Mark(None, FORWARD_SPORT, TAG + 1)]  # one rule covers every forwarded queue pair
        else:
            marks[path.source_hca].append(Mark(path.target_address, None, TAG + len(path.via)))
    return tuple(Marker(hcas[index].rdma, tuple(marks[index])) for index in sorted(marks))
