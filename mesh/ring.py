"""Walk the cables from rank 0 and find the ring or the open chain they form."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import msgspec

from .cables import Cable, Cage, Plug, find_cables
from .finding import Finding, finding


class Ring(msgspec.Struct, frozen=True):
    """Ranks in cable order; ``ahead[p]`` and ``back[p]`` are the cages at position p, None at an open end."""

    closed: bool
    order: tuple[int, ...]
    ahead: tuple[int | None, ...]
    back: tuple[int | None, ...]


def derive(hosts: Sequence[str], plugs: Iterable[Plug]) -> tuple[Ring | None, tuple[Cable, ...], tuple[Finding, ...]]:
    """Cables and ring of ``len(hosts)`` nodes, or the findings that say why there is none."""
    plugs = tuple(plugs)
    cables, problems = find_cables(plugs)
    if problems:
        addressed = {plug.rank for plug in plugs if plug.network}
        alone = (_alone(host) for rank, host in enumerate(hosts) if rank not in addressed)
        return None, cables, (*problems, *alone)
    ring, problems = walk(hosts, cables)
    return ring, cables, problems


def walk(hosts: Sequence[str], cables: Sequence[Cable]) -> tuple[Ring | None, tuple[Finding, ...]]:
    """The ring through all nodes. Position 0 is rank 0, position 1 the node its port 0 leads to.

    A chain starts at an end: rank 0 if it is one, else the end on rank 0's port 1 side.
    """
    far: dict[Cage, Cage] = {}
    for cable in cables:
        far[cable.a], far[cable.b] = cable.b, cable.a
    start, first = 0, 0
    rank, out = 0, 1
    if (0, 0) not in far:  # rank 0 is the end of a chain or has no cable at all
        start, first = 0, 1
    else:
        for _ in hosts:  # go back from rank 0; coming home to rank 0 means a closed loop
            if (rank, out) not in far:
                start, first = rank, 1 - out
                break
            rank, arrived = far[rank, out]
            if rank == 0:
                break
            out = 1 - arrived
    ring = _follow(far, start, first)
    if len(ring.order) == len(hosts):
        return ring, ()
    return None, tuple(_pieces_findings(hosts, cables, far))


def _follow(far: dict[Cage, Cage], start: int, first: int) -> Ring:
    order, ahead, back = [start], [], [1 - first if (start, 1 - first) in far else None]
    rank, out = start, first
    while (rank, out) in far:
        ahead.append(out)
        rank, arrived = far[rank, out]
        if rank == start:
            return Ring(True, tuple(order), tuple(ahead), tuple(back))
        order.append(rank)
        back.append(arrived)
        out = 1 - arrived
    return Ring(False, tuple(order), (*ahead, None), tuple(back))


def _pieces_findings(hosts: Sequence[str], cables: Sequence[Cable], far: dict[Cage, Cage]) -> Iterable[Finding]:
    pieces = _pieces(len(hosts), far)
    loops = [piece for piece in pieces if piece.closed]
    chains = [piece for piece in pieces if not piece.closed and len(piece.order) > 1]
    for piece in pieces:
        names = " -> ".join(hosts[rank] for rank in piece.order)
        if len(piece.order) == 1:
            yield _alone(names)
        elif piece.closed:
            left_out = ", ".join(host for rank, host in enumerate(hosts) if rank not in piece.order)
            loop = f"{names} -> {hosts[piece.order[0]]}"
            seen = f"{loop} closes after {len(piece.order)} of {len(hosts)} nodes and leaves out {left_out}"
            first, last = hosts[piece.order[0]], hosts[piece.order[-1]]
            yield finding(
                "ring-closes-early",
                f"{last} port {piece.ahead[-1]} to {first} port {piece.back[0]}",
                seen,
                f"one ring through all {len(hosts)} nodes",
                _merge_fix(hosts, piece, pieces),
            )
    if chains and len(pieces) > 1:
        names = "; ".join(" - ".join(hosts[rank] for rank in piece.order) for piece in chains)
        ends = " and ".join(_free_ends(hosts, piece) for piece in chains)
        yield finding(
            "ring-broken",
            names,
            f"the cables form {len(pieces)} pieces",
            "one ring or one chain",
            f"cable the free ends: {ends}",
        )
    in_loop = {rank for piece in loops for rank in piece.order}
    for (rank, port), (other, other_port), networks in cables:
        if port == other_port and rank in in_loop:
            where = f"{hosts[rank]} port {port} and {hosts[other]} port {other_port}"
            seen = f"the cable joins equal port numbers ({', '.join(networks)}) and the loop it is in closes early"
            fix = f"move the end at {hosts[other]} to port {1 - port} of the next node, port 0 to port 1 all the way"
            yield finding(
                "same-index-cable", where, seen, "port 0 of each node to port 1 of the next, or a ring that closes", fix
            )


def _alone(host: str) -> Finding:
    expected, fix = (
        "a cable to the node before and to the node after it",
        "cable it into the ring and address both ends",
    )
    return finding("node-alone", host, "no port of it has an address in a cable's subnet", expected, fix)


def _pieces(count: int, far: dict[Cage, Cage]) -> list[Ring]:
    pieces: list[Ring] = []
    for begin in range(count):
        if any(begin in piece.order for piece in pieces):
            continue
        piece = _follow(far, begin, 0)
        if not piece.closed:  # begin may be in the middle: continue from the far end
            end = piece.order[-1]
            if len(piece.order) == 1:
                piece = _follow(far, begin, 1)
                end = piece.order[-1]
            arrived = piece.back[-1]
            piece = _follow(far, end, arrived) if arrived is not None else piece
        pieces.append(piece)
    return pieces


def _free_ends(hosts: Sequence[str], piece: Ring) -> str:
    first, last = piece.ahead[0], piece.back[-1]
    assert first is not None and last is not None  # a piece of two or more nodes has a cable at each end node
    return f"{hosts[piece.order[0]]} port {1 - first}, {hosts[piece.order[-1]]} port {1 - last}"


def _merge_fix(hosts: Sequence[str], loop: Ring, pieces: Sequence[Ring]) -> str:
    other = next(piece for piece in pieces if piece is not loop)
    end = f"{hosts[loop.order[0]]} port {loop.ahead[0]}"
    if other.closed:
        return f"exchange the cable ends at {end} and at {hosts[other.order[0]]} port {other.ahead[0]}"
    return f"open the loop at {end} and cable {hosts[other.order[0]]} in there"
