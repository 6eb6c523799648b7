"""The exact commands that set a node up and take it down again, as argument lists (never a shell line).

As planned, with nothing in the way: a node's agent leaves out what it finds there already, and says so.
"""

from __future__ import annotations

from collections.abc import Iterator

from .model import NodePlan
from .things import Address, Clsact, LinkUp, Queue, Step, Thing, in_hardware


def up(node: NodePlan) -> Iterator[Step]:
    """Links, hairpin queues, neighbours, routes, rules in this order; markers last, as they start forwarded traffic."""
    for thing in in_hardware(node):
        if not _there(thing):
            yield from thing.make()


def down(node: NodePlan) -> Iterator[Step]:
    """The reverse. Sizes and MTUs stay: what they were before only the node's agent knows."""
    for thing in reversed(in_hardware(node)):
        if _there(thing) or isinstance(thing, LinkUp):
            continue
        if isinstance(thing, Clsact):
            where = f"'tc filter show dev {thing.device} ingress' and '... egress'"
            yield Step((), f"only if {where} list nothing:")
        yield from thing.unmake({})


def _there(thing: Thing) -> bool:
    """What the plan was made from: ports have their addresses, and some queues their size."""
    return isinstance(thing, Address) or (isinstance(thing, Queue) and thing.seen == thing.wanted)
