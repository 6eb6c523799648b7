"""The host around the ring: memory limits, kernel, libraries, stray settings, and the programs that use the ring."""

from __future__ import annotations

import fcntl
import json
import os
import re
import resource
import struct
from typing import Any

from .machine import Json, Machine

UNLIMITED = -1
_IPC_LOCK = 14  # bit of CAP_IPC_LOCK
_ENGINE = re.compile(r"(?:^|[/\s])(sglang|vllm|trtllm-serve)(?:[\s/.:]|$)")
_LOCKS = ("/run/roce-ring/*.sock.lock", "/run/user/*/roce-ring/*.sock.lock", "/tmp/roce-ring-*/*.sock.lock")  # noqa: S108
MARKERS = "/run/roce-ring/markers"
AGENT_STATE = "/var/lib/roce-ring/agent.json"
_FLOCK = "hhqqi0q"  # struct flock of 64-bit Linux: type, whence, start, length, pid
# Only what concerns the network: a process's environment also holds keys and tokens.
_PREFIXES = ("NCCL_", "GLOO_", "UCX_", "TP_SOCKET_", "B12X_ROCE_", "DSV41_ROCE", "SGLANG_ROCE_", "VLLM_ROCE_")
_NAMES = ("SGLANG_HOST_IP", "VLLM_HOST_IP", "HOST_IP", "MASTER_ADDR", "VLLM_ENABLE_ROCE_ALLREDUCE")
_OURS = ("ROCE_RING_HCA", "ROCE_RING_PEER_HCA_MAPS", "ROCE_RING_PLAN", "ROCE_RING_MAX_BYTES", "ROCE_RING_GATHER_BYTES")
_MOST_PROCESSES = 32  # engines fork; workers beyond these have the same settings


def host(machine: Machine) -> Json:
    return {
        "memlock": _memlock(machine),
        "kernel": _kernel(machine),
        "libraries": _libraries(machine),
        "nccl_files": _nccl_files(machine),
        "processes": _processes(machine),
        "markers": _markers(machine),
        "agent_plan": _agent_plan(machine),
    }


def _memlock(machine: Machine) -> Json:
    """Bytes that may be locked: by what this login starts, by systemd's services, by docker's containers."""
    soft, _ = resource.getrlimit(resource.RLIMIT_MEMLOCK)
    found: Json = {
        "login": UNLIMITED if soft == resource.RLIM_INFINITY else soft,
        "login_may_exceed": _ipc_lock(machine.text("/proc/self/status") or ""),
        "systemd": None,
        "docker": None,
    }
    if machine.path("/run/systemd/system").is_dir():
        shown = machine.ask("memlock_defaults", ["systemctl", "show", "--property=DefaultLimitMEMLOCK"]) or ""
        if limit := re.search(r"=(infinity|\d+)", shown):
            found["systemd"] = UNLIMITED if limit[1] == "infinity" or int(limit[1]) >= 1 << 63 else int(limit[1])
    if machine.path("/run/docker.sock").exists():
        found["docker"] = _docker_memlock(machine)
    return found


def _docker_memlock(machine: Machine) -> int:
    """What the daemon's settings give every container; 0 if they say nothing."""
    try:
        limit = json.loads(machine.text("/etc/docker/daemon.json") or "{}")["default-ulimits"]["memlock"]
        value = int(limit["Soft"])
    except (ValueError, KeyError, TypeError):
        return 0
    return UNLIMITED if value < 0 else value


def _ipc_lock(status: str) -> bool:
    effective = re.search(r"^CapEff:\s*([0-9a-f]+)$", status, re.MULTILINE)
    return bool(effective) and bool(int(effective[1], 16) >> _IPC_LOCK & 1)  # type: ignore[index]


def _kernel(machine: Machine) -> Json:
    release = machine.text("/proc/sys/kernel/osrelease") or os.uname().release
    line = machine.text("/proc/cmdline") or ""
    given = re.search(r"(?:^|\s)kho=(\S+)", line)
    by_default = "CONFIG_KEXEC_HANDOVER_ENABLE_DEFAULT=y" in (machine.text(f"/boot/config-{release}") or "")
    cma = re.search(r"^CmaTotal:\s*(\d+) kB", machine.text("/proc/meminfo") or "", re.MULTILINE)
    return {
        "release": release,
        "machine": os.uname().machine,
        "kho": given[1].lower() in ("1", "on", "y", "true") if given else by_default,
        "cma_kib": int(cma[1]) if cma else None,
    }


def _libraries(machine: Machine) -> Json:
    """Library -> version, told from file names; NCCL from pip is told from the folder beside it."""
    found: Json = {}
    folders = (f"/usr/lib/{os.uname().machine}-linux-gnu", "/usr/lib64")
    patterns = [("libibverbs", f"{folder}/libibverbs.so.1.*") for folder in folders]
    patterns += [("nccl", f"{folder}/libnccl.so.2.*") for folder in folders]
    patterns.append(("nccl", "/usr/local/lib/python3*/*-packages/nvidia_nccl_cu*.dist-info"))
    for name, pattern in patterns:
        for path in machine.find(pattern):
            if version := re.search(r"(?:\.so\.|-)(\d+(?:\.\d+)+)(?:\.dist-info)?$", path):
                found[name] = version[1]
    return found


def _nccl_files(machine: Machine) -> list[Json]:
    """Files that NCCL reads in every process, with the settings in them."""
    found = []
    home = os.environ.get("HOME", "/root")
    for name in dict.fromkeys(("/etc/nccl.conf", f"{home}/.nccl.conf")):
        text = machine.text(name)
        lines = [
            line.strip() for line in (text or "").splitlines() if line.strip() and not line.lstrip().startswith("#")
        ]
        if lines:
            found.append({"path": name, "lines": lines[:32]})
    return found


def _pids(machine: Machine) -> list[int]:
    """Processes that use this network; those in another name space may be another node's, or a container's own."""
    here = _network(machine, "self")
    pids = sorted(int(path.name) for path in machine.path("/proc").iterdir() if path.name.isdigit())
    return [pid for pid in pids if pid != os.getpid() and _network(machine, str(pid)) in (here, "")]


def _network(machine: Machine, process: str) -> str:
    try:
        return os.readlink(machine.path(f"/proc/{process}/ns/net"))  # noqa: PTH115 (no such file: 'net:[4026531840]')
    except OSError:
        return ""


def _arguments(machine: Machine, pid: int) -> list[str]:
    try:
        return machine.path(f"/proc/{pid}/cmdline").read_bytes().decode(errors="replace").rstrip("\0").split("\0")
    except OSError:  # it ended meanwhile
        return []


def _processes(machine: Machine) -> list[Json]:
    """This login, and every engine or rank that runs: what its environment says, what it may lock, what it loaded."""
    own = {"pid": None, "what": "this login", "environment": _chosen(dict(os.environ))}
    found: list[Json] = [{**own, "memlock": None, "libraries": {}, "plan_hash": _plan_hash(machine, dict(os.environ))}]
    ranks = _ranks(machine)
    for pid in _pids(machine):
        engine = _ENGINE.search(" ".join(_arguments(machine, pid)[:4]))
        what = ranks.get(pid) or (engine[1] if engine else "")
        if not what or len(found) > _MOST_PROCESSES:
            continue
        environment: dict[str, str] = {}
        try:
            raw = machine.path(f"/proc/{pid}/environ").read_bytes().decode(errors="replace")
            environment = dict(item.split("=", 1) for item in raw.split("\0") if "=" in item)
        except OSError:
            problem = f"the environment of process {pid} ({what}) can be read as its user or as root only"
            machine.note("processes", [problem])
        found.append(
            {
                "pid": pid,
                "what": what,
                "environment": _chosen(environment),
                "memlock": _process_memlock(machine, pid),
                "libraries": _loaded(machine, pid),
                "plan_hash": _plan_hash(machine, environment),
            }
        )
    return found


def _ranks(machine: Machine) -> dict[int, str]:
    """Process id -> name of the rank that it is; ranks hold a lock file beside their control socket that names it."""
    found = {}
    machine.may_list("processes", "/run/roce-ring")
    for pattern in _LOCKS:
        for name in machine.find(pattern):
            if owner := re.match(r"pid (\d+)", machine.text(name) or ""):
                found[int(owner[1])] = "rank " + os.path.basename(name)[: -len(".sock.lock")]  # noqa: PTH119
    return found


def _chosen(environment: dict[str, str]) -> dict[str, str]:
    return {
        name: value
        for name, value in sorted(environment.items())
        if name.startswith(_PREFIXES) or name in (*_NAMES, *_OURS)
    }


def _plan_hash(machine: Machine, environment: dict[str, str]) -> str | None:
    """The hash of the plan file that a process was given."""
    path = environment.get("ROCE_RING_PLAN", "")
    said = re.search(
        r"\bhash[\"']?: *[\"']?([0-9a-f]{64})\b", (machine.text(path) or "") if path.startswith("/") else ""
    )
    return said[1] if said else None


def _process_memlock(machine: Machine, pid: int) -> int | None:
    if _ipc_lock(machine.text(f"/proc/{pid}/status") or ""):
        return UNLIMITED  # the capability lifts the limit
    limit = re.search(r"^Max locked memory\s+(\S+)", machine.text(f"/proc/{pid}/limits") or "", re.MULTILINE)
    if not limit:
        return None
    return UNLIMITED if limit[1] == "unlimited" else int(limit[1])


def _loaded(machine: Machine, pid: int) -> Json:
    """The NCCL that a process has mapped, seen through its own root (it may run in a container)."""
    for line in (machine.text(f"/proc/{pid}/maps") or "").splitlines():
        path = line.split(maxsplit=5)[-1]
        if "/libnccl.so" not in path:
            continue
        packages = path.rpartition("/nvidia/nccl/")[0]
        beside = machine.find(f"/proc/{pid}/root{packages}/nvidia_nccl_cu*.dist-info") if packages else []
        for name in (path, *beside):
            if version := re.search(r"(?:\.so\.|-)(\d+\.\d+\.\d+)(?:\.dist-info)?$", name):
                # a patched build has the version of the one it was made from; its size tells them apart
                return {"nccl": f"{version[1]} of {_size(machine, f'/proc/{pid}/root{path}')} bytes"}
    return {}


def _size(machine: Machine, name: str) -> int:
    try:
        return machine.path(name).stat().st_size
    except OSError:
        return 0


def _markers(machine: Machine) -> dict[str, Any]:
    """RDMA device -> the marks that a running marker program holds on it, as its state file says. The program keeps the
    file locked as long as it lives: the lock, not the file, says that it runs."""
    found: dict[str, Any] = {}
    machine.may_list("markers", MARKERS)
    for name in machine.find(f"{MARKERS}/*.state"):
        try:
            with machine.path(name).open("rb") as file:
                asked = struct.pack(_FLOCK, fcntl.F_WRLCK, os.SEEK_SET, 0, 0, 0)
                if struct.unpack(_FLOCK, fcntl.fcntl(file, fcntl.F_GETLK, asked))[0] != fcntl.F_UNLCK:
                    state = json.loads(file.read() or b"{}")  # empty until every mark is in place
                    found[os.path.basename(name)[: -len(".state")]] = state.get("marks", [])  # noqa: PTH119
        except (OSError, ValueError, AttributeError):
            machine.note("markers", [f"{name} cannot be read by this user; look as root"])
    return found


def _agent_plan(machine: Machine) -> str | None:
    """The hash of the plan that the node's agent holds."""
    machine.may_list("agent", os.path.dirname(AGENT_STATE))  # noqa: PTH120
    try:
        state = json.loads(machine.text(AGENT_STATE) or "{}")
        return str(json.loads(state["plan"])["hash"]) if state.get("plan") else None
    except (ValueError, KeyError, TypeError):
        machine.note("agent", [f"{AGENT_STATE} is not what an agent writes"])
        return None
