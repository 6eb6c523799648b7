"""The RDMA functions of one machine: what the inventory says of them, and offload, hairpins, PCIe and counters."""

from __future__ import annotations

import re
from pathlib import Path

from .. import inventory
from .machine import Json, Machine

_AER = ("fatal", "nonfatal", "correctable")


def functions(machine: Machine) -> tuple[list[Json], list[str]]:
    """Every RDMA function over Ethernet, physical or Soft-RoCE, and what the inventory found odd."""
    problems: list[str] = []
    found = []
    for device in inventory.devices(machine.path("/sys")):
        soft = inventory.read_text(device / "parent")  # Soft-RoCE names its netdev here, and has no PCI device
        if soft:
            net = machine.path(f"/sys/class/net/{soft}")
            found.append({**inventory.port_facts(device, net), "pci": None, "plane": None, "port": None})
        elif (physical := inventory.function(device, problems)) is not None:
            found.append(physical)
    inventory.number_planes([port for port in found if port["pci"] is not None])
    asked: list[str] = []
    addresses = inventory.addresses_of(machine.run, asked)
    machine.note("addresses", asked)
    mtus = inventory.active_mtus(machine.run, asked := [])
    machine.note("active_mtu", asked)
    for port in found:
        port["ipv4"] = addresses.get(port["netdev"], [])
        port["roce_active_mtu"] = mtus.get(port["rdma"])
        port["firmware"] = machine.text(f"/sys/class/infiniband/{port['rdma']}/fw_ver") or None
        if port["pci"] is not None and port["ipv4"]:  # an unaddressed function is not cabled: nothing else matters
            port.update(_offload(machine, port), **_devlink(machine, port), **_pcie(machine, port))
    found.sort(key=lambda port: (port["pci"] is None, port["plane"] or 0, port["port"] or 0, port["rdma"]))
    return found, problems


def _offload(machine: Machine, port: Json) -> Json:
    asked: list[str] = []
    facts = inventory.offload(machine.run, port, asked)
    machine.note("offload", asked)
    shown = machine.ask("offload", ["ethtool", "-k", port["netdev"]]) or ""
    fixed = bool(re.search(r"^hw-tc-offload: off \[fixed\]", shown, re.MULTILINE))
    return {**facts, "offload_fixed": fixed}


def _devlink(machine: Machine, port: Json) -> Json:
    target = f"pci/{port['pci']}"
    asked: list[str] = []
    facts = inventory.devlink(machine.run, port, asked)
    machine.note("devlink", asked)
    shown = machine.ask_json("devlink", ["devlink", "-j", "-s", "dev", "show", target])
    eswitch = machine.ask_json("eswitch", ["devlink", "-j", "dev", "eswitch", "show", target])
    try:
        facts["reload_failed"] = bool(shown["dev"][target].get("reload_failed", False))
    except (KeyError, TypeError):
        facts["reload_failed"] = None
    try:
        facts["eswitch"] = {name: str(value) for name, value in eswitch["dev"][target].items()}
    except (KeyError, TypeError, AttributeError):
        facts["eswitch"] = {}
    return facts


def _pcie(machine: Machine, port: Json) -> Json:
    where = f"/sys/bus/pci/devices/{port['pci']}"
    link: Json = {}
    for name in ("current", "max"):
        speed = re.match(r"[\d.]+", machine.text(f"{where}/{name}_link_speed") or "")
        link[f"{name}_speed"] = float(speed[0]) if speed else None  # GT/s
        link[f"{name}_width"] = machine.number(f"{where}/{name}_link_width")
    errors = {}
    for kind in _AER:
        total = re.search(r"^TOTAL_ERR\w* (\d+)$", machine.text(f"{where}/aer_dev_{kind}") or "", re.MULTILINE)
        if total:
            errors[kind] = int(total[1])
    if link["current_width"] is None:
        machine.note("pcie", [f"{where} does not tell the link's width"])
    if not errors:
        machine.note("aer", [f"{where} has no error counters; the kernel reports no AER for it"])
    return {"pcie": link, "aer": errors}


def counters(machine: Machine, functions: list[Json]) -> dict[str, Json]:
    """RDMA device -> its counters; from 'rdma', which also works where sysfs hides them (in a name space). What a
    hairpin queue had no room for is counted by the netdev, and only ethtool shows that."""
    rows = machine.ask_json("counters", ["rdma", "-j", "statistic", "show", "link"])
    found: dict[str, Json] = {}
    for row in rows if isinstance(rows, list) else []:
        values = {name: value for name, value in row.items() if isinstance(value, int) and name != "port"}
        found[row.get("ifname", "")] = values
    for device in [] if found else inventory.devices(machine.path("/sys")):
        found[device.name] = _from_sysfs(device / "ports" / "1" / "hw_counters")
    if any(found.values()):
        machine.unknown.pop("counters", None)
    for port in functions:
        if port["pci"] is not None and port["ipv4"]:
            shown = machine.ask("drops", ["ethtool", "-S", port["netdev"]]) or ""
            if dropped := re.search(r"^\s*rx_out_of_buffer: (\d+)$", shown, re.MULTILINE):
                found.setdefault(port["rdma"], {})["rx_out_of_buffer"] = int(dropped[1])
    return found


def _from_sysfs(folder: Path) -> Json:
    names = [path.name for path in folder.iterdir()] if folder.is_dir() else []
    return {name: value for name in names if (value := inventory.read_number(folder / name)) is not None}
