"""What an agent watches beside its things: error counters, GIDs, and whether the kernel forwards. Only reads."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from ipaddress import IPv4Interface
from pathlib import Path

from ..finding import Finding, finding
from ..functions import ROCE_V2, mapped_gid
from ..inventory import gid_rows, read_number
from ..model import NodePlan

RISE_SHOWN_S = 60.0  # how long a rise of an error counter stays a finding
SNMP = Path("/proc/net/snmp")
# Counters that stand still on a healthy fabric: mlx5's first, then Soft-RoCE's names for the like.
BAD = (
    "out_of_buffer",
    "out_of_sequence",
    "packet_seq_err",
    "local_ack_timeout_err",
    "rnr_nak_retry_err",
    "out_of_seq_request",
    "rcvd_seq_err",
    "retry_exceeded_err",
    "completer_retry_err",
    "send_err",
)


def error_counters(node: NodePlan, sysfs: Path) -> dict[str, int]:
    """ "DEVICE COUNTER" -> value, of those in BAD that the device has."""
    found = {}
    for hca in node.hcas:
        folder = sysfs / "class" / "infiniband" / hca.rdma / "ports" / "1" / "hw_counters"
        for name in BAD:
            if (value := read_number(folder / name)) is not None:
                found[f"{hca.rdma} {name}"] = value
    return found


def hairpin_drops(netdev: str, statistics: str) -> dict[str, int]:
    """ "NETDEV rx_out_of_buffer" -> value, out of what 'ethtool -S' prints: frames that found a full hairpin queue, as
    no RDMA counter shows."""
    found = re.search(r"^\s*rx_out_of_buffer:\s*(\d+)", statistics, re.MULTILINE)
    return {f"{netdev} rx_out_of_buffer": int(found[1])} if found else {}


class Rises:
    """Remembers ``counters`` from look to look, and which of them rose within the last minute."""

    def __init__(self) -> None:
        self.counters: dict[str, int] = {}
        self._risen: dict[str, tuple[float, int]] = {}  # counter -> (when last, by how much in all)

    def findings(self, node: NodePlan, counters: dict[str, int]) -> Iterator[Finding]:
        now = time.monotonic()
        for name, value in counters.items():
            if (rise := value - self.counters.get(name, value)) > 0:
                self._risen[name] = (now, self._risen.get(name, (0.0, 0))[1] + rise)
        self.counters = counters
        self._risen = {name: (at, rise) for name, (at, rise) in self._risen.items() if now - at < RISE_SHOWN_S}
        for name, (_, rise) in self._risen.items():
            fix = "look for drops on the way: hairpin queues of the relays, cables, MTUs ('roce-ring doctor')"
            yield finding("rdma-errors", f"{node.host}: {name}", f"rose by {rise} within a minute", "no rise", fix)


def missing_gids(node: NodePlan, sysfs: Path) -> Iterator[Finding]:
    """Ports without the RoCE v2 GID of their planned address: no queue pair can be connected from there."""
    for hca in node.hcas:
        device = sysfs / "class" / "infiniband" / hca.rdma
        wanted = mapped_gid(IPv4Interface(hca.address).ip)
        if device.exists() and not any(row["gid"] == wanted and row["type"] == ROCE_V2 for row in gid_rows(device)):
            fix = f"see 'ip address show dev {hca.netdev}' and 'rdma link'; the GID follows the address within 10 s"
            yield finding("gid-missing", f"{node.host} {hca.netdev}", f"{hca.rdma} has no such GID", wanted, fix)


def forwarded_datagrams(snmp: Path = SNMP) -> int:
    """IPv4 datagrams that this kernel itself forwarded; -1 if it does not say."""
    try:
        names, values = [line.split() for line in snmp.read_text().splitlines() if line.startswith("Ip:")]
        return int(values[names.index("ForwDatagrams")])
    except (OSError, ValueError):
        return -1
