"""The tensor-parallel order in which consecutive ranks sit on neighbouring nodes."""

from __future__ import annotations

import msgspec

from .model import Plan


class Proposal(msgspec.Struct, frozen=True):
    """``hosts`` in the proposed rank order; relays that a step from each rank to the next passes, all ranks summed."""

    hosts: tuple[str, ...]
    relays_now: int
    relays_then: int

    @property
    def changed(self) -> bool:
        return self.relays_then < self.relays_now


def propose_order(plan: Plan) -> Proposal:
    """The order with the fewest relays between consecutive ranks (the last one's next is rank 0), rank 0 kept.

    One-shot collectives talk between all pairs, so there the order changes nothing; rings (NCCL's too) and engines that
    take rank distance for ring distance need it. A ring order has no relay at all; over a chain N - 2 is the least. An
    order that already has the fewest is kept.
    """
    ranks = tuple(range(len(plan.hosts)))
    best = _along(plan)
    now, then = _relays(plan, ranks), _relays(plan, best)
    if now <= then:
        best, then = ranks, now
    return Proposal(tuple(plan.hosts[rank] for rank in best), now, then)


def _along(plan: Plan) -> tuple[int, ...]:
    if plan.shape != "chain":
        return plan.ring  # starts at rank 0
    # From rank 0 to the far end, then back from rank 0 to the other end: every link is crossed twice, as any tour must.
    place = plan.ring.index(0)
    return plan.ring[place:] + plan.ring[:place][::-1]


def _relays(plan: Plan, order: tuple[int, ...]) -> int:
    via = {(path.source, path.target): len(path.via) for path in plan.paths}
    return sum(via[a, b] for a, b in zip(order, order[1:] + order[:1], strict=True))
