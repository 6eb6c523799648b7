"""The network around the functions: addresses, routes, rules, firewall, Wi-Fi, and the files that keep them at boot."""

from __future__ import annotations

import fnmatch
import json
import os
import re
from typing import Any, Iterator  # noqa: UP035 (a remote machine may have an older Python)

from .machine import Json, Machine

LIVE = {"REACHABLE", "STALE", "DELAY", "PROBE"}  # states of a neighbour entry that somebody answered for
# What software on the host forwards for: the forwarded-datagram counter is then not the ring's alone.
_CONTAINERS = re.compile(r"docker|br-|veth|cni|virbr|podman|flannel|cali|lxc|tun|wg|tailscale")
_CONFIGS = (
    "/etc/netplan/*.yaml",
    "/etc/NetworkManager/system-connections/*",
    "/etc/systemd/network/*.network",
    "/etc/network/interfaces",
    "/etc/network/interfaces.d/*",
    "/run/netplan/*.yaml",
    "/run/systemd/network/*.network",
    "/run/NetworkManager/system-connections/*",
)


def network(machine: Machine, functions: list[Json]) -> Json:
    """``functions``: the RDMA functions; their netdevs are what the ring runs over."""
    netdevs = [port["netdev"] for port in functions]
    names = sorted(path.name for path in _entries(machine, "/sys/class/net"))
    return {
        "iproute": _iproute(machine),
        **_far_ends(machine, netdevs),
        "netdevs": names,
        "wifi": _wifi(machine, names),
        "ip_forward": {"1": True, "0": False}.get(machine.text("/proc/sys/net/ipv4/ip_forward") or ""),
        "others_forward": sorted(name for name in names if _CONTAINERS.match(name) and name not in netdevs),
        "firewall": _firewall(machine),
        "config_files": _config_files(machine, functions),
        "ssh_address": (os.environ.get("SSH_CONNECTION", "").split() + [""] * 3)[2] or None,
    }


def _entries(machine: Machine, name: str) -> list[Any]:
    folder = machine.path(name)
    return list(folder.iterdir()) if folder.is_dir() else []


def forwarded(machine: Machine) -> int | None:
    """Datagrams the kernel forwarded since boot. From /proc: nstat would write a history file."""
    rows = [line.split() for line in (machine.text("/proc/net/snmp") or "").splitlines() if line.startswith("Ip:")]
    try:
        return int(rows[1][rows[0].index("ForwDatagrams")])
    except (IndexError, ValueError):
        machine.note("forwarded", ["/proc/net/snmp does not tell how many datagrams the kernel forwarded"])
        return None


def _iproute(machine: Machine) -> Json | None:
    """The texts that mesh.snapshot reads: addresses, routes, neighbours; qdiscs; the filters of clsact qdiscs."""
    batch = "address show\nroute show\nneighbour show\n"
    address = machine.ask("iproute", ["ip", "-j", "-b", "-"], batch)
    qdisc = machine.ask("iproute", ["tc", "-j", "qdisc", "show"])
    if address is None or qdisc is None:
        return None
    try:
        devices = [item["dev"] for item in json.loads(qdisc or "[]") if item.get("kind") == "clsact"]
    except (ValueError, KeyError, AttributeError):
        machine.note("iproute", ["'tc -j qdisc show' did not print JSON"])
        return None
    lines = "".join(f"filter show dev {device} {hook}\n" for device in devices for hook in ("ingress", "egress"))
    filters = machine.ask("iproute", ["tc", "-j", "-s", "-b", "-"], lines) if lines else ""
    return None if filters is None else {"address": address, "qdisc": qdisc, "filters": filters}


def _far_ends(machine: Machine, netdevs: list[str]) -> Json:
    """What neighbour tables, and LLDP where it runs, know of the cables' other ends. ``far_macs``: netdev -> MACs that
    answered; ``silent``: netdev -> addresses that were asked for and did not."""
    macs: dict[str, set[str]] = {}
    silent: dict[str, set[str]] = {}
    for family in ("-4", "-6"):
        rows = machine.ask_json("far_ends", ["ip", "-j", family, "neighbour", "show"])
        for row in rows if isinstance(rows, list) else []:
            if row.get("dev") not in netdevs:
                continue
            if "lladdr" in row and LIVE & set(row.get("state", ())):
                macs.setdefault(row["dev"], set()).add(row["lladdr"].lower())
            elif "FAILED" in row.get("state", ()):
                silent.setdefault(row["dev"], set()).add(row["dst"])
    for netdev, mac in _lldp(machine):
        if netdev in netdevs:
            macs.setdefault(netdev, set()).add(mac.lower())
    return {
        name: {netdev: sorted(items) for netdev, items in found.items()}
        for name, found in (("far_macs", macs), ("silent", silent))
    }


def _lldp(machine: Machine) -> Iterator[tuple[str, str]]:
    """(netdev, MAC of the port at the other end), of neighbours that name their ports by MAC, as lldpd does."""
    try:
        shown = json.loads(machine.run(["lldpcli", "-f", "json", "show", "neighbors"]))["lldp"]["interface"]
    except Exception:  # not installed, not running, no neighbour: the neighbour tables are evidence enough
        return
    for group in shown if isinstance(shown, list) else [shown]:  # one neighbour is not a list
        for netdev, facts in group.items():
            port = facts.get("port", {}).get("id", {}) if isinstance(facts, dict) else {}
            if port.get("type") == "mac":
                yield netdev, str(port.get("value", ""))


def _wifi(machine: Machine, names: list[str]) -> list[Json]:
    found = []
    for name in names:
        if machine.path(f"/sys/class/net/{name}/phy80211").exists():
            shown = machine.ask("wifi", ["iw", "dev", name, "get", "power_save"]) or ""
            state = re.search(r"Power save: (on|off)", shown)
            found.append({"netdev": name, "power_save": state[1] == "on" if state else None})
    return found


def _firewall(machine: Machine) -> list[str]:
    """The lines of 'iptables -S' that judge forwarded packets, or what nft says in the place of a missing iptables."""
    shown = machine.ask("firewall", ["iptables", "-S"])
    if shown is not None:
        return [line for line in shown.splitlines() if re.match(r"-[PA] (FORWARD|DOCKER-USER)\b", line)]
    listed = machine.ask_json("nft", ["nft", "-j", "list", "chains"])
    if not isinstance(listed, dict):
        return []
    del machine.unknown["firewall"]
    chains = [item["chain"] for item in listed.get("nftables", []) if "chain" in item]
    drops = any(chain.get("hook") == "forward" and chain.get("policy") == "drop" for chain in chains)
    return [f"-P FORWARD {'DROP' if drops else 'ACCEPT'}"]


def _config_files(machine: Machine, functions: list[Json]) -> list[Json]:
    """The network configuration files that speak of a port, by name or MAC, and which ports those are."""
    words = {port["netdev"]: [port["netdev"], port["mac"] or port["netdev"]] for port in functions}
    found = []
    for pattern in _CONFIGS:
        for name in machine.find(pattern):
            text = machine.text(name)
            if text is None:
                machine.note("config_files", [f"{name} cannot be read by this user; look as root"])
                continue
            lines = [line for line in text.lower().splitlines() if not line.lstrip().startswith("#")]
            known = re.findall(r"[\w:.*?-]+", "\n".join(lines))
            ports = [netdev for netdev, names in words.items() if any(_among(word.lower(), known) for word in names)]
            if ports:
                found.append({"path": name, "ports": ports})
    return found


def _among(word: str, known: list[str]) -> bool:
    """Whether a file says ``word``, or a pattern for it (enp1s0f*); a bare * is for everything and means nobody."""
    return any(fnmatch.fnmatchcase(word, item.strip(":.")) for item in known if item.strip("*"))
