"""Checks of the RDMA functions: device, link, MTU, GID, address, PCIe, and what forwarding needs of the card."""

from __future__ import annotations

import ipaddress

from .. import functions
from ..limits import HAIRPIN_MAX
from .view import Found, View

PCIE_LANES, PCIE_GTS = 4, 32.0  # a Spark's functions have one Gen5 x4 link each
ESWITCH = {"mode": ("legacy",), "inline-mode": ("none",), "encap-mode": ("basic", "enable")}


def devices(view: View) -> Found:
    have = {item.rdma for item in view.node.functions}
    for hca in view.part.hcas if view.part else ():
        if hca.rdma not in have:
            seen = f"there is no RDMA device {hca.rdma}, only {', '.join(sorted(have)) or 'none'}"
            fix = "see whether the driver found it ('rdma link', 'dmesg | grep mlx5'), or plan again if names changed"
            yield view.find("device-missing", hca.netdev, seen, f"{hca.rdma} on {hca.pci}", fix)
    if not have:
        fix = "load the driver ('modprobe mlx5_ib'); on another kind of machine there is nothing for the doctor to see"
        yield view.find("device-missing", "", "no RoCE device in /sys/class/infiniband", "the ring's RDMA devices", fix)
    for problem in view.node.problems:
        fix = "run 'roce-ring inventory' there and follow it"
        yield view.find("inventory-problem", "", problem, "every function understood", fix)


def states(view: View) -> Found:
    for item in view.functions:
        if not item.ipv4 and not item.link_up:
            fix = f"'ip link set dev {item.netdev} up'; if that is not it, seat the cable at both ends"
            yield view.find("link-down", item.netdev, "the link is down", "link up", fix)
    for _, port in view.ports:
        for check in functions.CHECKS:
            yield from check(port)
    if any(item.link_up and item.roce_active_mtu is None for item in view.functions):
        view.need("active_mtu")


def macs(view: View) -> Found:
    for item in view.functions:
        hca = view.hca(item)
        if hca is not None and (item.mac or "").lower() != hca.mac:
            seen = f"the port's MAC is {item.mac}"
            fix = "if the card was replaced, plan again: neighbours send to the MAC in the plan, so nothing arrives"
            yield view.find("mac-differs", item.netdev, seen, f"{hca.mac} as in the plan", fix)


def subnets(view: View) -> Found:
    """A fabric subnet may be on one netdev of the node only, whatever kind the other is."""
    fabric = set(view.fabric)
    networks: dict[ipaddress.IPv4Network, list[str]] = {}
    for netdev, link in view.now.links.items():
        for address in link.addresses:
            networks.setdefault(ipaddress.IPv4Interface(address).network, []).append(netdev)
    for network, netdevs in networks.items():
        names = list(dict.fromkeys(netdevs))
        if len(names) > 1 and fabric & set(names) and network.prefixlen < 31:
            fix = "give each port the subnet of its own cable: ARP and discovery answer on the wrong one"
            seen = f"{' and '.join(names)} share subnet {network}"
            yield view.find("same-node-subnet", " and ".join(names), seen, "one netdev of a node in a subnet", fix)


def pcie(view: View) -> Found:
    for item in view.functions:
        link = item.pcie
        if link is None or link.current_width is None or link.current_speed is None:
            continue
        lanes = min(link.max_width or PCIE_LANES, PCIE_LANES)
        speed = min(link.max_speed or PCIE_GTS, PCIE_GTS)
        if link.current_width < lanes or link.current_speed < speed:
            seen = f"its PCIe link runs x{link.current_width} at {link.current_speed:g} GT/s"
            fix = "update the machine's firmware (an old one gives some functions x2), power it off and on, look again"
            yield view.find("pcie-slow", item.netdev, seen, f"x{lanes} at {speed:g} GT/s", fix)
    view.need("pcie")


def aer(view: View) -> Found:
    for item in view.functions:
        bad = {kind: count for kind, count in item.aer.items() if kind != "correctable" and count}
        if bad:
            seen = "PCIe errors since boot: " + ", ".join(f"{count} {kind}" for kind, count in bad.items())
            fix = "read 'dmesg | grep -i aer'; it is the machine (firmware, seating, heat), not the ring's software"
            yield view.find("pcie-errors", item.netdev, seen, "none", fix)
    view.need("aer")


def forwarding(view: View) -> Found:
    """What the card needs to pass frames on; asked only where the plan forwards."""
    part = view.planned
    relaying = {name for rule in part.rules for name in (rule.device, rule.output)}
    marking = {marker.rdma for marker in part.markers}
    for item, port in view.ports:
        if item.soft:
            continue
        if item.netdev in relaying or item.rdma in marking:
            yield from functions.steering(port) if item.flow_steering_mode else ()
            odd = {key: got for key, good in ESWITCH.items() if (got := item.eswitch.get(key)) and got not in good}
            if odd:
                seen = ", ".join(f"eswitch {key} {got}" for key, got in odd.items())
                wanted = ", ".join(f"{key} {ESWITCH[key][0]}" for key in odd)
                fix = f"'devlink dev eswitch set pci/{item.pci} {wanted}' while nothing uses the function"
                yield view.find("eswitch-mode", item.netdev, seen, wanted, fix)
        if item.netdev in relaying and item.hw_tc_offload is False:
            fix = f"'ethtool -K {item.netdev} hw-tc-offload on'"
            seen = "hw-tc-offload is off"
            if item.offload_fixed:
                seen = "hw-tc-offload is 'off [fixed]'"
                fix = "this function cannot forward: look for another driver or firmware, or ring over fewer nodes"
            yield view.find("offload-off", item.netdev, seen, "on, because this node forwards through it", fix)
    if not view.soft and (relaying or marking):
        view.need("offload", "devlink", "eswitch")


def hairpins(view: View) -> Found:
    """In effect, offload off, pending, default, failed or unknown: a configured size alone proves nothing."""
    part = view.planned
    relaying = {name for rule in part.rules for name in (rule.device, rule.output)}
    counted_on = {hairpin.pci: hairpin.seen for hairpin in part.hairpins}
    for item in view.functions:
        if item.soft or item.netdev not in relaying or item.hairpin_queue_size is None:
            continue
        reload = f"'devlink dev reload pci/{item.pci} action driver_reinit'"
        careful = "one function at a time, while nothing runs on it (it is away for seconds)"
        size, configured = item.hairpin_queue_size, item.hairpin_configured
        if item.reload_failed:
            seen = "the last driver re-initialisation failed, so the hairpin size in effect is not known"
            fix = f"read 'dmesg | grep mlx5'; then {reload}, {careful}, or reboot"
            yield view.find("hairpin-failed", item.netdev, seen, "a re-initialised driver", fix)
        elif configured not in (None, size):
            seen = f"hairpin queue size {configured} is configured, {size} is in effect"
            yield view.find("hairpin-pending", item.netdev, seen, f"{configured} in effect", f"{reload}, {careful}")
        elif size < HAIRPIN_MAX:
            planned = counted_on.get(item.pci or "", size)
            seen = f"hairpin queues of {size} packets" + (f"; the plan counts on {planned}" if planned > size else "")
            command = (
                f"devlink dev param set pci/{item.pci} name hairpin_queue_size value {HAIRPIN_MAX} cmode driverinit"
            )
            fix = f"'{command}', then {reload}, {careful}"
            yield view.find("hairpin-small", item.netdev, seen, f"{HAIRPIN_MAX} packets", fix)
    if not view.soft and relaying:
        view.need("devlink")


def software(view: View) -> Found:
    if view.soft:
        fix = "none if this is a test; else look why the card's driver is not loaded"
        yield view.find("soft-roce", "", "all RDMA devices are Soft-RoCE", "ConnectX-7 functions, outside tests", fix)
