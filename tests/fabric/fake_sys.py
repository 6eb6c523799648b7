"""A /sys of plain files that shows a snapshot."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from roce_ring.fabric.snapshot import Snapshot


@dataclass(frozen=True)
class Sys:
    """A /sys that shows a snapshot."""

    root: Path

    def show(self, host: Snapshot) -> None:
        devices = self.root / "bus/pci/devices"
        devices.mkdir(parents=True)
        for one in host.functions:
            home = self.root.joinpath("devices", f"pci{one.root}", *one.chain, one.bdf)
            home.mkdir(parents=True, exist_ok=True)
            (devices / one.bdf).symlink_to(home)
            config = config_of(one.port or 0, one.acs_control)
            files = {
                "class": f"{one.kind << 8:#08x}", "vendor": f"0x{one.vendor}", "device": f"0x{one.device}",
                "numa_node": one.numa, "current_link_speed": one.speed, "current_link_width": one.width,
                "max_link_speed": one.max_speed, "max_link_width": one.max_width,
            }  # fmt: skip
            for name, value in files.items():
                (home / name).write_text(f"{value}\n")
            (home / "config").write_bytes(config)
            for name in one.names:
                (home / ("infiniband" if name.startswith("roce") else "net") / name).mkdir(parents=True)
        for number in range(host.numa_nodes):
            (self.root / f"devices/system/node/node{number}").mkdir(parents=True)
        for number in range(host.sockets):
            cpu = self.root / f"devices/system/cpu/cpu{number}/topology"
            cpu.mkdir(parents=True)
            (cpu / "physical_package_id").write_text(f"{number}\n")


def config_of(port: int, acs: int | None) -> bytes:
    """Configuration space with a PCI Express capability behind another, and an ACS capability behind another. `acs`:
    None cuts it to what a user without rights gets."""
    raw = bytearray(4096)
    raw[0x06], raw[0x34] = 0x10, 0x40
    raw[0x40:0x44] = bytes([0x01, 0x60, 0, 0])  # power management, next at 0x60
    raw[0x60:0x64] = bytes([0x10, 0, 0x02 | port << 4, 0])
    raw[0x100:0x104] = (0x0001 | 1 << 16 | 0x148 << 20).to_bytes(4, "little")  # AER, next at 0x148
    if acs is not None and acs >= 0:
        raw[0x148:0x150] = (0x000D | 1 << 16).to_bytes(4, "little") + bytes([0x5F, 0]) + acs.to_bytes(2, "little")
    return bytes(raw[:64] if acs is None else raw)
