"""A fake card: ip, tc, devlink and ethtool for one node of a plan, with as much memory as the agent's questions need.

No proof about hardware. It answers in the form of iproute2 6.1 (test_snapshot.py holds it to recorded answers), takes
commands as the kernel does (what is there twice is refused), and reloads a function as mlx5 does: with its MTU,
address, routes, neighbours and filters gone, and its queue size in effect.
"""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

from mesh.inventory import ZERO_GID
from mesh.model import Hca, NodePlan
from mesh.snapshot import CommandFailed

NAMES = {0x0800: "ip", 0x86DD: "ipv6"}
READS = ("-j", "-k", "-S")


class Card:
    """``run`` is what the agent runs its commands with; ``ran`` are those that change something, as text."""

    def __init__(self, node: NodePlan, sysfs: Path, driver: str = "mlx5_core") -> None:
        self.node = node
        self.links: dict[str, dict[str, Any]] = {}
        self.routes: list[dict[str, Any]] = []
        self.neighbours: list[dict[str, Any]] = []
        self.clsact: list[str] = []
        self.filters: dict[tuple[str, str], list[dict[str, Any]]] = {}
        self.in_hw = True
        self.offload = dict.fromkeys((hca.netdev for hca in node.hcas), "on")
        self.steering = dict.fromkeys((hca.pci for hca in node.hcas), "hmfs")
        self.sizes = {hca.pci: [8192, 8192, 1] for hca in node.hcas}  # configured, in effect, reloads since boot
        self.broken: dict[str, str] = {}  # beginning of a command -> why it fails
        self.away = 0  # how often a reloaded function's netdev is still missing when asked for
        self.missing: set[str] = set()  # programs that are not installed
        self.ran: list[str] = []
        self.asked: list[str] = []
        self.before: Callable[[str], None] = lambda command: None  # called before each command that changes something
        for hca in node.hcas:
            self.links[hca.netdev] = {"mac": hca.mac, "mtu": hca.mtu, "up": True, "addresses": [hca.address]}
            self._connect(hca)
            make_function(sysfs, hca, driver)

    def run(self, argv: tuple[str, ...], stdin: str = "", timeout_s: float = 10) -> str:
        command = " ".join(argv)
        if argv[0] in self.missing:
            raise CommandFailed(f"'{argv[0]}' is not installed here; it comes with a package")
        if argv[0].endswith("roce-ring-marker"):
            self.before(command)
            self.ran.append(command)
            return subprocess.run(argv, check=True, capture_output=True, text=True, timeout=20).stdout
        for beginning, why in self.broken.items():
            if command.startswith(beginning):
                raise CommandFailed(f"'{command}' failed: {why}")
        if any(word in argv for word in READS):
            self.asked.append(command)
            return self._answer(argv, stdin)
        self.before(command)
        self.ran.append(command)
        if error := self._change(list(argv)):
            raise CommandFailed(f"'{command}' failed: {error}")
        return ""

    def lose(self, netdev: str, mtu: int = 1500) -> None:
        """What a reload takes away."""
        self.links[netdev] |= {"mtu": mtu, "up": False, "addresses": []}
        self.routes = [one for one in self.routes if one["dev"] != netdev]
        self.neighbours = [one for one in self.neighbours if one["dev"] != netdev]
        self.clsact = [one for one in self.clsact if one != netdev]
        self.filters = {place: found for place, found in self.filters.items() if place[0] != netdev}

    def reboot(self) -> None:
        """Addresses come back from a configuration file, and nothing else does."""
        for hca in self.node.hcas:
            self.lose(hca.netdev)
            self.links[hca.netdev] |= {"up": True, "addresses": [hca.address]}
            self._connect(hca)
            self.sizes[hca.pci] = [1024, 1024, 0]

    def state(self) -> object:
        """All that a plan could change."""
        kept = (self.links, self.routes, self.neighbours, sorted(self.clsact), self.filters)
        return json.loads(
            json.dumps([*kept[:4], sorted((*place, found) for place, found in self.filters.items() if found)])
        )

    def _connect(self, hca: Hca) -> None:
        """The kernel's own route to the cable's network."""
        source, _, size = hca.address.partition("/")
        network = f"{source.rpartition('.')[0]}.0/{size}"
        self.routes.append(
            {"dst": network, "dev": hca.netdev, "protocol": "kernel", "scope": "link", "prefsrc": source}
        )

    # questions

    def _answer(self, argv: tuple[str, ...], stdin: str) -> str:
        match argv:
            case ("ip", "-j", "-b", "-"):
                return "\n".join(json.dumps(part) for part in (self._addresses(), self.routes, self.neighbours))
            case ("ip", "-j", "link", "show", "dev", netdev):
                self.away -= 1
                if self.away >= 0:
                    raise CommandFailed(f"'{' '.join(argv)}' failed: Device \"{netdev}\" does not exist.")
                return "[]"
            case ("tc", "-j", "qdisc", "show"):
                rows = [{"kind": "mq", "handle": "0:", "dev": dev, "root": True, "options": {}} for dev in self.links]
                ours = {"kind": "clsact", "handle": "ffff:", "parent": "ffff:fff1", "options": {}}
                return json.dumps([*rows, *({**ours, "dev": dev} for dev in self.clsact)])
            case ("tc", "-j", "-s", "-b", "-"):
                places = [tuple(line.split()[3:5]) for line in stdin.splitlines()]
                return "\n".join(json.dumps(self.filters.get(place, [])) for place in places)  # type: ignore[call-overload]
            case ("ethtool", "-k", netdev):
                return f"Features for {netdev}:\nrx-checksumming: on\nhw-tc-offload: {self.offload[netdev]}\n"
            case ("ethtool", _, netdev) if netdev not in self.links:
                raise CommandFailed(f"'{' '.join(argv)}' failed: netlink error: no device matches name")
            case ("ethtool", "-S", netdev):
                return f"NIC statistics:\n     rx_out_of_buffer: {self.links[netdev].get('dropped', 0)}\n"
            case ("devlink", "-j", "dev", "param", "show", target, "name", name):
                pci = target.removeprefix("pci/")
                value = {"flow_steering_mode": self.steering[pci], "hairpin_queue_size": self.sizes[pci][0]}.get(
                    name, 4
                )
                return json.dumps(
                    {"param": {target: [{"name": name, "values": [{"cmode": "driverinit", "value": value}]}]}}
                )
            case ("devlink", "-j", "-s", "dev", "show", target):
                reloads = self.sizes[target.removeprefix("pci/")][2]
                return json.dumps({"dev": {target: {"stats": {"reload": {"driver_reinit": {"unspecified": reloads}}}}}})
        raise AssertionError(f"the agent asks what the fake card does not know: {argv}")

    def _addresses(self) -> list[dict[str, Any]]:
        shown = []
        for name, link in self.links.items():
            flags = [name for name, on in (("UP", link["up"]), ("LOWER_UP", link.get("carrier", True))) if on]
            addresses = [
                {"family": "inet", "local": ip, "prefixlen": int(size), "scope": "global"}
                for ip, _, size in (text.partition("/") for text in link["addresses"])
            ]
            shown.append(
                {"ifname": name, "flags": flags, "mtu": link["mtu"], "address": link["mac"], "addr_info": addresses}
            )
        return shown

    # changes; what they return is the kernel's refusal

    def _change(self, words: list[str]) -> str:
        tool, *rest = words
        if tool == "devlink":
            return self._devlink(rest)
        netdev = words[words.index("dev") + 1]
        if netdev not in self.links:
            return f'Cannot find device "{netdev}"'
        return {"ip": self._ip, "tc": self._tc}[tool](netdev, rest)

    def _ip(self, netdev: str, words: list[str]) -> str:
        values = dict(pairwise(words[2:]))
        match words[0], words[1]:
            case "link", "set":
                if "mtu" in values:
                    self.links[netdev]["mtu"] = int(values["mtu"])
                self.links[netdev]["up"] = words[-1] == "up"
            case "address", ("add" | "replace") as verb:
                if words[2] in self.links[netdev]["addresses"]:
                    return "Error: ipv4: Address already assigned." if verb == "add" else ""
                self.links[netdev]["addresses"].append(words[2])
            case "address", "del":
                self.links[netdev]["addresses"].remove(words[2])
            case "neigh", "replace":
                self._ip(netdev, ["neigh", "del", *words[2:]])
                self.neighbours.append(
                    {"dst": words[2], "dev": netdev, "lladdr": values["lladdr"], "state": ["PERMANENT"]}
                )
            case "neigh", "del":
                self.neighbours = [one for one in self.neighbours if (one["dst"], one["dev"]) != (words[2], netdev)]
            case "route", "add":
                target = words[2].removesuffix("/32")
                if any(one["dst"] == target for one in self.routes):
                    return "RTNETLINK answers: File exists"
                made = {
                    "dst": target,
                    "dev": netdev,
                    "protocol": values["proto"],
                    "scope": values["scope"],
                    "prefsrc": values["src"],
                }
                self.routes.append({**made, "flags": []})
            case "route", "del":
                self.routes = [one for one in self.routes if one["dst"] != words[2].removesuffix("/32")]
            case _:
                raise AssertionError(words)
        return ""

    def _tc(self, netdev: str, words: list[str]) -> str:
        match words[0], words[1]:
            case "qdisc", "add":
                if netdev in self.clsact:
                    return "Error: Exclusivity flag on, cannot modify."
                self.clsact.append(netdev)
            case "qdisc", "del":
                self.clsact.remove(netdev)
            case "filter", verb:
                values = dict(pairwise(words))
                hook = "ingress" if "ingress" in words else "egress"
                here = self.filters.setdefault((netdev, hook), [])
                old = [one for one in here if one["pref"] == int(values["pref"])]
                if netdev not in self.clsact:
                    return "Error: Parent Qdisc doesn't exists."
                if verb == "del":
                    self.filters[netdev, hook] = [one for one in here if one not in old]
                    return "" if old else "Error: Filter with specified priority/protocol not found."
                if old:
                    return "RTNETLINK answers: File exists"
                here += flower(words, values, self.in_hw)
            case _:
                raise AssertionError(words)
        return ""

    def _devlink(self, words: list[str]) -> str:
        pci = words[3 if words[1] == "param" else 2].removeprefix("pci/")
        if words[1] == "param":
            self.sizes[pci][0] = int(words[words.index("value") + 1])
        else:
            self.lose(next(hca.netdev for hca in self.node.hcas if hca.pci == pci))
            self.sizes[pci][1:] = [self.sizes[pci][0], self.sizes[pci][2] + 1]
        return ""


def flower(words: list[str], values: dict[str, str], in_hw: bool) -> list[dict[str, Any]]:
    """One filter as tc shows it: its head, and itself."""
    ethertype = {"ip": 0x0800}.get(values["protocol"]) or int(values["protocol"], 16)
    protocol = NAMES.get(ethertype, f"[{ethertype}]")
    keys: dict[str, Any] = {"eth_type": "ipv4" if ethertype == 0x0800 else f"{ethertype:x}"}
    keys |= {name: values[name] for name in ("dst_mac", "src_mac", "ip_proto", "dst_ip") if name in values}
    keys |= {name: int(values[name]) for name in ("dst_port", "src_port") if name in values}
    counted = {"stats": {"bytes": 0, "packets": 0, "drops": 0, "overlimits": 0, "requeues": 0, "backlog": 0, "qlen": 0}}
    actions = []
    for at, word in enumerate(words):
        if word == "type":
            actions.append({"kind": "pedit", "keys": [key(12, int(words[at + 2], 16) << 16, 0xFFFF)], **counted})
        elif word == "dst" and words[at - 1] == "eth":
            mac = int(words[at + 2].replace(":", ""), 16)
            both = [key(0, mac >> 16, 0), key(4, (mac & 0xFFFF) << 16, 0xFFFF)]
            actions.append({"kind": "pedit", "keys": both, **counted})
        elif word == "redirect":
            redirect = {"mirred_action": "redirect", "direction": "egress", "to_dev": words[at + 2]}
            actions.append({"kind": "mirred", **redirect, **counted})
    hardware = {"skip_sw": True} if "skip_sw" in words else {}
    hardware |= {"in_hw": True, "in_hw_count": 1} if in_hw and hardware else {"not_in_hw": True}
    head = {"protocol": protocol, "pref": int(values["pref"]), "kind": "flower", "chain": 0}
    return [
        head,
        {**head, "options": {"handle": int(values["handle"], 16), "keys": keys, **hardware, "actions": actions}},
    ]


def key(offset: int, value: int, mask: int) -> dict[str, Any]:
    return {"htype": "eth", "offset": offset, "cmd": "set", "val": f"{value:x}", "mask": f"{mask:x}"}


def make_function(sysfs: Path, hca: Hca, driver: str) -> None:
    """One function the way sysfs shows it, as far as the agent looks."""
    device = sysfs / "devices" / hca.pci
    port = sysfs / "class" / "infiniband" / hca.rdma / "ports" / "1"
    a, b, c, d = map(int, hca.address.split("/")[0].split("."))
    rows = [ZERO_GID] * 3 + [f"0000:0000:0000:0000:0000:ffff:{a:02x}{b:02x}:{c:02x}{d:02x}"] + [ZERO_GID] * 4
    files = {device / "net" / hca.netdev / name: text for name, text in (("address", hca.mac), ("operstate", "up"))}
    files |= {device / "net" / hca.netdev / "mtu": str(hca.mtu), port / "state": "4: ACTIVE"}
    files |= {port / "gids" / str(row): gid for row, gid in enumerate(rows)}
    files |= {port / "gid_attrs" / "types" / "3": "RoCE v2", port / "gid_attrs" / "ndevs" / "3": hca.netdev}
    files |= {port / "hw_counters" / "out_of_sequence": "0"}
    for path, text in files.items():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text + "\n")
    (sysfs / "drivers" / driver).mkdir(parents=True, exist_ok=True)
    (device / "driver").symlink_to(sysfs / "drivers" / driver)
    (port.parent.parent / "device").symlink_to(device)
