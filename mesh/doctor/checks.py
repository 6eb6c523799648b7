"""Every check of the doctor, and how they are run: pure functions from evidence, and a plan, to findings.

To add one: write a generator of findings that takes a View (one node) or the plan and all Views, list it here with the
codes that it reports, and give each code a line in `finding.CODES` and an entry in `docs/troubleshooting.md`. If what
it needs could not be read it raises Unknown (View.need does), after it has reported what it can.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import msgspec

from ..finding import Finding
from ..model import Plan
from . import checks_forwarding as forwarding
from . import checks_functions as functions
from . import checks_host as host
from . import checks_ring as ring
from . import checks_software as software
from .evidence import Evidence
from .view import Found, Unknown, View

# Codes that a check reports -> the check. finding.CODES says what each code means.
CHECKS: dict[tuple[str, ...], Callable[[View], Found]] = {
    ("device-missing", "inventory-problem"): functions.devices,
    ("link-down", "mtu-small", "gid-missing", "gid-wrong-type", "gid-wrong-netdev"): functions.states,
    ("mac-differs",): functions.macs,
    ("same-node-subnet",): functions.subnets,
    ("pcie-slow",): functions.pcie,
    ("pcie-errors",): functions.aer,
    ("offload-off", "steering-mode", "eswitch-mode"): functions.forwarding,
    ("hairpin-small", "hairpin-pending", "hairpin-failed"): functions.hairpins,
    ("soft-roce",): functions.software,
    ("plan-not-applied", "object-missing", "object-differs", "rule-not-in-hardware"): forwarding.objects,
    ("object-foreign",): forwarding.strays,
    ("kernel-forwards",): forwarding.kernel,
    ("ip-forward-off", "forward-dropped"): forwarding.routed,
    ("default-route", "admin-on-fabric"): forwarding.default_route,
    ("rdma-errors",): forwarding.counters,
    ("memlock-small",): host.memlock,
    ("memlock-default",): host.memlock_defaults,
    ("kho-on", "cma-none"): host.kernel,
    ("wifi-powersave", "wifi-management"): host.wifi,
    ("address-volatile", "netplan-leftover"): host.persistence,
    ("nccl-conf",): software.nccl_files,
    ("nccl-leak",): software.nccl_version,
    (
        *("env-empty", "env-interface", "env-bootstrap", "env-hca", "env-gid-index", "env-host-ip"),
        "env-not-planned",
    ): software.environment,
    ("plan-differs",): software.plans,
}
RING_CHECKS: dict[tuple[str, ...], Callable[[Plan | None, Sequence[View]], Found]] = {
    ("host-not-planned", "node-not-asked"): ring.planned_hosts,
    ("mtu-mismatch",): ring.ends,
    ("cable-moved", "peer-silent"): ring.cabling,
    ("gid-index-differs",): ring.gid_indices,
    ("nccl-differs", "versions-differ"): ring.versions,
    ("plan-differs",): ring.plans,
}


class Unlooked(msgspec.Struct, frozen=True):
    """Checks (by their codes) that could not look, or not at everything, and why."""

    codes: tuple[str, ...]
    reason: str


class NodeReport(msgspec.Struct, frozen=True):
    """``running``: ranks and engines, which a fix may interrupt."""

    host: str
    running: tuple[str, ...]
    findings: tuple[Finding, ...]
    unknown: tuple[Unlooked, ...]


class Report(msgspec.Struct, frozen=True):
    """``ring``: findings that concern several nodes."""

    nodes: tuple[NodeReport, ...]
    ring: tuple[Finding, ...]


def check_node(node: Evidence, plan: Plan | None = None) -> NodeReport:
    """Findings about one node by itself; ``plan`` is the whole ring's."""
    return _node(View(node, plan))


def check_all(nodes: Sequence[Evidence], plan: Plan | None = None) -> Report:
    """Findings about every node and about the nodes together. Without a plan, what forwarding needs is only known if
    all nodes of a ring are given."""
    across: tuple[Finding, ...] = ()
    given = plan is not None
    if plan is None:
        plan, across = ring.implied_plan(nodes)
    views = [View(node, plan, given) for node in nodes]
    together = [item for check in RING_CHECKS.values() for item in check(plan, views)]
    return Report(tuple(map(_node, views)), (*across, *together))


def _node(view: View) -> NodeReport:
    findings: list[Finding] = []
    unknown = []
    for codes, check in CHECKS.items():
        try:
            findings.extend(check(view))
        except Unknown as reason:
            unknown.append(Unlooked(codes, str(reason)))
    running = tuple(str(process) for process in view.node.processes if process.pid is not None)
    return NodeReport(view.host, running, tuple(dict.fromkeys(findings)), tuple(unknown))
