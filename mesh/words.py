"""What of a plan ends up in commands and file names, and what it must look like there: a plan that was read from a file
was not necessarily written by the planner."""

from __future__ import annotations

import ipaddress
from collections.abc import Callable, Iterator

import msgspec

from .checks import DEVICE, MAC, MAX_RDMA, PCI
from .finding import Finding, finding
from .inventory import HOST
from .model import Plan


def _device(text: str) -> bool:
    return len(text) <= MAX_RDMA and DEVICE.fullmatch(text) is not None


def _address(text: str) -> bool:
    try:
        return text.isascii() and ipaddress.IPv4Interface(text).version == 4
    except ValueError:
        return False


def _mac(text: str) -> bool:
    return MAC.fullmatch(text.lower()) is not None


_KINDS: dict[str, tuple[Callable[[str], object], str]] = {
    **dict.fromkeys(("host", "hosts"), (HOST.fullmatch, "a host name")),
    **dict.fromkeys(("netdev", "rdma", "device", "clsact", "output"), (_device, "a device name")),
    **dict.fromkeys(("mac", "match_source_mac", "match_target_mac", "set_target_mac"), (_mac, "a MAC")),
    **dict.fromkeys(("address", "source_address", "target_address", "destination", "source"), (_address, "an address")),
    "pci": (PCI.fullmatch, "a PCI address"),
}


def check_words(plan: Plan, where: str) -> Iterator[Finding]:
    """A finding for every word of the plan that is not what its field says."""
    for field, text in _words(msgspec.to_builtins(plan), ""):
        if field in _KINDS and not _KINDS[field][0](text):
            fix = "send the plan.json that --out wrote, as it is"
            yield finding("bad-value", where, f"{field} {text[:80]!r}", _KINDS[field][1], fix)


def _words(value: object, field: str) -> Iterator[tuple[str, str]]:
    """(field, text) of all text in the plan; that in a list counts for the list's field."""
    if isinstance(value, str):
        yield field, value
    elif isinstance(value, dict):
        for name, inner in value.items():
            yield from _words(inner, name)
    elif isinstance(value, list | tuple):
        for inner in value:
            yield from _words(inner, field)
