"""What differs between real cards and Soft-RoCE: which things there are, how to look at them, what must hold before."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Protocol

import msgspec

from .. import inventory
from ..facts import Port
from ..finding import Finding, Refused, finding
from ..functions import check_functions
from ..loading import node_from_json
from ..marker import running
from ..model import Hca, NodePlan, Plan
from ..snapshot import CommandFailed, Run, Snapshot, read, run_command
from ..things import Sight, Thing, in_hardware, in_software
from .sensors import error_counters, hairpin_drops

SYSFS = Path("/sys")


class Dataplane(Protocol):
    name: str

    def things(self, node: NodePlan) -> tuple[Thing, ...]:
        """Everything of the node's plan, in the order it is made."""
        ...

    def look(self, node: NodePlan | None, thorough: bool = False) -> Snapshot:
        """The kernel now. ``thorough`` also asks what takes long and only changes with a reload or a boot."""
        ...

    def check(self, node: NodePlan) -> Iterator[Finding]:
        """What must be mended by hand before the plan can stand."""
        ...

    def counters(self, node: NodePlan) -> dict[str, int]:
        """Error counters that should not rise, by a name that says where."""
        ...


class Soft:
    """Soft-RoCE on any netdev: the kernel's own tc forwards and marks. Slow, and every rule of the plan is real."""

    name = "soft"

    def __init__(self, run: Run = run_command) -> None:
        self._run = run

    def things(self, node: NodePlan) -> tuple[Thing, ...]:
        return in_software(node)

    def look(self, node: NodePlan | None, thorough: bool = False) -> Snapshot:
        return read(self._run)

    def check(self, node: NodePlan) -> Iterator[Finding]:
        yield from ()

    def counters(self, node: NodePlan) -> dict[str, int]:
        return error_counters(node, SYSFS)


class Cx7:
    """ConnectX-7 cards: rules are in the card or nowhere, a marker program per device, hairpin queues."""

    name = "cx7"

    def __init__(self, run: Run = run_command, sysfs: Path = SYSFS) -> None:
        self._run, self._sysfs = run, sysfs
        self._hairpins: dict[str, int] = {}  # as of the last thorough look

    def things(self, node: NodePlan) -> tuple[Thing, ...]:
        return in_hardware(node)

    def look(self, node: NodePlan | None, thorough: bool = False) -> Snapshot:
        now = read(self._run)
        held = {marker.rdma: running(marker.rdma) for marker in (node.markers if node else ())}
        marked = {rdma: one.marks or () for rdma, one in held.items() if one is not None}
        if thorough and node is not None and node.hairpins:
            sizes = {port.pci: port.hairpin_queue_size for port in self._ports(node, [])}
            self._hairpins = {pci: size for pci, size in sizes.items() if size is not None}
        return msgspec.structs.replace(now, marked=marked, hairpins=self._hairpins)

    def check(self, node: NodePlan) -> Iterator[Finding]:
        """The planner's own checks of a function, on what this node is now."""
        unread: list[str] = []
        try:
            ports = self._ports(node, unread)
        except Refused as refused:
            yield from refused.findings
            return
        for text in unread:
            fix = "install what is missing (ethtool, iproute2 with devlink), mend the function, or see why it is slow"
            yield finding("inventory-problem", node.host, text, "an answer", fix)
        for found in check_functions(ports, (), bool(node.markers), {0} if node.rules else ()):
            # links, MTUs, addresses and queue sizes are ours to set
            if found.code not in ("link-down", "mtu-small", "gid-missing", "hairpin-pending"):
                yield found

    def counters(self, node: NodePlan) -> dict[str, int]:
        found = error_counters(node, self._sysfs)
        for hca in node.hcas:
            with contextlib.suppress(CommandFailed):  # a missing ethtool is told by check() and by the doctor
                found |= hairpin_drops(hca.netdev, self._run(("ethtool", "-S", hca.netdev)))
        return found

    def _ports(self, node: NodePlan, unread: list[str]) -> list[Port]:
        """The planned functions as the planner sees functions, under the plan's planes, cages and addresses: what they
        are is asked even where an address is ours to set. ``unread``: what could not be asked."""
        found = []
        for hca in node.hcas:
            device = self._sysfs / "class" / "infiniband" / hca.rdma
            if not (device / "device" / "net" / hca.netdev).is_dir():
                continue  # problems() says so
            facts = inventory.port_facts(device, device / "device" / "net" / hca.netdev)
            facts |= {"pci": hca.pci, "plane": hca.plane, "port": hca.port, "ipv4": hca.address}
            facts |= inventory.offload(self._ask, facts, unread)
            facts |= inventory.devlink(self._ask, facts, unread)
            entry = node_from_json({"host": node.host, "ports": [facts]}, f"{node.host} now").ports[0]
            values = {name: getattr(entry, name) for name in Port.__struct_fields__ if hasattr(entry, name)}
            found.append(Port(rank=0, host=node.host, **values))
        return found

    def _ask(self, argv: list[str], stdin: str = "") -> str:
        try:
            return self._run(tuple(argv), stdin)
        except CommandFailed as failed:
            why = str(failed).split("' failed: ", 1)[-1]
            raise OSError(0, why) from None  # what the inventory takes note of


def choose(name: str, node: NodePlan, run: Run = run_command, sysfs: Path = SYSFS) -> Dataplane:
    """``auto`` goes by the driver behind the plan's devices. Raises Refused where that gives no answer."""
    if name == "auto":
        kinds = {hca.rdma: _kind(hca, sysfs) for hca in node.hcas}
        found = set(kinds.values())
        if len(found) != 1 or "" in found:
            seen = ", ".join(f"{rdma}: {kind or 'absent or neither'}" for rdma, kind in kinds.items())
            fix = "load mlx5_ib (or set up Soft-RoCE) for all of them, or plan this node again"
            expected = "all driven by mlx5_core, or all Soft-RoCE"
            raise Refused([finding("device-missing", f"{node.host}: RDMA devices", seen, expected, fix)])
        name = found.pop()
    return Soft(run) if name == "soft" else Cx7(run, sysfs)


def _kind(hca: Hca, sysfs: Path) -> str:
    device = sysfs / "class" / "infiniband" / hca.rdma
    if (device / "parent").exists():  # Soft-RoCE names the netdev it sits on; a card's driver has a PCI device instead
        return "soft"
    driver = device / "device" / "driver"
    return "cx7" if driver.exists() and driver.resolve().name == "mlx5_core" else ""


def problems(plan: Plan, node: NodePlan, now: Snapshot, plane: Dataplane, sysfs: Path = SYSFS) -> Iterator[Finding]:
    """Why this node cannot be what the plan says it is, whatever the agent does."""
    macs = {link.mac for link in now.links.values()}
    if not any(hca.mac in macs for hca in node.hcas):
        for other in plan.nodes:
            if all(hca.mac in macs for hca in other.hcas):
                fix = f"send the plan to {node.host}, or correct the address that is given for it"
                seen = f"the ports here have the MACs of {other.host}"
                yield finding("wrong-node", node.host, seen, f"those of {node.host}", fix)
                return
    for hca in node.hcas:
        where = f"{node.host} {hca.netdev}"
        link = now.links.get(hca.netdev)
        if link is None:
            fix = "see 'ip link'; plan again if the port has another name now"
            yield finding("device-missing", where, "there is no such netdev", f"the port with MAC {hca.mac}", fix)
        elif link.mac != hca.mac:
            fix = "plan again with this node's inventory: relay rules of its neighbours name the MAC"
            yield finding("mac-differs", where, f"MAC {link.mac}", f"{hca.mac}, as planned", fix)
        if not (sysfs / "class" / "infiniband" / hca.rdma).exists():
            fix = "load the RDMA driver ('modprobe mlx5_ib'), or plan again if the device has another name now"
            yield finding("device-missing", where, f"there is no RDMA device {hca.rdma}", "the device as planned", fix)
    for thing in plane.things(node):
        sight = thing.sight(now)
        if sight.state == "other" and sight.code != "device-missing":
            yield differs(node, thing, sight)
    yield from plane.check(node)


def differs(node: NodePlan, thing: Thing, sight: Sight) -> Finding:
    """Something else is in a thing's place."""
    fix = "remove it if nothing needs it; what the agent did not make it does not touch"
    if sight.code == "rule-not-in-hardware":
        fix = "see 'ethtool -k' for hw-tc-offload and 'devlink dev param' for flow_steering_mode of the port"
    return finding(sight.code, f"{node.host}: {thing.key}", sight.seen, "nothing, or exactly as planned", fix)
