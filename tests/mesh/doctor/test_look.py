"""What the look reads of a machine, from files and answers as a Spark has them, and what it says it could not read."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from mesh.doctor import bundle
from mesh.doctor.evidence import evidence_from_json
from mesh.doctor.look import gather
from mesh.ssh import ask_all
from tests.mesh.test_inventory import FUNCTIONS, Machine, fake_ssh, make_function, write

PCI = "0000:01:00.0"


class Spark(Machine):
    """Answers of every tool; ``changes``: (first word or whole command) -> another answer, or None: not installed."""

    def __init__(self, **changes: Any) -> None:
        super().__init__()
        self.changes, self.looks = changes, 0

    def __call__(self, argv: list[str], stdin: str = "") -> str:
        if argv[0] in self.changes:
            answer = self.changes[argv[0]]
            if answer is None:
                raise FileNotFoundError(2, "No such file or directory", argv[0])
            if isinstance(answer, Exception):
                raise answer
            return str(answer)
        if argv[0] == "rdma":
            self.looks += 1
            return json.dumps([{"ifname": "mlx5_3", "port": 1, "out_of_sequence": self.looks, "lifespan": 12}])
        if argv[:2] == ["ethtool", "-S"]:
            return f"NIC statistics:\n     rx_packets: 77\n     rx_out_of_buffer: {10 * self.looks}\n"
        if argv[:3] == ["ip", "-j", "-b"]:
            return '[{"ifname": "fab3", "addr_info": []}]\n[]\n[]\n'
        if argv[0] == "ip" and "neighbour" in argv:
            dead = {"dst": "10.10.3.10", "dev": "fab1", "state": ["FAILED"]}
            live = {"dst": "10.10.0.11", "dev": "fab3", "lladdr": "02:00:00:00:00:0A", "state": ["STALE"]}
            elsewhere = {"dst": "1.2.3.4", "dev": "eth0", "lladdr": "02:00:00:00:00:0b", "state": ["REACHABLE"]}
            return json.dumps([dead, live, elsewhere] if "-4" in argv else [])
        if argv[:3] == ["tc", "-j", "qdisc"]:
            return "[]"
        if argv[0] == "iptables":
            return "-P INPUT ACCEPT\n-P FORWARD DROP\n-N DOCKER-USER\n-A DOCKER-USER -j RETURN\n-A DOCKER -j DROP\n"
        if argv[:4] == ["devlink", "-j", "dev", "eswitch"]:
            return json.dumps({"dev": {argv[-1]: {"mode": "legacy", "inline-mode": "none", "encap-mode": "basic"}}})
        if argv[0] == "systemctl":
            return "DefaultLimitMEMLOCK=8388608\n"
        if argv[0] == "iw":
            return "Power save: on\n"
        return super().__call__(argv)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    for function in FUNCTIONS:
        make_function(tmp_path / "sys", *function)
    pci = tmp_path / "sys/bus/pci/devices" / PCI
    for name, text in {
        "current_link_speed": "32.0 GT/s PCIe",
        "current_link_width": "2",
        "max_link_speed": "32.0 GT/s PCIe",
        "max_link_width": "16",
        "aer_dev_fatal": "Undefined 0\nDLP 1\nTOTAL_ERR_FATAL 1",
        "aer_dev_nonfatal": "TOTAL_ERR_NONFATAL 0",
    }.items():
        write(pci / name, text)
    for name, text in {
        "proc/sys/net/ipv4/ip_forward": "1",
        "proc/net/snmp": "Ip: Forwarding DefaultTTL ForwDatagrams\nIp: 1 64 77",
        "proc/sys/kernel/osrelease": "6.17.0-test",
        "proc/cmdline": "root=/dev/sda quiet",
        "proc/meminfo": "MemTotal: 1 kB\nCmaTotal:       32768 kB",
        "boot/config-6.17.0-test": "CONFIG_KEXEC_HANDOVER=y\nCONFIG_KEXEC_HANDOVER_ENABLE_DEFAULT=y",
        "etc/nccl.conf": "# a comment\nNCCL_DEBUG=INFO\n",
        "etc/netplan/40-cx7.yaml": "network:\n  ethernets:\n    fab3:\n      mtu: 9000\n    # fab1: not this one\n",
        "run/NetworkManager/system-connections/x.nmconnection": "[ethernet]\nmac-address=02:00:00:00:00:10",
        "etc/systemd/network/9.network": "[Match]\nName=* fab0*\n",
        f"usr/lib/{os.uname().machine}-linux-gnu/libibverbs.so.1.14.50.0": "",
        f"usr/lib/{os.uname().machine}-linux-gnu/libibverbs.so.1": "",
        f"usr/lib/{os.uname().machine}-linux-gnu/libnccl.so.2.28.9": "",
        "run/roce-ring/ring-r0.sock.lock": "pid 77, rank 0 of ring",
        "run/docker.sock": "",
        "etc/docker/daemon.json": '{"runtimes": {}}',
        "var/lib/roce-ring/agent.json": json.dumps({"plan": json.dumps({"hash": "a" * 64})}),
    }.items():
        write(tmp_path / name, text)
    process(tmp_path, 77, ["python3", "serve.py"], {"NCCL_ALGO": "Ring", "API_KEY": "secret"}, memlock="65536")
    process(tmp_path, 88, ["python3", "-m", "sglang.launch_server"], {"SGLANG_HOST_IP": "10.0.0.1"}, capable=True)
    process(tmp_path, 99, ["bash"], {"NCCL_ALGO": "Tree"})
    write(tmp_path / "sys/class/net/wlan0/phy80211/name", "phy0")
    (tmp_path / "run/systemd/system").mkdir(parents=True)
    return tmp_path


def process(
    root: Path, pid: int, argv: list[str], environment: dict[str, str], memlock: str = "", capable: bool = False
) -> None:
    folder = root / "proc" / str(pid)
    write(folder / "status", f"CapEff:\t{1 << 14 if capable else 0:016x}")
    write(folder / "limits", f"Max locked memory         {memlock or 'unlimited'}  unlimited  bytes")
    (folder / "cmdline").write_bytes("\0".join([*argv, ""]).encode())
    (folder / "environ").write_bytes("\0".join(f"{k}={v}" for k, v in environment.items()).encode())


def look(root: Path, interval_s: float = 0.0, **changes: Any) -> Any:
    return evidence_from_json(json.loads(json.dumps(gather("s1", interval_s, root, Spark(**changes)))), "look")


def test_a_spark_is_read_and_nothing_is_unknown_but_growth(root: Path) -> None:
    (root / "sys/bus/pci/devices" / "0000:01:00.1").symlink_to(PCI)
    (root / "sys/bus/pci/devices" / "0002:01:00.0").symlink_to(PCI)
    seen = look(root)
    assert set(seen.unknown) == {"growth"}
    first = seen.functions[0]
    assert (first.rdma, first.ipv4, first.roce_active_mtu) == ("mlx5_3", ("10.10.0.10/24",), 4096)
    assert (first.hairpin_queue_size, first.reload_failed, first.eswitch["mode"]) == (8192, False, "legacy")
    assert (first.pcie.current_width, first.aer) == (2, {"fatal": 1, "nonfatal": 0})
    assert seen.far_macs == {"fab3": ("02:00:00:00:00:0a",)}
    assert seen.silent == {"fab1": ("10.10.3.10",)}
    assert seen.firewall == ("-P FORWARD DROP", "-A DOCKER-USER -j RETURN")
    assert (seen.kernel.kho, seen.kernel.cma_kib, seen.libraries["libibverbs"]) == (True, 32768, "1.14.50.0")
    assert (seen.memlock.systemd, seen.memlock.docker) == (8388608, 0)
    assert [(wifi.netdev, wifi.power_save) for wifi in seen.wifi] == [("wlan0", True)]
    assert [file.lines for file in seen.nccl_files] == [("NCCL_DEBUG=INFO",)]
    assert seen.agent_plan == "a" * 64


def test_counters_are_read_twice_an_interval_apart(root: Path) -> None:
    """Counters only count since boot: what grows now is what matters."""
    seen = look(root, interval_s=0.05)
    assert seen.functions[0].growth == {"rx_out_of_buffer": 10, "out_of_sequence": 1, "lifespan": 0}
    assert (seen.forwarded_growth, "growth" in seen.unknown) == (0, False)
    assert 0.05 <= seen.interval_s < 1


def test_ranks_and_engines_are_found_and_their_secrets_left_alone(root: Path) -> None:
    """A rank is known by its lock file, an engine by its command; of environments only what concerns the network."""
    login, rank, engine = look(root).processes
    assert (login.pid, rank.pid, engine.pid) == (None, 77, 88)
    assert (rank.what, rank.environment, rank.memlock) == ("rank ring-r0", {"NCCL_ALGO": "Ring"}, 65536)
    assert (engine.what, engine.memlock) == ("sglang", -1)  # CAP_IPC_LOCK lifts the limit


@pytest.mark.parametrize(
    ("mapped", "version"),
    [
        ("/usr/lib/libnccl.so.2.28.9", "2.28.9 of 3 bytes"),
        ("/opt/site-packages/nvidia/nccl/lib/libnccl.so.2", "2.30.7 of 3 bytes"),  # pip tells it in a folder's name
    ],
)
def test_the_nccl_that_an_engine_has_loaded(root: Path, mapped: str, version: str) -> None:
    """Seen through the engine's own root: a container has another one than its host."""
    write(root / "proc/88/maps", f"ffff0000-ffff1000 r-xp 00000000 08:01 1234    {mapped}")
    write(root / "proc/88/root" / mapped[1:], "so")
    (root / "proc/88/root/opt/site-packages/nvidia_nccl_cu13-2.30.7.dist-info").mkdir(parents=True)
    assert look(root).processes[2].libraries == {"nccl": version}


def test_configuration_files_are_told_by_the_ports_in_them(root: Path) -> None:
    """By name or MAC; a comment does not count, and what is under /run is gone after a reboot."""
    files = {file.path: file.ports for file in look(root).config_files}
    assert files == {
        "/etc/netplan/40-cx7.yaml": ("fab3",),
        "/run/NetworkManager/system-connections/x.nmconnection": ("fab1",),
        "/etc/systemd/network/9.network": ("fab0",),
    }


@pytest.mark.parametrize(
    ("tool", "section"),
    [
        ("ethtool", "offload"),
        ("devlink", "devlink"),
        ("rdma", "counters"),
        ("ip", "addresses"),
        ("tc", "iproute"),
        ("iw", "wifi"),
        ("ibv_devinfo", "active_mtu"),
        ("systemctl", "memlock_defaults"),
    ],
)
def test_a_missing_tool_is_named_where_it_is_missed(root: Path, tool: str, section: str) -> None:
    assert f"'{tool}' is not installed" in look(root, **{tool: None}).unknown[section]


def test_lldp_tells_who_is_at_the_other_end(root: Path) -> None:
    """Before any address is right: the MAC of the far port, which lldpd sends by default."""
    port = {"id": {"type": "mac", "value": "02:00:00:00:00:0C"}, "descr": "enp1s0f0np0"}
    other = {"id": {"type": "ifname", "value": "ge-0/0/1"}}
    many = {"lldp": {"interface": [{"fab1": {"port": port}}, {"fab0": {"port": other}}]}}
    assert look(root, lldpcli=json.dumps(many)).far_macs["fab1"] == ("02:00:00:00:00:0c",)
    assert look(root, lldpcli=json.dumps({"lldp": {"interface": {"fab1": {"port": port}}}})).far_macs["fab1"]
    assert "fab1" not in look(root, lldpcli="{}").far_macs


def test_without_iptables_nft_is_asked(root: Path) -> None:
    chain = {"family": "inet", "name": "forward", "hook": "forward", "policy": "drop"}
    answer = json.dumps({"nftables": [{"metainfo": {}}, {"chain": chain}]})
    seen = look(root, iptables=None, nft=answer)
    assert (seen.firewall, "firewall" in seen.unknown) == (("-P FORWARD DROP",), False)
    assert "firewall" in look(root, iptables=None, nft=None).unknown


def test_a_command_that_refuses_is_quoted(root: Path) -> None:
    refused = subprocess.CalledProcessError(4, "iptables", stderr="Permission denied (you must be root)")
    assert "you must be root" in look(root, iptables=refused, nft=None).unknown["firewall"]


def test_what_only_root_sees_is_unknown_to_others(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Sockets, markers and the agent's state lie in closed folders; empty to a user is not the same as empty."""
    closed = {root / "run/roce-ring", root / "var/lib/roce-ring"}
    monkeypatch.setattr(os, "access", lambda path, mode: path not in closed)
    assert {"markers", "processes", "agent"} <= set(look(root).unknown)


def test_a_running_marker_is_told_by_its_lock(root: Path) -> None:
    """A file without a lock is what a dead one left."""
    mark = {"destination": None, "udp_source_port": 65535, "ethertype": 0x88B5}
    for name in ("alive", "dead"):
        write(root / f"run/roce-ring/markers/{name}.state", json.dumps({"device": name, "marks": [mark]}))
    holder = "import fcntl,sys; f=open(sys.argv[1],'r+'); fcntl.lockf(f, fcntl.LOCK_EX); print(flush=True); input()"
    command = [sys.executable, "-c", holder, str(root / "run/roce-ring/markers/alive.state")]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdin and process.stdout
        process.stdout.readline()
        markers = look(root).markers
        process.stdin.close()
    assert {device: [item.ethertype for item in marks] for device, marks in markers.items()} == {"alive": [0x88B5]}


def test_offload_that_cannot_be_turned_on(root: Path) -> None:
    seen = look(root, ethtool="hw-tc-offload: off [fixed]\n").functions[0]
    assert (seen.hw_tc_offload, seen.offload_fixed) == (False, True)


def test_handover_is_off_when_the_command_line_says_so(root: Path) -> None:
    """The kernel's default is on; whoever booted with kho=off has heeded the advice."""
    write(root / "proc/cmdline", "root=/dev/sda kho=off")
    assert look(root).kernel.kho is False


def test_soft_roce_is_a_function_without_a_card(tmp_path: Path) -> None:
    device = tmp_path / "sys/class/infiniband/rocep1s0f0"
    write(device / "parent", "veth0")
    write(device / "ports/1/state", "4: ACTIVE")
    write(tmp_path / "sys/class/net/veth0/operstate", "up")
    (tmp_path / "proc").mkdir()
    (function,) = look(tmp_path).functions
    assert (function.soft, function.netdev, function.plane, function.link_up) == (True, "veth0", None, True)


def test_a_look_is_quick_enough_for_an_agent(root: Path) -> None:
    """It may be asked for every few seconds. Processor time, which a busy machine does not change much."""

    def once() -> float:
        begin = time.process_time()
        gather("s1", 0.0, root, Spark())
        return time.process_time() - begin

    assert min(once() for _ in range(3)) < 0.2


def test_the_look_travels_as_one_program(tmp_path: Path) -> None:
    """Over ssh the far side has python3 and nothing of ours: the modules arrive as one program."""
    body = "rest = sys.argv[sys.argv.index('python3') + 1:]\nsys.exit(subprocess.call([sys.executable, '-I', *rest]))\n"
    (answer,) = ask_all(["admin@box"], 30, bundle.program(), ("--interval", "0"), fake_ssh(tmp_path, body))
    assert evidence_from_json(answer, "box").host == "box"
