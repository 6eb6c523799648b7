"""What a check reports, and the list of everything that can be reported."""

from __future__ import annotations

import re
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
    # a node and its agent
    "wrong-node": ("error", "a plan was sent to a node that is not the one it names"),
    "mac-differs": ("error", "a planned port has another MAC now"),
    "device-missing": ("error", "a planned netdev or RDMA device does not exist on the node"),
    "object-differs": ("error", "something else is in the place of a route, neighbour, rule or marker of the plan"),
    "object-missing": ("error", "something of the plan is gone and cannot be made again now"),
    "object-failed": ("error", "a command of the plan failed; what it had made was taken back"),
    "rule-not-in-hardware": ("error", "a relay rule is not in the card"),
    "hairpin-failed": ("error", "a hairpin queue did not take its size; it is not tried again by itself"),
    "apply-interrupted": ("error", "an apply that a crash interrupted could not be finished and was taken back"),
    "not-staged": ("error", "the plan to commit is not the one that was staged"),
    "left-in-place": ("note", "something of the plan stood before it went up, so it stays"),
    "plan-conflict": ("error", "the node holds another plan already"),
    "plan-differs": ("error", "the nodes of one ring hold different plans"),
    "lease-held": ("error", "a running session would be interrupted"),
    "rdma-errors": ("warning", "an error counter of an RDMA device rises"),
    "agent-unreachable": ("error", "a node's agent does not answer"),
    "path-broken": ("error", "an RDMA write over a path of the plan failed"),
    "path-not-relayed": ("error", "a far path's frames were not seen by the relay's rule"),
    "path-in-software": ("error", "a relay's kernel forwarded a far path's frames, not its card"),
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
    # what the doctor sees on running nodes
    "pcie-slow": ("warning", "a function's PCIe link is narrower or slower than it could be"),
    "pcie-errors": ("warning", "a function's PCIe link had errors since boot"),
    "eswitch-mode": ("error", "a function's eswitch is in a mode in which relay rules do not work"),
    "soft-roce": ("note", "all RDMA devices are Soft-RoCE"),
    "plan-not-applied": ("error", "nothing of what the plan sets up on a node is there"),
    "object-foreign": ("warning", "a filter, route or neighbour on a port of the ring that is not in the plan"),
    "kernel-forwards": ("warning", "the kernel forwards datagrams on a node whose card should do it"),
    "ip-forward-off": ("warning", "a ring that is routed by the kernel, and ip_forward is off"),
    "forward-dropped": ("warning", "a ring that is routed by the kernel, and the firewall drops what it forwards"),
    "default-route": ("warning", "a default route leaves by a port of the ring"),
    "admin-on-fabric": ("note", "the doctor's own ssh session came in over a port of the ring"),
    "memlock-small": ("warning", "a login, rank or engine may lock too little memory to register it"),
    "memlock-default": ("note", "services or containers may lock little memory unless they say otherwise"),
    "kho-on": ("warning", "the kernel has kexec handover on, with which memory registration fails"),
    "cma-none": ("warning", "the kernel has no contiguous memory area, with which memory registration fails"),
    "wifi-powersave": ("warning", "Wi-Fi power save is on where a node has an address"),
    "wifi-management": ("note", "the management network is Wi-Fi"),
    "address-volatile": ("warning", "no configuration file brings a port's address back after a reboot"),
    "netplan-leftover": ("warning", "two netplan files set the same port, one left by NetworkManager"),
    "nccl-conf": ("warning", "a file changes NCCL's settings in every process"),
    "nccl-leak": ("warning", "an NCCL version that loses proxy slots until a collective hangs"),
    "env-empty": ("error", "a variable that is read as a number is set to nothing"),
    "env-interface": ("error", "a variable names a network interface that the node does not have"),
    "env-bootstrap": ("warning", "a variable sends control traffic over the ring or over Wi-Fi"),
    "env-hca": ("error", "a variable names an RDMA device that is not there or not cabled"),
    "env-gid-index": ("error", "a variable gives one GID index, and it is wrong for a device in use"),
    "env-host-ip": ("error", "a variable gives a node an address that it does not have"),
    "env-not-planned": ("warning", "a variable differs from the plan's environment line, or is missing"),
    "host-not-planned": ("error", "the doctor looked at a node that the plan does not have"),
    "node-not-asked": ("note", "the doctor did not look at every node of the plan"),
    "cable-moved": ("error", "another port answers at a cable's far end than the plan has there"),
    "peer-silent": ("warning", "the link of a cable is up, but its far end does not answer"),
    "nccl-differs": ("warning", "nodes have different versions of NCCL"),
    "versions-differ": ("note", "nodes have different versions of kernel, firmware or libraries"),
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
    return Finding(code, CODES[code][0], *map(_printable, (where, _short(seen), expected, fix)))


def _short(text: str) -> str:
    """What the user wrote may be a word of a thousand letters or digits: its beginning tells which one it is."""
    return _LONG.sub(lambda word: f"{word[0][:40]}...({len(word[0].strip(_QUOTES))} characters)", text)


_LONG, _QUOTES = re.compile(r"\S{121,}"), "'\"`"


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
