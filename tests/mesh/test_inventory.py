"""The inventory finds functions by what they are in sysfs, never by name, and reports what it cannot read."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from mesh import inventory
from mesh.finding import Refused
from mesh.loading import load_facts, node_from_json
from mesh.planner import make_plan
from mesh.ssh import CannotLook, take_all

# (RDMA device, netdev, PCI address, physical port, IPv4): names on purpose unlike a Spark's
FUNCTIONS = [
    ("mlx5_3", "fab3", "0000:01:00.0", "p0", "10.10.0.10/24"),
    ("mlx5_1", "fab1", "0000:01:00.1", "p1", "10.10.3.11/24"),
    ("mlx5_0", "fab0", "0002:01:00.0", "p0", "10.20.0.10/24"),
    ("mlx5_2", "fab2", "0002:01:00.1", "p1", None),
]


def write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text + "\n")


def mapped(ipv4: str) -> str:
    a, b, c, d = map(int, ipv4.split("/")[0].split("."))
    return f"0000:0000:0000:0000:0000:ffff:{a:02x}{b:02x}:{c:02x}{d:02x}"


def make_function(sysfs: Path, rdma: str, netdev: str, pci: str, port: str, ipv4: str | None, index: int = 3) -> None:
    """One mlx5 function the way sysfs shows it."""
    device = sysfs / "devices" / "pci" / pci
    net = device / "net" / netdev
    write(net / "phys_port_name", port)
    write(net / "address", f"02:00:00:00:{pci[3]}0:{pci[-1]}0")
    write(net / "mtu", "9000")
    write(net / "operstate", "up")
    entry = sysfs / "class" / "infiniband" / rdma
    write(entry / "ports" / "1" / "link_layer", "Ethernet")
    write(entry / "ports" / "1" / "state", "4: ACTIVE")
    rows = {
        0: ("fe80:0000:0000:0000:0000:00ff:fe00:0001", "IB/RoCE v1"),
        1: ("fe80:0000:0000:0000:0000:00ff:fe00:0001", "RoCE v2"),
    }
    if ipv4:
        rows |= {2: (mapped(ipv4), "IB/RoCE v1"), index: (mapped(ipv4), "RoCE v2")}
    for row in range(8):
        gid, kind = rows.get(row, (inventory.ZERO_GID, ""))
        write(entry / "ports" / "1" / "gids" / str(row), gid)
        if kind:
            write(entry / "ports" / "1" / "gid_attrs" / "types" / str(row), kind)
            write(entry / "ports" / "1" / "gid_attrs" / "ndevs" / str(row), netdev)
    (entry / "device").symlink_to(device)


@pytest.fixture
def sysfs(tmp_path: Path) -> Path:
    for function in FUNCTIONS:
        make_function(tmp_path, *function)
    return tmp_path


class Machine:
    """Answers of ip, ethtool and devlink; ``missing`` commands are not installed."""

    def __init__(self, **changes: Any) -> None:
        self.size, self.reloads, self.missing = (
            changes.get("size", 8192),
            changes.get("reloads", 1),
            changes.get("missing", ()),
        )

    def __call__(self, argv: list[str]) -> str:
        if argv[0] in self.missing:
            raise FileNotFoundError(2, "No such file or directory", argv[0])
        if argv[0] == "ip":
            rows = [
                {
                    "ifname": net,
                    "addr_info": [{"family": "inet", "local": ip.split("/")[0], "prefixlen": int(ip.split("/")[1])}],
                }
                for _, net, _, _, ip in FUNCTIONS
                if ip
            ]
            return json.dumps([*rows, {"ifname": "fab2", "addr_info": []}, {}])
        if argv[0] == "ethtool":
            return "Features for fab:\nrx-checksumming: on\nhw-tc-offload: on\n"
        if argv[0] == "ibv_devinfo":
            port = "\tport:\t1\n\t\tmax_mtu:\t4096 (5)\n\t\tactive_mtu:\t4096 (5)\n"
            return "".join(f"hca_id:\t{rdma}\n{port}" for rdma, *_ in FUNCTIONS)
        if argv[3] == "show" or argv[2] == "-s":
            return json.dumps({"dev": {argv[-1]: {"stats": {"reload": {"driver_reinit": self.reloads}}}}})
        value = {"flow_steering_mode": "hmfs", "hairpin_num_queues": 4, "hairpin_queue_size": self.size}[argv[-1]]
        return json.dumps(
            {"param": {argv[5]: [{"name": argv[-1], "values": [{"cmode": "driverinit", "value": value}]}]}}
        )


def test_functions_are_found_by_port_name_and_pci_domain(sysfs: Path) -> None:
    """Kernel names differ between machines; the cage is phys_port_name and the plane the PCI domain."""
    facts = inventory.take(sysfs, Machine(), host="a")
    places = [(port["rdma"], port["plane"], port["port"]) for port in facts["ports"]]
    assert places == [("mlx5_3", 0, 0), ("mlx5_1", 0, 1), ("mlx5_0", 1, 0), ("mlx5_2", 1, 1)]
    assert facts["problems"] == []


def test_the_inventory_is_accepted_as_facts(sysfs: Path) -> None:
    """What one part writes the other reads, every field of it."""
    facts = inventory.take(sysfs, Machine(), host="a")
    node = node_from_json(json.loads(json.dumps(facts)), "a")
    first, _, _, last = node.ports
    assert (first.ipv4, first.gid_index, first.mtu, first.roce_active_mtu) == ("10.10.0.10/24", 3, 9000, 4096)
    assert (first.hw_tc_offload, first.flow_steering_mode, first.hairpin_queue_size) == (True, "hmfs", 8192)
    assert (last.ipv4, last.hw_tc_offload) == (None, None)  # not cabled: not asked


def test_gid_is_resolved_per_device(tmp_path: Path) -> None:
    """After a link flap one device has its GID at 5 while the others keep 3."""
    for number, function in enumerate(FUNCTIONS):
        make_function(tmp_path, *function, index=5 if number == 1 else 3)
    ports = inventory.take(tmp_path, Machine())["ports"]
    assert [port["gid_index"] for port in ports] == [3, 5, 3, None]


def test_a_configured_size_that_was_never_loaded_is_not_believed(sysfs: Path) -> None:
    """`devlink dev param show` prints 8192 right after `set`, but the queues have it only after a driver_reinit."""
    port = inventory.take(sysfs, Machine(reloads=0))["ports"][0]
    assert (port["hairpin_queue_size"], port["hairpin_configured"]) == (1024, 8192)


def test_missing_tools_are_reported_once_each(sysfs: Path) -> None:
    """The operator learns what to install; the rest of the facts is still there. ibv_devinfo is optional."""
    facts = inventory.take(sysfs, Machine(missing=("ethtool", "ibv_devinfo")))
    assert len([text for text in facts["problems"] if "'ethtool' is not installed" in text]) == 3
    assert facts["ports"][0]["flow_steering_mode"] == "hmfs"
    assert facts["ports"][0]["roce_active_mtu"] is None


def test_virtual_functions_and_infiniband_are_left_out(sysfs: Path) -> None:
    """Only physical Ethernet ports can be cabled; a left-out device is named."""
    make_function(sysfs, "mlx5_9", "vf0", "0000:01:00.5", "pf0vf0", None)
    write(sysfs / "class" / "infiniband" / "mlx5_8" / "ports" / "1" / "link_layer", "InfiniBand")
    facts = inventory.take(sysfs, Machine())
    assert len(facts["ports"]) == 4
    assert [text for text in facts["problems"] if text.startswith("mlx5_9: left out")]


def test_a_machine_without_rdma_says_so(tmp_path: Path) -> None:
    """Run on the wrong machine, it must not print an empty inventory without a word."""
    facts = inventory.take(tmp_path, Machine())
    assert facts["ports"] == []
    assert "no RoCE function" in facts["problems"][0]


def test_the_program_prints_json_and_exits_1_when_something_is_missing(capsys: pytest.CaptureFixture[str]) -> None:
    """On this machine, whatever it is."""
    status = inventory.main(["--host", "here"])
    shown = capsys.readouterr()
    facts = json.loads(shown.out)
    assert facts["host"] == "here"
    assert status == (1 if facts["problems"] else 0)
    assert shown.err.count("warning: ") == len(facts["problems"])


# ssh: the real program is replaced by a script that gets the same arguments and the same input.


def fake_ssh(tmp_path: Path, body: str) -> list[str]:
    script = tmp_path / "ssh.py"
    script.write_text("import json, subprocess, sys, time\ndestination = sys.argv[sys.argv.index('--') + 1]\n" + body)
    return [sys.executable, str(script)]


def test_the_inventory_program_travels_on_standard_input(tmp_path: Path) -> None:
    """The far side needs nothing but python3: run what is sent exactly as ssh would, with an isolated interpreter."""
    body = "rest = sys.argv[sys.argv.index('python3') + 1:]\nsys.exit(subprocess.call([sys.executable, '-I', *rest]))\n"
    (node,) = take_all(["admin@box"], 30, fake_ssh(tmp_path, body))
    assert node.host == "box"
    assert node.problems  # no RDMA here, and it says so


def test_every_host_that_fails_is_listed_with_its_reason(tmp_path: Path) -> None:
    """Four nodes, three broken in three ways: one run tells all."""
    body = """
if destination == "down":
    print("ssh: connect to host down port 22: No route to host", file=sys.stderr); sys.exit(255)
if destination == "bare":
    print("bash: python3: command not found", file=sys.stderr); sys.exit(127)
if destination == "slow":
    time.sleep(30)
print(json.dumps({"host": destination, "ports": []}))
"""
    with pytest.raises(CannotLook) as failed:
        take_all(["fine", "down", "bare", "slow"], 3, fake_ssh(tmp_path, body))
    text = "\n".join(failed.value.failures)
    assert "down: ssh failed (ssh: connect to host down port 22: No route to host)" in text
    assert "bare: there is no python3 on it" in text
    assert "slow: no answer within 3 s" in text
    assert "fine" not in text


def test_a_host_that_is_an_option_is_refused() -> None:
    """`-oProxyCommand=...` as a host name would run a command here."""
    with pytest.raises(CannotLook, match="not a host name"):
        take_all(["-oProxyCommand=touch /tmp/x"], 1)


def test_facts_from_another_version_are_explained(tmp_path: Path) -> None:
    """An unknown field in an answer is a finding with the host's name, not a traceback."""
    with pytest.raises(Refused, match="inventory of a"):
        take_all(["a"], 30, fake_ssh(tmp_path, "print(json.dumps({'host': 'a', 'prots': []}))"))


def test_a_missing_ssh_is_named() -> None:
    """A container without an ssh client."""
    with pytest.raises(CannotLook, match="'no-such-ssh' is not installed here"):
        take_all(["a"], 1, ["no-such-ssh"])


def test_four_inventories_make_a_plan(tmp_path: Path) -> None:
    """From four machines' sysfs to a plan, nothing typed in between."""
    folder = tmp_path / "facts"
    folder.mkdir()
    for number in range(4):
        root = tmp_path / f"sys{number}"
        here = [
            (rdma, net, pci, port, f"10.{10 + 10 * plane}.{(number - int(port[1])) % 4}.{10 + int(port[1])}/24")
            for (rdma, net, pci, port, _), plane in zip(FUNCTIONS, (0, 0, 1, 1), strict=True)
        ]
        for function in here:
            make_function(root, *function)
            address = root / "devices" / "pci" / function[2] / "net" / function[1] / "address"
            write(address, f"02:00:00:0{number}:{function[2][3]}0:{function[2][-1]}0")

        def run(argv: list[str], here: list[Any] = here) -> str:
            if argv[0] != "ip":
                return Machine()(argv)
            rows = [(net, ip.split("/")) for _, net, _, _, ip in here]
            return json.dumps(
                [
                    {"ifname": net, "addr_info": [{"family": "inet", "local": ip, "prefixlen": int(size)}]}
                    for net, (ip, size) in rows
                ]
            )

        (folder / f"n{number}.json").write_text(json.dumps(inventory.take(root, run, host=f"n{number}")))
    plan, found = make_plan(load_facts(folder))
    assert plan.ring == (0, 1, 2, 3)
    assert found == ()


@pytest.mark.parametrize("name", ["", "a b", "../x", "n" * 254])
def test_a_name_that_the_planner_refuses_is_refused_on_the_node(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        inventory.main(["--host", name])
    shown = capsys.readouterr()
    assert (ended.value.code, shown.out) == (2, "")
    assert "expected up to 253 letters" in shown.err
