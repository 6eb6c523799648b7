"""What an abort word says, as an exception: the same words on every rank, but for its own number."""

from __future__ import annotations

from .errors import PeerClosed, PeerDead, PeerTimeout, SessionAborted
from .native import NOBODY, native

_EXCEPTIONS = {"PEER_DEAD": PeerDead, "PEER_CLOSED": PeerClosed, "PEER_TIMEOUT": PeerTimeout}


def sequence(word: int) -> int:
    """Number of the operation at which it happened (the low 32 bits of it)."""
    return word >> 32


def verdict(word: int, rank: int, note: str = "") -> SessionAborted:
    """`rank`: who sees it. `note`: what more this rank knows."""
    reason, culprit, witness = word & 0xFF, word >> 8 & 0xFF, word >> 24 & 0xFF
    lib = native()
    kind = lib.errors.get(reason) or lib.errors[lib.reasons["INTERNAL"]]
    who = None if culprit == NOBODY else culprit
    sentence = kind.meaning if who is None else f"rank {who}: {kind.meaning}"
    if kind.name in ("OP_MISMATCH", "PROTOCOL"):  # either may be the odd one out: nobody is blamed
        pair = sorted({culprit, witness})
        sentence, who = f"ranks {' and '.join(map(str, pair))} disagree: {kind.meaning}", None
    if note:
        sentence += f" ({note})"
    exception = _EXCEPTIONS.get(kind.name, SessionAborted)
    return exception(
        kind.name.lower(), f"{sentence}; seen by rank {rank} at operation {sequence(word)}", kind.hint, who
    )
