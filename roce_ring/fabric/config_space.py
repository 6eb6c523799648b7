"""What a PCI function's configuration space says of its port and of access control. Layouts: PCI Express Base
Specification, 7.5.3 (PCI Express capability) and 7.7.11 (ACS extended capability)."""

from __future__ import annotations

PCIE, ACS = 0x10, 0x000D
EXTENDED_FROM = 0x100
# Port types that matter here (bits 7:4 of the flags word at +2).
ROOT_PORT, UPSTREAM, DOWNSTREAM = 4, 5, 6
# Control bits at +6: whoever sets one of these sends peer traffic up to the root complex.
REQUEST_REDIRECT, COMPLETION_REDIRECT, EGRESS_CONTROL = 0x04, 0x08, 0x20
REDIRECTS = REQUEST_REDIRECT | COMPLETION_REDIRECT | EGRESS_CONTROL
ACS_CONTROL = 6
_MOST = 96  # capabilities: more than fit, so a list that runs in circles ends


def word(config: bytes, at: int) -> int:
    return int.from_bytes(config[at : at + 2], "little")


def port_type(config: bytes) -> int | None:
    """None: no PCI Express capability, or not all of it was readable."""
    at = config[0x34] & 0xFC if len(config) >= 0x40 and word(config, 6) & 0x10 else 0
    for _ in range(_MOST):
        if at < 0x40 or at + 4 > len(config):
            return None
        if config[at] == PCIE:
            return word(config, at + 2) >> 4 & 0xF
        at = config[at + 1] & 0xFC
    return None


def acs_offset(config: bytes) -> int | None:
    """Of the ACS capability; 0 if the function has none; None if that cannot be told: without root the kernel hands
    out the first 64 bytes only."""
    if len(config) < EXTENDED_FROM + 4:
        return None
    at = EXTENDED_FROM
    for _ in range(_MOST):
        if at + 8 > len(config):
            return None
        head = int.from_bytes(config[at : at + 4], "little")
        if head in (0, 0xFFFFFFFF):
            return 0
        if head & 0xFFFF == ACS:
            return at
        at = head >> 20 & 0xFFC
        if at < EXTENDED_FROM:
            return 0
    return None
