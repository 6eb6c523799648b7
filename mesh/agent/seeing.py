"""How a plan's things look on the node now, in findings."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from ..finding import Finding, Refused, finding
from ..model import NodePlan
from ..snapshot import CommandFailed, Snapshot
from ..things import LinkUp, Sight, Thing
from .dataplane import Dataplane, differs
from .model import Holder


def look(plane: Dataplane, node: NodePlan, thorough: bool = True) -> Snapshot:
    try:
        return plane.look(node, thorough)
    except CommandFailed as failed:
        fix = failed.fix or "install or repair iproute2"
        raise Refused([finding("object-failed", node.host, str(failed), "an answer", fix)]) from None


def sights(plane: Dataplane, node: NodePlan, now: Snapshot) -> Iterator[tuple[Thing, Sight]]:
    return ((thing, thing.sight(now)) for thing in plane.things(node))


def absent(plane: Dataplane, node: NodePlan, now: Snapshot) -> list[Thing]:
    return [thing for thing, sight in sights(plane, node, now) if sight.state == "absent"]


def about(node: NodePlan, thing: Thing, sight: Sight, now: Snapshot) -> Iterator[Finding]:
    """What the watch has to say about one thing."""
    where = f"{node.host}: {thing.key}"
    if sight.state == "other":
        yield differs(node, thing, sight)
    elif isinstance(thing, LinkUp):
        link = now.links[thing.hca.netdev]
        if not link.up or not link.carrier:
            seen = "no carrier" if link.up else "set down"
            fix = (
                f"'ip link set dev {thing.hca.netdev} up'"
                if not link.up
                else "see the cable and the node at its far end"
            )
            yield finding("link-down", where, seen, "a link", fix)
        elif sight.state == "absent":
            fix = "'roce-ring up' sets it while no session runs; make netplan or NetworkManager agree"
            yield finding("object-missing", where, f"MTU {link.mtu}", f"MTU {thing.hca.mtu}", fix)
    elif sight.state == "absent" and has_link(thing, now):
        yield finding("object-missing", where, "not there", "as planned", "'roce-ring up' again; see the agent's log")


def has_link(thing: Thing, now: Snapshot) -> bool:
    """Whether the port that it needs, if any, is there and set up: without it nothing can be made."""
    link = now.links.get(thing.device)
    return not thing.device or (link is not None and link.up)


def lease_held(node: NodePlan, held: Sequence[Holder], why: str) -> Finding:
    who = ", ".join(one.holder for one in held)
    fix = "end the session first, or use --force and lose it"
    return finding("lease-held", node.host, f"{who} runs, and {why}", "no running session", fix)
