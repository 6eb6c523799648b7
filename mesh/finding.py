"""What a check reports, and the list of everything that can be reported."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal

import msgspec

Severity = Literal["error", "warning", "note"]

# code -> (severity, what it means). `docs/troubleshooting.md` has one entry per code; a test compares the two lists.
CODES: dict[str, tuple[Severity, str]] = {
    # the facts themselves
    "file-missing": ("error", "a facts or plan file cannot be read"),
    "file-large": ("error", "a facts or plan file is larger than any ring needs"),
    "file-empty": ("error", "a facts or plan file holds nothing"),
    "file-not-yaml": ("error", "a facts or plan file is neither YAML nor JSON"),
    "unknown-field": ("error", "a field name the facts format does not know"),
    "missing-field": ("error", "a field the facts format needs is absent"),
    "wrong-type": ("error", "a field holds the wrong kind of value"),
    "bad-value": ("error", "a name, address, MAC or number that cannot be right"),
    "bad-order": ("error", "the tensor-parallel order does not list every host exactly once"),
    "node-count": ("error", "fewer than 2 or more than 16 nodes"),
    "duplicate-host": ("error", "two nodes with the same host name"),
    "duplicate-function": ("error", "one node lists the same netdev, RDMA device, PCI address or port twice"),
    "duplicate-address": ("error", "two ports hold the same IPv4 address"),
    "duplicate-mac": ("error", "two ports hold the same MAC address"),
    # the cables
    "port-alone": ("error", "a port whose subnet no other port shares"),
    "subnet-crowded": ("error", "three or more ports in one subnet"),
    "subnet-overlap": ("error", "two subnets that contain each other"),
    "same-node-subnet": ("error", "two functions of one node in one subnet"),
    "crossed-planes": ("error", "a plane 0 function shares a subnet with a plane 1 function"),
    "planes-disagree": ("error", "the two planes of one cage lead to different places"),
    "same-index-cable": ("error", "a cable between equal port numbers, and the ring does not close"),
    "ring-closes-early": ("error", "the cables form a loop that leaves nodes out"),
    "ring-broken": ("error", "the cables form more than one piece"),
    "node-alone": ("error", "a node with no usable cable"),
    # every function on the way
    "link-down": ("error", "a cabled port has no link"),
    "mtu-mismatch": ("error", "the two ends of a cable have different MTUs"),
    "mtu-small": ("error", "an MTU too small for RoCE's 4096-byte packets"),
    "gid-missing": ("error", "no RoCE v2 GID for the port's own IPv4 address"),
    "gid-index-wrong": ("error", "gid_index contradicts the port's own GID table"),
    "gid-wrong-type": ("error", "the port's IPv4 GID is not RoCE v2"),
    "gid-wrong-netdev": ("error", "the port's IPv4 GID belongs to another netdev"),
    "offload-off": ("error", "hw-tc-offload is off where frames must be forwarded"),
    "steering-mode": ("error", "flow_steering_mode is not hmfs"),
    "hairpin-unknown": ("error", "the hairpin queue size of a forwarding function is not known"),
    # planned anyway, worth knowing
    "hairpin-small": ("warning", "the hairpin queues are below their maximum, so the size cap is lower"),
    "hairpin-pending": ("warning", "a hairpin size is configured but not in effect"),
    "gid-index-differs": ("warning", "the GID index is not 3 everywhere"),
    "open-chain": ("warning", "the nodes form a chain, not a ring"),
    "single-plane": ("warning", "only one of the two planes is in use"),
    "order-not-ring": ("warning", "consecutive ranks are not neighbours on the ring"),
    "relays-unproven": ("warning", "frames pass more than one relay; not proven on hardware"),
    "inventory-problem": ("warning", "the inventory of a node could not read something"),
    "engine-world": ("note", "the recipe's SGLang overlay accepts worlds of 4 and 8 only"),
    "names-differ": ("note", "the nodes' RDMA device names differ, so there is one environment line per rank"),
}


class Finding(msgspec.Struct, frozen=True):
    """One problem: where it is, what was seen there, what was expected, and the smallest change that fixes it."""

    code: str
    severity: Severity
    where: str
    seen: str
    expected: str
    fix: str

    @property
    def problem(self) -> str:
        """The finding without its fix."""
        return f"{self.severity} {self.code}: {self.where}: {self.seen}; expected {self.expected}"

    def __str__(self) -> str:
        return f"{self.problem}; fix: {self.fix}"


def finding(code: str, where: str, seen: str, expected: str, fix: str) -> Finding:
    """A finding whose severity comes from the list above; an unlisted code is a programming error (KeyError)."""
    return Finding(code, CODES[code][0], *map(_printable, (where, seen, expected, fix)))


def _printable(text: str) -> str:
    """``text`` on one line: what the user wrote may hold line ends, terminal codes or bytes that are no UTF-8."""
    return "".join(char if char.isprintable() else repr(char)[1:-1] for char in text)


class Refused(Exception):
    """Facts that cannot be planned. ``findings`` holds every problem found, not only the first."""

    def __init__(self, findings: Iterable[Finding]) -> None:
        self.findings = tuple(findings)
        super().__init__("\n".join(map(str, self.findings)))


def raise_errors(findings: Iterable[Finding]) -> None:
    """Raise :class:`Refused` with all ``findings`` if at least one of them is an error."""
    collected = tuple(findings)
    if any(item.severity == "error" for item in collected):
        raise Refused(collected)
