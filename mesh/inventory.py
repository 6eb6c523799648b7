#!/usr/bin/env python3
"""One machine's facts, read and never changed: the RoCE functions in sysfs, and what ip, ethtool and devlink say.

Standard library only and in one file, because it is also sent to other machines over ssh ('python3 -').
Run here: ``roce-ring inventory`` or ``python mesh/inventory.py``.
"""

from __future__ import annotations

import argparse
import errno
import json
import os
import re
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any, Callable  # noqa: UP035 (a remote machine may have an older Python)

SCHEMA = "roce-ring/inventory/v1"
HOST = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,252}")
HAIRPIN_DEFAULT = 1024  # packets; what mlx5 starts every boot with
COMMAND_TIMEOUT_S = 10
MOST_EMPTY_ROWS = 16  # of a GID table, in one stretch
ZERO_GID = "0000:0000:0000:0000:0000:0000:0000:0000"

Json = dict[str, Any]
Run = Callable[[list[str]], str]  # argument list -> stdout; raises OSError or subprocess.SubprocessError


def run_command(argv: list[str], stdin: str = "") -> str:
    """Standard output of a command that must succeed within COMMAND_TIMEOUT_S."""
    done = subprocess.run(argv, input=stdin, capture_output=True, text=True, timeout=COMMAND_TIMEOUT_S, check=True)
    return done.stdout


def take(sysfs: Path = Path("/sys"), run: Run = run_command, host: str = "") -> Json:
    """The inventory as JSON data in the planner's per-node form; ``problems`` lists whatever could not be read."""
    problems: list[str] = []
    ports = [function(device, problems) for device in devices(sysfs)]
    found = [port for port in ports if port is not None]
    number_planes(found)
    addresses = addresses_of(run, problems)
    mtus = active_mtus(run, [])  # where ibv_devinfo is not installed they stay unknown
    for port in found:
        own = addresses.get(port["netdev"], [])
        port["ipv4"] = own[0] if own else None
        if len(own) > 1:
            problems.append(f"{port['netdev']} has {len(own)} IPv4 addresses ({', '.join(own)}); the first one is used")
        port["gid_index"] = gid_index(port)
        if port["ipv4"] is not None:  # an unaddressed function is not cabled: its settings do not matter
            port["roce_active_mtu"] = mtus.get(port["rdma"])
            port.update(offload(run, port, problems))
            port.update(devlink(run, port, problems))
    if not found:
        problems.append("no RoCE function with a physical port was found in /sys/class/infiniband (is mlx5_ib loaded?)")
    found.sort(key=lambda port: (port["plane"], port["port"]))
    return {"schema": SCHEMA, "host": host or socket.gethostname().split(".")[0], "ports": found, "problems": problems}


def devices(sysfs: Path) -> list[Path]:
    root = sysfs / "class" / "infiniband"
    return sorted(root.iterdir()) if root.is_dir() else []


def function(device: Path, problems: list[str]) -> Json | None:
    """One RDMA device, or None if it is not a physical Ethernet port of a PCI function."""
    if read_text(device / "ports" / "1" / "link_layer") != "Ethernet":
        return None
    netdevs = sorted((device / "device" / "net").iterdir()) if (device / "device" / "net").is_dir() else []
    physical = [
        (net, match) for net in netdevs if (match := re.fullmatch(r"p(\d+)", read_text(net / "phys_port_name") or ""))
    ]
    if not physical:
        problems.append(f"{device.name}: left out, no netdev of it has a physical port name (p0, p1) in sysfs")
        return None
    net, match = physical[0]
    pci = (device / "device").resolve().name
    return {**port_facts(device, net), "pci": pci, "plane": 0, "port": int(match.group(1))}  # number_planes() follows


def port_facts(device: Path, net: Path) -> Json:
    """What sysfs says of an RDMA device and its netdev, physical or not."""
    return {
        "netdev": net.name,
        "rdma": device.name,
        "mac": read_text(net / "address"),
        "mtu": read_number(net / "mtu"),
        "link_up": read_text(net / "operstate") == "up"
        and (read_text(device / "ports" / "1" / "state") or "").endswith("ACTIVE"),
        "gids": gid_rows(device),
    }


def number_planes(ports: list[Json]) -> None:
    """Functions of one cage differ in their PCI domain; the lower domain is plane 0."""
    domains = sorted({port["pci"].split(":")[0] for port in ports})
    for port in ports:
        port["plane"] = domains.index(port["pci"].split(":")[0])


def gid_rows(device: Path) -> list[Json]:
    """The rows in use of the device's GID table. It has 256 (Soft-RoCE: 1024), and the kernel takes the first free one:
    nothing comes after a long empty stretch."""
    port = device / "ports" / "1"
    rows: list[Json] = []
    empty = index = 0
    while empty < MOST_EMPTY_ROWS:
        gid = read_text(port / "gids" / str(index))
        empty += 1
        if gid and gid != ZERO_GID:
            # Reading the type of an empty row fails with EINVAL; such rows are skipped.
            kind, netdev = (read_text(port / "gid_attrs" / name / str(index)) or "" for name in ("types", "ndevs"))
            rows.append({"index": index, "gid": gid, "type": kind, "netdev": netdev})
            empty = 0
        index += 1
    return rows


def gid_index(port: Json) -> int | None:
    """The row that RoCE v2 from the port's own IPv4 address uses. It moves when a link flaps, so it is looked up."""
    if port["ipv4"] is None:
        return None
    tail = "ffff:" + "{:02x}{:02x}:{:02x}{:02x}".format(*map(int, port["ipv4"].split("/")[0].split(".")))
    for row in port["gids"]:
        if row["gid"].endswith(tail) and row["type"] == "RoCE v2" and row["netdev"] == port["netdev"]:
            return int(row["index"])
    return None


def active_mtus(run: Run, problems: list[str]) -> dict[str, int]:
    """RDMA device -> the RoCE MTU in use, in bytes. Sysfs does not show it."""
    shown = ask_text(run, ["ibv_devinfo"], problems) or ""
    return {
        name: int(mtu) for name, mtu in re.findall(r"hca_id:\s*(\S+)(?:(?!hca_id:)[\s\S])*?active_mtu:\s*(\d+)", shown)
    }


def addresses_of(run: Run, problems: list[str]) -> dict[str, list[str]]:
    """netdev -> its IPv4 addresses with prefix."""
    rows = ask_json(run, ["ip", "-j", "-4", "address", "show"], problems)
    addresses: dict[str, list[str]] = {}
    for row in rows if isinstance(rows, list) else []:
        found = [
            f"{info['local']}/{info['prefixlen']}" for info in row.get("addr_info", []) if info.get("family") == "inet"
        ]
        if found:
            addresses[row["ifname"]] = found
    return addresses


def offload(run: Run, port: Json, problems: list[str]) -> Json:
    text = ask_text(run, ["ethtool", "-k", port["netdev"]], problems)
    match = re.search(r"^hw-tc-offload:\s*(on|off)", text or "", re.MULTILINE)
    return {"hw_tc_offload": match.group(1) == "on" if match else None}


def devlink(run: Run, port: Json, problems: list[str]) -> Json:
    target = f"pci/{port['pci']}"
    mode = _parameter(run, target, "flow_steering_mode", problems)
    queues = _parameter(run, target, "hairpin_num_queues", problems)
    size = _parameter(run, target, "hairpin_queue_size", problems)
    facts: Json = {"flow_steering_mode": mode, "hairpin_num_queues": queues, "hairpin_queue_size": size}
    if isinstance(size, int) and size != HAIRPIN_DEFAULT and not _reinitialised(run, target, problems):
        facts["hairpin_queue_size"], facts["hairpin_configured"] = HAIRPIN_DEFAULT, size
    return facts


def _parameter(run: Run, target: str, name: str, problems: list[str]) -> Any:
    data = ask_json(run, ["devlink", "-j", "dev", "param", "show", target, "name", name], problems)
    try:
        return data["param"][target][0]["values"][0]["value"]
    except (KeyError, IndexError, TypeError):
        return None


def _reinitialised(run: Run, target: str, problems: list[str]) -> bool:
    """Whether the driver was re-initialised since boot: a driverinit parameter is only in effect after that."""
    data = ask_json(run, ["devlink", "-j", "-s", "dev", "show", target], problems)
    try:
        device = data["dev"][target]
        count = device["stats"]["reload"]["driver_reinit"]
        total = sum(count.values()) if isinstance(count, dict) else int(count)
        return total >= 1 and not device.get("reload_failed", False)
    except (KeyError, TypeError, ValueError):
        return False


def ask_json(run: Run, argv: list[str], problems: list[str]) -> Any:
    text = ask_text(run, argv, problems)
    try:
        return json.loads(text) if text else None
    except ValueError:
        problems.append(f"'{' '.join(argv)}' did not print JSON")
        return None


def ask_text(run: Run, argv: list[str], problems: list[str]) -> str | None:
    command = " ".join(argv)
    try:
        return run(argv)
    except FileNotFoundError:
        problem = f"'{argv[0]}' is not installed, so '{command}' could not be asked"
    except subprocess.CalledProcessError as error:
        lines = (error.stderr or "").strip().splitlines()
        problem = f"'{command}' failed: {lines[-1] if lines else f'exit status {error.returncode}'}"
    except subprocess.TimeoutExpired:
        problem = f"'{command}' did not answer within {COMMAND_TIMEOUT_S} s"
    except OSError as error:
        problem = f"'{command}' could not run: {error.strerror}"
    if problem not in problems:
        problems.append(problem)
    return None


def read_text(path: Path) -> str | None:
    try:
        return path.read_text(encoding="utf-8").strip()
    except OSError:
        return None


def read_number(path: Path) -> int | None:
    text = read_text(path) or ""
    return int(text) if text.isdigit() else None


def main(argv: list[str] | None = None, prog: str | None = None) -> int:
    """Print this machine's inventory. Exit status 1 if ``problems`` lists something, 2 if it cannot be printed."""
    parser = argparse.ArgumentParser(
        prog=prog, description="Print one machine's facts for the planner, as JSON. Changes nothing."
    )
    parser.add_argument("--host", help="name to give the node (default: this machine's host name)")
    options = parser.parse_args(argv)
    if options.host is not None and not HOST.fullmatch(options.host):
        parser.error(f"--host {options.host[:60]!r}: expected up to 253 letters, digits, '.', '-' and '_'")
    facts = take(host=options.host or "")
    try:
        if sys.stdout is None:  # what Python makes of a closed one
            raise OSError(errno.EBADF, "it is closed")
        print(json.dumps(facts, indent=2))
        sys.stdout.flush()
    except OSError as error:
        if sys.stdout is not None:  # what is still buffered goes nowhere, or Python would fail on it when it ends
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        print(f"error: standard output cannot be written ({error.strerror})", file=sys.stderr)
        return 2
    for problem in facts["problems"]:
        print(f"warning: {problem}", file=sys.stderr)
    return 1 if facts["problems"] else 0


if __name__ == "__main__":
    sys.exit(main())
