"""All ranks of a group use roce-ring, or none does. A rank that fell back alone would leave the others waiting in their
first all-reduce, so every rank says what it can before anything collective is made."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass

from ..exchange import Exchange, ExchangeError

VOTE_S = 30.0  # ranks of an engine reach this point within seconds of each other; a node that never does is named


@dataclass(frozen=True, slots=True)
class Ballot:
    """`no`: why this rank cannot, one sentence; empty is a yes. `covered`: the plan is for a group of this size.
    `required`: this rank must not go on without."""

    no: str = ""
    covered: bool = True
    required: bool = False


@dataclass(frozen=True, slots=True)
class Outcome:
    """`yes`: on every rank. `none_of_ours`: no rank has a plan for such a group. `why`: who said no, and why.
    `required`: by any rank, so that none goes on alone."""

    yes: bool = False
    none_of_ours: bool = False
    why: str = ""
    required: bool = False


def hold(exchange: Exchange, mine: Ballot) -> Outcome:
    """Collective; the same outcome on all ranks. Raises ExchangeError naming the ranks that did not vote."""
    raw = exchange.all_gather(json.dumps(asdict(mine)).encode(), VOTE_S)
    return count([_read(rank, one) for rank, one in enumerate(raw)])


def count(ballots: Sequence[Ballot]) -> Outcome:
    """`ballots`: index = rank."""
    if not any(one.covered or one.no for one in ballots):
        return Outcome(none_of_ours=True)
    noes = [
        f"rank {rank}: {one.no or 'its plan is for a group of another size'}"
        for rank, one in enumerate(ballots)
        if one.no or not one.covered
    ]
    return Outcome(yes=not noes, why="; ".join(noes), required=any(one.required for one in ballots))


def _read(rank: int, raw: bytes) -> Ballot:
    try:
        return Ballot(**json.loads(raw))
    except (ValueError, TypeError):
        raise ExchangeError(
            f"rank {rank} sent something that is no vote", "use one version of roce-ring everywhere"
        ) from None
