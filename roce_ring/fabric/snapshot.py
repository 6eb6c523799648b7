"""What sysfs says of a host's PCI fabric, as one value: taken from this machine, or from a file somebody sent."""

from __future__ import annotations

import re
from pathlib import Path

import msgspec

from .. import documents
from ..errors import ConfigError
from . import config_space

SCHEMA = "roce-ring/pci-snapshot/v1"
MOST_BYTES = 8 << 20
_FIX = "'roce-ring topo --capture FILE' makes one"
_BDF = re.compile(r"[0-9a-f]{4,}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]")
_ROOT = re.compile(r"pci([0-9a-f]{4,}:[0-9a-f]{2})")
BRIDGE = 0x0604
GPUS = (0x0300, 0x0302, 0x1200)  # VGA, 3D, processing accelerator
NETWORK = 0x02  # the base class


class Function(msgspec.Struct, frozen=True, omit_defaults=True):
    """One PCI function. `chain`: bridges from the root port down to its parent. `root`: domain and bus of the host
    bridge. `kind`: the class code's upper 16 bits. Speeds are sysfs's words ("32.0 GT/s PCIe"), widths lanes; an idle
    GPU lowers its speed. `acs_control`: the ACS control word; -1 if there is no such capability; None if it
    could not be read, which is never to be taken for good. `names`: of its net and RDMA devices."""

    bdf: str
    root: str
    chain: tuple[str, ...]
    kind: int
    vendor: str
    device: str
    numa: int = -1
    speed: str = ""
    width: int = 0
    max_speed: str = ""
    max_width: int = 0
    port: int | None = None
    acs_control: int | None = None
    names: tuple[str, ...] = ()


class Snapshot(msgspec.Struct, frozen=True, omit_defaults=True):
    """`iommus`: the BDFs behind each instance of AMD's IOMMU. `quadrants`: host bridge -> name of the quadrant, by an
    operator's word."""

    schema: str
    host: str
    functions: tuple[Function, ...]
    sockets: int = 1
    numa_nodes: int = 1
    iommus: tuple[tuple[str, ...], ...] = ()
    quadrants: dict[str, str] = {}


def read(sys: Path, host: str) -> Snapshot:
    """Of the machine whose /sys is at `sys`: its bridges, GPUs and NICs (no virtual functions). What cannot be read is
    left unknown."""
    functions = []
    for link in sorted((sys / "bus/pci/devices").glob("*")):
        kind = _number(link / "class", 16) >> 8
        if (kind not in (BRIDGE, *GPUS) and kind >> 8 != NETWORK) or (link / "physfn").exists():
            continue
        parts = link.resolve().parts
        bridges = tuple(part for part in parts if _BDF.fullmatch(part))
        root = next((found[1] for part in parts if (found := _ROOT.fullmatch(part))), "")
        if not bridges or not root:
            continue  # behind a virtual host bridge (VMD, a hypervisor's): no fabric of this host's
        functions.append(_function(link, kind, root, bridges))
    packages = {_text(one / "topology/physical_package_id") for one in (sys / "devices/system/cpu").glob("cpu[0-9]*")}
    nodes = list((sys / "devices/system/node").glob("node[0-9]*"))
    iommus = [tuple(sorted(one.name for one in unit.glob("devices/*"))) for unit in (sys / "class/iommu").glob("ivhd*")]
    return Snapshot(
        SCHEMA,
        host,
        tuple(functions),
        sockets=max(len(packages - {""}), 1),
        numa_nodes=max(len(nodes), 1),
        iommus=tuple(sorted(filter(None, iommus))),
    )


def load(path: Path) -> Snapshot:
    """Raises ConfigError with every problem of the file."""
    raw = documents.read(path, "snapshot", MOST_BYTES, "see --from")
    return parse(documents.decode(raw, f"snapshot {path}", _FIX), str(path))


def parse(tree: object, where: str) -> Snapshot:
    """As load(), of what is decoded already."""
    if not isinstance(tree, dict) or tree.get("schema") != SCHEMA:
        raise ConfigError(f"{where} is no snapshot of a PCI fabric: expected schema {SCHEMA!r}", _FIX)
    return documents.judge(tree, Snapshot, "snapshot", where, _problems, _FIX, told=10)


def _problems(snapshot: Snapshot) -> list[str]:
    out, seen = [], set()
    known = {one.bdf for one in snapshot.functions}
    for one in snapshot.functions:
        if not _BDF.fullmatch(one.bdf):
            out.append(f"{one.bdf[:40]!r} is no PCI address like 0000:01:00.0")
        if one.bdf in seen:
            out.append(f"{one.bdf} is there twice")
        if not set(one.chain) <= known or one.bdf in one.chain:
            out.append(f"{one.bdf}: its chain names a bridge that the snapshot lacks")
        seen.add(one.bdf)
    return out


def _function(link: Path, kind: int, root: str, bridges: tuple[str, ...]) -> Function:
    try:
        config = (link / "config").read_bytes()
    except OSError:
        config = b""
    offset = config_space.acs_offset(config)
    control = None if offset is None else -1 if offset == 0 else config_space.word(config, offset + 6)
    names = [one.name for kind in ("net", "infiniband") for one in sorted((link / kind).glob("*"))]
    return Function(
        bdf=link.name,
        root=root,
        chain=bridges[:-1],
        kind=kind,
        vendor=_text(link / "vendor").removeprefix("0x"),
        device=_text(link / "device").removeprefix("0x"),
        numa=_number(link / "numa_node", missing=-1),
        speed=_text(link / "current_link_speed"),
        width=_number(link / "current_link_width"),
        max_speed=_text(link / "max_link_speed"),
        max_width=_number(link / "max_link_width"),
        port=config_space.port_type(config),
        acs_control=control,
        names=tuple(names),
    )


def _text(path: Path) -> str:
    try:
        return path.read_text().strip()
    except (OSError, UnicodeDecodeError):
        return ""


def _number(path: Path, base: int = 10, missing: int = 0) -> int:
    try:
        return int(_text(path), base)
    except ValueError:
        return missing
