"""The Soft-RoCE guest kernel: User-mode Linux with rdma_rxe, built once from Debian's sources and cached.

    python tests/softroce/kernel.py [--check]

Prints the path of the kernel, building it first if there is none in the cache ($XDG_CACHE_HOME/roce-ring or
~/.cache/roce-ring); with --check it builds nothing. Building needs root, apt, and a Debian or Ubuntu archive that
carries trixie-backports: older kernels have a Soft-RoCE that works in the first network name space only.
"""

from __future__ import annotations

import argparse
import fcntl
import hashlib
import os
import platform
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

CONFIG = Path(__file__).with_name("kernel.config")
SUITE = "trixie-backports"
KEYRING = Path("/usr/share/keyrings/debian-archive-keyring.gpg")
TOOLS = tuple({"gcc": "gcc", "make": "make", "flex": "flex", "bison": "bison", "bc": "bc", "xz": "xz-utils"}.items())
NEEDED_BYTES = 4 << 30  # 1.8 GB of sources and 0.6 GB of objects, with room
VETH_CARRIER = """\
static int veth_change_carrier(struct net_device *dev, bool on)
{
	struct net_device *ends[] = { dev, rtnl_dereference(((struct veth_priv *)netdev_priv(dev))->peer) };

	for (int i = 0; i < 2; i++)
		if (ends[i])
			(on ? netif_carrier_on : netif_carrier_off)(ends[i]);
	return 0;
}

"""
EDITS = (  # (file, what is there, what is wanted)
    # 100 ticks a second are too coarse for polling ranks on one core
    ("arch/um/Kconfig", r"(?m)(^config HZ\n(?:\t.*\n)*?\tdefault )100$", r"\g<1>1000"),
    # an RDMA device belongs into its netdev's name space, where mlx5 puts it too
    (
        "drivers/infiniband/sw/rxe/rxe_net.c",
        r"ib_alloc_device\(rxe_dev, ib_dev\)",
        "ib_alloc_device_with_net(rxe_dev, ib_dev, dev_net(ndev))",
    ),
    # a frame that the sender's own queue dropped is lost like any other; without this the queue pair breaks
    (
        "drivers/infiniband/sw/rxe/rxe_net.c",
        r"(err = ip6_local_out\(.*\n\n\treturn )err;",
        r"\g<1>err > 0 ? 0 : err;",
    ),
    # a cable can be pulled: `ip link set DEV carrier off` at one end, and both ends notice
    ("drivers/net/veth.c", r"(?=static const struct net_device_ops veth_netdev_ops)", VETH_CARRIER),
    ("drivers/net/veth.c", r"(veth_netdev_ops = \{\n)", r"\g<1>\t.ndo_change_carrier = veth_change_carrier,\n"),
    # Soft-RoCE needs no PCI bus; what it asks for one is not worth building
    ("drivers/infiniband/Kconfig", r"\tdepends on HAS_IOMEM && HAS_DMA\n", ""),
    ("drivers/infiniband/sw/rxe/Kconfig", r"INET && PCI && ", "INET && "),
)
FLAGS = "-O1"  # for the compiler: headers cost it most of the time, then optimising


class KernelError(Exception):
    """Why there is no kernel: one sentence, with what to do."""


def cached() -> Path | None:
    """The newest kernel in the cache that was built with this configuration."""
    found = sorted(_cache().glob(f"linux-*-{_recipe()}/linux"), key=lambda file: _version(file.parent.name))
    return found[-1] if found else None


def kernel() -> Path:
    """The cached kernel, or a new one. Raises KernelError."""
    if wrong := obstacles():
        raise KernelError(f"the Soft-RoCE kernel cannot run here: {'; '.join(wrong)}")
    return cached() or build()


def obstacles() -> list[str]:
    """What on this machine no kernel helps against."""
    wrong = []
    if platform.machine() != "x86_64":
        wrong.append(f"this is a {platform.machine()} machine, and User-mode Linux is for x86_64")
    if os.geteuid() != 0:
        wrong.append("this user is not root (the guest mounts the host's files as root)")
    return wrong


def build() -> Path:
    """Fetch, edit, configure, compile: about 9 minutes of processor time. Raises KernelError."""
    _can_build()
    with (_cache() / "building").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if found := cached():  # by whoever held the lock
            return found
        for left in _cache().glob("build.*"):  # of a build that was killed: nobody else builds now
            shutil.rmtree(left, ignore_errors=True)
        began = time.monotonic()
        with tempfile.TemporaryDirectory(prefix="build.", dir=_cache()) as work:
            built = _build_in(Path(work))
    _say(f"{built} built in {time.monotonic() - began:.0f} s")
    return built


def _build_in(work: Path) -> Path:
    apt = _private_apt(work)
    package = _source_package(apt)
    _say(f"fetching {package}")
    _call("the kernel sources cannot be downloaded", ["apt-get", "download", "-qq", package], cwd=work, env=apt)
    _say("unpacking")
    [deb] = work.glob(f"{package}_*.deb")
    _call("the source package cannot be unpacked", ["dpkg-deb", "-x", deb.name, "."], cwd=work)
    _call("the kernel sources cannot be unpacked", ["tar", "-xf", f"usr/src/{package}.tar.xz"], cwd=work)
    tree = work / package
    for edit in EDITS:
        _edit(tree, *edit)
    _compile(tree)
    fresh = work / "fresh"
    fresh.mkdir()
    _call("the kernel cannot be stripped", ["strip", "-o", str(fresh / "linux"), str(tree / "vmlinux")])
    shutil.copy(tree / ".config", fresh / "config")
    target = _cache() / f"linux-{package.removeprefix('linux-source-')}-{_recipe()}"
    shutil.rmtree(target, ignore_errors=True)
    fresh.rename(target)  # at once: who looks meanwhile sees no half a kernel
    return target / "linux"


def _cache() -> Path:
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(base) / "roce-ring"


def _recipe() -> str:
    return hashlib.sha256(CONFIG.read_bytes() + repr((EDITS, FLAGS)).encode()).hexdigest()[:12]


def _version(name: str) -> list[int]:
    return [int(number) for number in re.findall(r"\d+", name.split("-")[1])]


def _say(what: str) -> None:
    print(f"soft-roce kernel: {what}", file=sys.stderr, flush=True)


def _can_build() -> None:
    """Everything that is in the way, at once."""
    wrong = []
    if not shutil.which("apt-get"):
        wrong.append("there is no apt-get (the sources come from a Debian archive)")
    elif not KEYRING.exists():
        wrong.append(f"{KEYRING} is missing (apt-get install debian-archive-keyring)")
    if missing := [package for tool, package in TOOLS if not shutil.which(tool)]:
        wrong.append(f"tools are missing (apt-get install {' '.join(missing)})")
    try:
        _cache().mkdir(parents=True, exist_ok=True)
        free = shutil.disk_usage(_cache()).free
        if free < NEEDED_BYTES:
            wrong.append(f"{_cache()} has {free >> 20} MiB left, {NEEDED_BYTES >> 20} are needed (set XDG_CACHE_HOME)")
    except OSError as error:
        wrong.append(f"{_cache()} cannot be made ({error.strerror}; set XDG_CACHE_HOME)")
    if wrong:
        raise KernelError(f"the Soft-RoCE kernel cannot be built: {'; '.join(wrong)}")


def _private_apt(work: Path) -> dict[str, str]:
    """An environment for apt with lists and caches of its own: the machine's archive, its backports, nothing shared."""
    targets = ["apt-get", "indextargets", "--format", "$(REPO_URI)", "Created-By: Packages"]
    places = _call("apt does not say where its packages come from", targets).split()
    archives = [place for place in places if place.rstrip("/").endswith("/debian")]
    if not archives:
        raise KernelError("apt on this machine uses no Debian archive (an address ending in /debian); the sources are")
    root = work / "apt"
    for folder in ("etc", "state/lists/partial", "cache/archives/partial"):
        (root / folder).mkdir(parents=True)
    (root / "etc/sources.list").write_text(f"deb [signed-by={KEYRING}] {archives[0]} {SUITE} main\n")
    (root / "state/status").touch()
    settings = {
        "Dir::Etc": root / "etc",
        "Dir::Etc::sourcelist": root / "etc/sources.list",
        "Dir::Etc::sourceparts": "/dev/null",
        "Dir::State": root / "state",
        "Dir::State::status": root / "state/status",
        "Dir::Cache": root / "cache",
        "APT::Sandbox::User": "root",
        "Acquire::Languages": "none",
    }
    (root / "apt.conf").write_text("".join(f'{key} "{value}";\n' for key, value in settings.items()))
    environment = {**os.environ, "APT_CONFIG": str(root / "apt.conf")}
    _say(f"reading the package list of {SUITE}")
    _call(f"the package list of {SUITE} cannot be read", ["apt-get", "update", "-qq"], env=environment)
    return environment


def _source_package(apt: dict[str, str]) -> str:
    depends = _call("apt knows no linux-source", ["apt-cache", "depends", "linux-source"], env=apt)
    found = re.search(r"Depends: (linux-source-[\d.]+)$", depends, re.MULTILINE)
    if not found:
        raise KernelError(f"linux-source in {SUITE} depends on no linux-source-VERSION; apt-cache says: {depends!r}")
    return found[1]


def _edit(tree: Path, name: str, old: str, new: str) -> None:
    text, count = re.subn(old, new, (tree / name).read_text())
    if count != 1:
        raise KernelError(f"{name} of this kernel has {count} places like {old!r} instead of one; adapt EDITS")
    (tree / name).write_text(text)


def _compile(tree: Path) -> None:
    make = ["nice", "-n", "10", "make", "ARCH=um", f"-j{len(os.sched_getaffinity(0))}"]
    environment = {**os.environ, "KCONFIG_ALLCONFIG": str(CONFIG)}
    _call("the kernel cannot be configured", [*make, "allnoconfig"], cwd=tree, env=environment)
    wanted = [line for line in CONFIG.read_text().splitlines() if line.startswith("CONFIG_")]
    got = set((tree / ".config").read_text().splitlines())
    if lost := [line for line in wanted if line not in got]:
        raise KernelError(f"this kernel does not take {', '.join(lost)}; adapt {CONFIG.name}")
    _say("compiling")
    _call("the kernel does not compile", [*make, f"KCFLAGS={FLAGS}", "vmlinux"], cwd=tree)


def _call(failure: str, command: Sequence[str], *, cwd: Path | None = None, env: dict[str, str] | None = None) -> str:
    """The command's output; raises KernelError with its last lines."""
    done = subprocess.run(
        command, cwd=cwd, env=env, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    if done.returncode:
        tail = "\n".join(done.stdout.splitlines()[-20:])
        raise KernelError(f"{failure} ('{' '.join(command)}' ended with {done.returncode}):\n{tail}")
    return done.stdout


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--check", action="store_true", help="only say whether it is in the cache")
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # clean up
    try:
        found = cached() if parser.parse_args().check else kernel()
    except KernelError as failed:
        print(failed, file=sys.stderr)
        return 2
    print(found or "not built yet")
    return 0 if found else 1


if __name__ == "__main__":
    sys.exit(main())
