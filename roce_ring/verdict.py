"""What an abort word says, as an exception: the same words on every rank, but for its own number."""

from __future__ import annotations

from typing import TYPE_CHECKING

from .errors import PeerClosed, PeerDead, PeerTimeout, SessionAborted
from .native import NOBODY, ErrorKind, native

if TYPE_CHECKING:
    from .edges import Edges
    from .litmus import Proof

_EXCEPTIONS = {"PEER_DEAD": PeerDead, "PEER_CLOSED": PeerClosed, "PEER_TIMEOUT": PeerTimeout}


def sequence(word: int) -> int:
    """Number of the operation at which it happened (the low 32 bits of it)."""
    return word >> 32


def place(word: int, edges: Edges, proof: Proof | None) -> str:
    """The path or cable that an abort word names, in the same words on all ranks; empty if it names none."""
    name, rank, number = _kind(word).name, word >> 8 & 0xFF, word >> 24 & 0xFF
    if name == "LINK_DOWN":
        return edges.cable(rank, number)
    if name == "DEVICE_LOST":
        return edges.port(rank, number)
    if name == "QP_ERROR":
        other = word >> 16 & 0xFF
        planned = proof.between(rank, other) if proof else ()
        return edges.path(rank, other, planned[number] if number < len(planned) else number)
    return ""


def _kind(word: int) -> ErrorKind:
    lib = native()
    return lib.errors.get(word & 0xFF) or lib.errors[lib.reasons["INTERNAL"]]


def verdict(word: int, rank: int, note: str = "", where: str = "") -> SessionAborted:
    """`rank`: who sees it. `note`: what more this rank knows. `where`: place()."""
    culprit, witness, kind = word >> 8 & 0xFF, word >> 24 & 0xFF, _kind(word)
    who = None if culprit == NOBODY else culprit
    sentence = kind.meaning if who is None else f"rank {who}: {kind.meaning}"
    if kind.name in ("OP_MISMATCH", "PROTOCOL"):  # either may be the odd one out: nobody is blamed
        pair = sorted({culprit, witness})
        sentence, who = f"ranks {' and '.join(map(str, pair))} disagree: {kind.meaning}", None
    if kind.name in ("QP_ERROR", "LINK_DOWN"):  # both ends see the same of it
        sentence, who = kind.meaning, None
    if where:
        sentence += f": {where}"
    if note:
        sentence += f" ({note})"
    exception = _EXCEPTIONS.get(kind.name, SessionAborted)
    return exception(
        kind.name.lower(), f"{sentence}; seen by rank {rank} at operation {sequence(word)}", kind.hint, who
    )
