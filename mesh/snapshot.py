"""What a node's kernel holds of the kinds of things a plan sets up, as ``ip`` and ``tc`` show it. Only reads."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import msgspec

from .model import Mark

Run = Callable[..., str]  # (argv, stdin="") -> stdout; raises CommandFailed

COMMAND_S = 10  # no look at the kernel takes longer, unless something is stuck
ETHERTYPES = {"ip": 0x0800, "ipv4": 0x0800, "ipv6": 0x86DD, "arp": 0x0806, "all": 0x0003}


class CommandFailed(Exception):
    """A command that had to work did not; the message is one sentence, ``fix`` what to do if that is known."""

    def __init__(self, message: str, fix: str = "") -> None:
        super().__init__(message)
        self.fix = fix


class Link(msgspec.Struct, frozen=True):
    mac: str
    mtu: int
    up: bool  # by its owner
    carrier: bool
    addresses: tuple[str, ...]  # IPv4 with prefix length


class Route(msgspec.Struct, frozen=True):
    device: str
    source: str
    scope: str
    protocol: str
    gateway: str


class Filter(msgspec.Struct, frozen=True):
    """One tc filter. ``rewrite``: offset in the frame -> the byte it is set to. ``output``: where it is redirected."""

    ethertype: int
    preference: int
    handle: int
    kind: str
    match: dict[str, str]
    rewrite: dict[int, int]
    output: str
    other: tuple[str, ...]  # actions that are neither
    skip_sw: bool
    in_hw: bool
    packets: int
    bytes: int


class Snapshot(msgspec.Struct, frozen=True):
    """One look. ``filters``: by (device, "ingress" or "egress"), of devices with a clsact qdisc only."""

    links: dict[str, Link]
    routes: dict[str, tuple[Route, ...]]  # destination as ip shows it: a /32 without its length
    neighbours: dict[tuple[str, str], tuple[str, bool]]  # (address, device) -> (MAC, permanent)
    clsact: frozenset[str]
    ingress: frozenset[str]  # devices with the older qdisc in the place of clsact
    filters: dict[tuple[str, str], tuple[Filter, ...]]
    hairpins: dict[str, int] = {}  # PCI address -> packets in effect; only where asked for
    marked: dict[str, tuple[Mark, ...]] = {}  # RDMA device -> what a running marker program holds on it


def run_command(argv: list[str] | tuple[str, ...], stdin: str = "", timeout_s: float = COMMAND_S) -> str:
    """Standard output of a command that must end well within its time. Raises CommandFailed."""
    words = " ".join(argv)
    try:
        done = subprocess.run(list(argv), input=stdin, capture_output=True, text=True, timeout=timeout_s, check=False)
    except FileNotFoundError:
        package = "ethtool" if argv[0] == "ethtool" else "iproute2"
        raise CommandFailed(f"'{argv[0]}' is not installed here; it comes with {package}") from None
    except subprocess.TimeoutExpired:
        fix = "the node is overloaded, or its kernel is stuck: see 'top' and 'dmesg' there, and try again"
        raise CommandFailed(f"'{words}' did not end within {timeout_s:g} s", fix) from None
    except OSError as error:
        raise CommandFailed(f"'{words}' cannot be run: {(error.strerror or str(error)).lower()}") from None
    if done.returncode:
        said = " ".join(done.stderr.split()) or f"exit status {done.returncode}"
        raise CommandFailed(f"'{words}' failed: {said}")
    return done.stdout


def read(run: Run = run_command) -> Snapshot:
    """One look at this name space: three processes."""
    try:
        return _read(run)
    except (AttributeError, LookupError, TypeError, ValueError) as error:
        why = f"{type(error).__name__}: {error}"
        raise CommandFailed(f"iproute2 printed JSON of another form ({why}); version 6.1 is known to work") from None


def _read(run: Run) -> Snapshot:
    address, route, neighbour = _documents(
        run(("ip", "-j", "-b", "-"), "address show\nroute show\nneighbour show\n"), 3
    )
    [qdiscs] = _documents(run(("tc", "-j", "qdisc", "show")), 1)
    clsact = [str(item["dev"]) for item in qdiscs if item.get("kind") == "clsact"]
    places = [(device, hook) for device in clsact for hook in ("ingress", "egress")]
    lines = "".join(f"filter show dev {device} {hook}\n" for device, hook in places)
    filters = _documents(run(("tc", "-j", "-s", "-b", "-"), lines), len(places)) if places else []
    neighbours = {}
    for item in neighbour:
        if "lladdr" in item:
            neighbours[item["dst"], item["dev"]] = (item["lladdr"], "PERMANENT" in item.get("state", ()))
    routes: dict[str, tuple[Route, ...]] = {}
    for item in route:
        made = Route(
            item.get("dev", ""),
            item.get("prefsrc", ""),
            item.get("scope", "global"),
            str(item.get("protocol", "boot")),
            item.get("gateway", ""),
        )
        routes[item["dst"]] = (*routes.get(item["dst"], ()), made)
    return Snapshot(
        links={item["ifname"]: _link(item) for item in address if item.get("ifname")},
        routes=routes,
        neighbours=neighbours,
        clsact=frozenset(clsact),
        ingress=frozenset(item["dev"] for item in qdiscs if item.get("kind") == "ingress"),
        filters={place: tuple(_filters(items)) for place, items in zip(places, filters, strict=True)},
    )


def _documents(text: str, count: int) -> list[list[dict[str, Any]]]:
    """The JSON documents that a batch printed one after the other; an old iproute2 prints nothing for an empty one."""
    decoder, found, at = json.JSONDecoder(), [], 0
    text = text.strip()
    try:
        while at < len(text):
            document, at = decoder.raw_decode(text, at)
            found.append(document)
            while at < len(text) and text[at].isspace():
                at += 1
    except ValueError:
        raise CommandFailed(f"iproute2 printed something that is not JSON: {text[at : at + 60]!r}") from None
    if not found and count == 1:
        return [[]]
    if len(found) != count:
        raise CommandFailed(
            f"iproute2 printed {len(found)} JSON documents, expected {count}; version 6.1 is known to work"
        )
    return found


def _link(item: Mapping[str, Any]) -> Link:
    flags = item.get("flags", ())
    return Link(
        mac=item.get("address", ""),
        mtu=int(item.get("mtu", 0)),
        up="UP" in flags,
        carrier="LOWER_UP" in flags,
        addresses=tuple(
            f"{info['local']}/{info['prefixlen']}"
            for info in item.get("addr_info", ())
            if info.get("family") == "inet" and "local" in info
        ),
    )


def _filters(items: list[dict[str, Any]]) -> Iterator[Filter]:
    for item in items:
        options = item.get("options")
        if not options or "handle" not in options:
            continue  # the head that tc prints before the filters of one preference
        keys = {name: str(value) for name, value in options.get("keys", {}).items()}
        actions = options.get("actions", ())
        rewrite: dict[int, int] = {}
        output, other = "", []
        for action in actions:
            if action.get("kind") == "pedit":
                rewrite |= _rewrite(action.get("keys", ()))
            elif action.get("kind") == "mirred" and action.get("mirred_action") == "redirect":
                output = f"{action.get('direction', '')} {action.get('to_dev', '')}"
            else:
                other.append(str(action.get("kind")))
        stats = actions[0].get("stats", {}) if actions else {}
        yield Filter(
            ethertype=_ethertype(keys.pop("eth_type", "") or str(item.get("protocol", ""))),
            preference=int(item.get("pref", 0)),
            handle=_number(options["handle"]),
            kind=str(item.get("kind", "")),
            match=keys,
            rewrite=rewrite,
            output=output,
            other=tuple(other),
            skip_sw=bool(options.get("skip_sw")),
            in_hw=bool(options.get("in_hw")),
            packets=int(stats.get("packets", 0)),
            bytes=int(stats.get("bytes", 0)),
        )


def _rewrite(keys: list[dict[str, Any]]) -> dict[int, int]:
    """Each pedit key sets, of four bytes in wire order, those whose mask is zero."""
    found = {}
    for key in keys:
        if key.get("cmd") != "set" or key.get("htype") != "eth":
            return {-1: 0}  # not one of ours, whatever it does
        value, mask = (int(str(key[name]), 16).to_bytes(4, "big") for name in ("val", "mask"))
        found.update({int(key["offset"]) + at: value[at] for at in range(4) if mask[at] == 0})
    return found


def _ethertype(text: str) -> int:
    """tc shows known ones by name, others as '[34997]' (a filter's protocol) or as '88b5' (flower's key)."""
    if text in ETHERTYPES:
        return ETHERTYPES[text]
    try:
        return int(text.strip("[]")) if text.startswith("[") else int(text, 16)
    except ValueError:
        return -1


def _number(value: object) -> int:
    """A handle: newer versions of tc print a number, older ones hexadecimal text."""
    try:
        return value if isinstance(value, int) else int(str(value), 16)
    except ValueError:
        return -1
