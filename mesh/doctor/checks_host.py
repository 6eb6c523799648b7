"""Checks of the host around the ring: memory limits, kernel, Wi-Fi, and what keeps the addresses over a reboot."""

from __future__ import annotations

from .evidence import ConfigFile
from .view import Found, View

MEMLOCK = 1 << 30  # bytes; a rank registers tens of MiB, NCCL hundreds; defaults of 8 to 64 MiB are what breaks
_RAISE = (
    "'ulimit -l unlimited', LimitMEMLOCK=infinity in a unit, or 'docker run --ulimit memlock=-1 --cap-add IPC_LOCK'"
)


def memlock(view: View) -> Found:
    limits = view.node.memlock
    small = {} if limits.login_may_exceed else {"this login": limits.login}
    small |= {str(process): process.memlock for process in view.node.processes if process.memlock is not None}
    for who, size in small.items():
        if 0 <= size < MEMLOCK:
            seen = f"{who} may lock {_size(size)}"
            yield view.find(
                "memlock-small", "", seen, f"unlimited (at least {_size(MEMLOCK)})", f"{_RAISE}, where it starts"
            )


def memlock_defaults(view: View) -> Found:
    for who, size in (
        ("systemd's services", view.node.memlock.systemd),
        ("docker's containers", view.node.memlock.docker),
    ):
        if size is not None and 0 <= size < MEMLOCK:
            seen = f"{who} may lock {_size(size) if size else 'little'} unless they say otherwise"
            yield view.find("memlock-default", "", seen, "unlimited for what runs ranks", _RAISE)
    view.need("memlock_defaults")


def _size(size: int) -> str:
    return f"{size >> 20} MiB" if size >= 1 << 20 else f"{size >> 10} KiB"


def kernel(view: View) -> Found:
    seen = view.node.kernel
    expected = "memory that a NIC can register"
    if seen.kho:
        fix = "add 'kho=off' to the kernel's command line and reboot"
        yield view.find("kho-on", "", f"kernel {seen.release} has kexec handover (kho) on", expected + ": kho off", fix)
    # Small x86 machines have none and need none; on a Spark its absence marks the kernel that cannot register memory.
    if seen.machine == "aarch64" and not view.soft and seen.cma_kib == 0:
        fix = "boot another kernel of the distribution, or 'kho=off' if that is what took it"
        yield view.find("cma-none", "", f"kernel {seen.release} has CmaTotal 0", expected + ": CmaTotal above 0", fix)


def wifi(view: View) -> Found:
    routes = {route.device for route in view.now.routes.get("default", ())}
    for item in view.node.wifi:
        link = view.now.links.get(item.netdev)
        if link is None or not link.addresses:
            continue
        if item.power_save:
            fix = f"'iw dev {item.netdev} set power_save off', and wifi.powersave=2 in NetworkManager"
            seen = "Wi-Fi power save is on"
            yield view.find("wifi-powersave", item.netdev, seen, "off: it delays what goes over management", fix)
        if item.netdev in routes:
            fix = "plug the management port in (enP7s7 on a Spark), or give it the lower metric"
            seen = "management goes over Wi-Fi: its default route is there"
            yield view.find("wifi-management", item.netdev, seen, "a wired management network", fix)
        if item.power_save is None:
            view.need("wifi")


def persistence(view: View) -> Found:
    """Whether the ports' addresses are back after a reboot. A Soft-RoCE port is gone with it anyway."""
    unread = "config_files" in view.node.unknown
    for item in view.functions:
        if item.soft or not item.ipv4:
            continue
        files = [file for file in view.node.config_files if item.netdev in file.ports]
        lasting = [file for file in files if not file.path.startswith("/run/")]
        if not lasting and not unread:
            where = f"only {files[0].path}, which is gone after a reboot" if files else "no configuration file"
            fix = f"write a netplan file for it: {item.ipv4[0]}, mtu 9000, optional: true"
            yield view.find("address-volatile", item.netdev, f"{where} speaks of it", "its address and MTU kept", fix)
        elif _leftover(lasting):
            names = " and ".join(file.path for file in lasting)
            fix = "keep one of them: what NetworkManager left behind wins over the other later"
            yield view.find("netplan-leftover", item.netdev, f"{names} both set it", "one file per port", fix)
    if any(not item.soft for item in view.functions):
        view.need("config_files")


def _leftover(files: list[ConfigFile]) -> bool:
    netplan = [file.path for file in files if file.path.startswith("/etc/netplan/")]
    return len(netplan) > 1 and any("/90-NM-" in path for path in netplan)
