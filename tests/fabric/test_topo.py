"""The PCI tree: who is near whom, which class a group of GPUs is of, and what an operator is shown."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from functools import partial
from itertools import permutations
from pathlib import Path
from xml.etree import ElementTree

import msgspec
import pytest

from roce_ring.cli.topo import verdict_table
from roce_ring.errors import ConfigError
from roce_ring.fabric import config_space, quadrants
from roce_ring.fabric.draw import svg, text
from roce_ring.fabric.group import group_of, group_of_buses
from roce_ring.fabric.phases import conflicts, dealt
from roce_ring.fabric.snapshot import Function, load, parse, read
from roce_ring.fabric.tree import Tree, redirects
from roce_ring.gpu.p2p import PRIMITIVES
from tests.fabric.fake_sys import Sys, config_of
from tests.fabric.hosts import HOSTS, frank2, laptop, plx8749, spark, two_sockets


def group(tree: Tree, *numbers: int) -> list[Function]:
    return [tree.gpus[number] for number in numbers]


def test_gpus_of_one_quadrant_are_one_class_and_across_quadrants_another() -> None:
    """What made one host 40 % slower with the same software: which four of its GPUs a model was given."""
    tree = Tree(frank2())
    assert len(tree.gpus) == 17
    assert tree.fabric(group(tree, 0, 1, 2, 3)) == "pcie-switch"
    assert tree.fabric(group(tree, 12, 13, 14, 15, 16)) == "pcie-switch"
    assert tree.fabric(group(tree, 0, 4, 8, 12)) == "pcie-hostbridge"
    assert tree.fabric(group(tree, 0, 1, 2, 4)) == "pcie-hostbridge"  # the worst pair decides


def test_a_session_finds_the_class_of_its_gpus(tmp_path: Path) -> None:
    """Addresses as the CUDA driver writes them."""
    Sys(tmp_path).show(two_sockets())
    buses = [one.bdf for one in Tree(two_sockets()).gpus]
    assert group_of_buses([f"0000{buses[0].upper()}", buses[1]], tmp_path).fabric == "pcie-switch"
    assert group_of_buses(buses[:3], tmp_path).fabric == "pcie-hostbridge"
    assert group_of_buses(["0000:99:00.0"] * 4, tmp_path).fabric == "pcie-switch"  # four ranks of one GPU
    assert group_of_buses([buses[0], "0000:99:00.0"], tmp_path).fabric == "pcie-hostbridge"


def test_a_session_goes_by_the_operators_word(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What `topo --quadrants` shows must be what runs."""
    host = msgspec.structs.replace(frank2(), quadrants={})
    Sys(tmp_path / "sys").show(host)
    buses = [one.bdf for one in Tree(host).gpus[:4]]
    assert group_of_buses(buses, tmp_path / "sys").fabric == "pcie-hostbridge"
    word = tmp_path / "quadrants.yaml"
    monkeypatch.setattr(quadrants, "HERE", word)
    word.write_text("'0000:00': q0\n'0000:20': q0\n")
    assert group_of_buses(buses, tmp_path / "sys").fabric == "pcie-switch"
    word.write_text("'0000:17': q0\n")
    with pytest.raises(ConfigError, match="host bridge 0000:17, which is not there"):
        group_of_buses(buses, tmp_path / "sys")


def test_phases_are_made_on_the_switches_first() -> None:
    """GPUs 0,1 | 4,5 | 8,9 | 12,13: in rank order one switch would write to two others in the same phase."""
    tree = Tree(frank2())
    eight = group(tree, 0, 1, 4, 5, 8, 9, 12, 13)
    found = group_of(tree, eight)
    assert (found.order, found.conflicts) == ((0, 2, 4, 6, 1, 3, 5, 7), 0)
    uplinks, roots = [tree.uplink(one) for one in eight], [one.root for one in eight]
    assert conflicts(range(8), uplinks, roots) == 8
    for shift in range(1, 8):  # and every phase still has one stream into each GPU
        assert sorted(found.order[(at + shift) % 8] for at in range(8)) == list(range(8))
    assert group_of(tree, group(tree, 0, 4, 8, 12)).order == (0, 1, 2, 3), "nothing to gain, nothing changed"
    assert group_of(tree, group(tree, 0, 1, 2, 3)).order == (0, 1, 2, 3), "nothing is phased there"


@pytest.mark.parametrize("sizes", [(2, 2), (2, 2, 2), (1, 1, 1), (3, 1), (2, 2, 1), (2, 1, 1)])
def test_no_order_has_fewer_conflicts(sizes: tuple[int, ...]) -> None:
    """Of GPUs below each switch: also where the switches have not as many."""
    uplinks = [number for number, size in enumerate(sizes) for _ in range(size)]
    roots = [str(one) for one in uplinks]
    best = min(conflicts((0, *rest), uplinks, roots) for rest in permutations(range(1, len(uplinks))))
    assert conflicts(dealt(uplinks), uplinks, roots) == best


def test_what_nobody_says_is_taken_for_apart() -> None:
    """Without an operator's word, NPS4 or an IOMMU, two host bridges of one quadrant cannot be told from two of two.
    Phased modes then cost 4 to 6 %; the other mistake costs a collapse."""
    tree = Tree(msgspec.structs.replace(frank2(), quadrants={}))
    assert tree.fabric(group(tree, 0, 1)) == "pcie-switch"
    assert tree.fabric(group(tree, 0, 2)) == "pcie-hostbridge"


def test_numa_nodes_are_quadrants_only_where_a_socket_has_four() -> None:
    host = two_sockets()
    assert Tree(host).fabric(Tree(host).gpus[:4]) == "pcie-hostbridge"  # two nodes, two sockets
    nps4 = Tree(msgspec.structs.replace(host, numa_nodes=8))
    assert nps4.fabric(nps4.gpus[:4]) == "pcie-switch"
    assert {one.why for one in nps4.quadrants.values()} == {"its NUMA node; a socket has four"}


def test_iommu_instances_are_quadrants() -> None:
    host = msgspec.structs.replace(frank2(), quadrants={})
    units: dict[int, list[str]] = {}
    for one in host.functions:
        units.setdefault(int(one.root[-2:], 16) // 0x40, []).append(one.bdf)
    tree = Tree(msgspec.structs.replace(host, iommus=tuple(tuple(unit) for unit in units.values())))
    assert tree.fabric(group(tree, 0, 1, 2, 3)) == "pcie-switch"
    assert tree.fabric(group(tree, 0, 4)) == "pcie-hostbridge"


def test_one_iommu_for_all_says_nothing() -> None:
    host = msgspec.structs.replace(frank2(), quadrants={})
    tree = Tree(msgspec.structs.replace(host, iommus=(tuple(one.bdf for one in host.functions),)))
    assert tree.fabric(group(tree, 0, 2)) == "pcie-hostbridge"


def test_an_operators_word_must_name_what_is_there() -> None:
    with pytest.raises(ConfigError, match="quadrants name host bridge 0000:13, which is not there"):
        Tree(frank2(), {"13": "x"})


def test_pairs_have_the_drivers_names() -> None:
    tree = Tree(frank2())
    assert tree.pair(*group(tree, 0, 1)) == "PIX"
    assert tree.pair(*group(tree, 0, 2)) == "NODE"
    two = Tree(two_sockets())
    assert [two.pair(*group(two, 0, other)) for other in (1, 2, 4)] == ["PIX", "NODE", "SYS"]


def test_cascaded_switches_and_bare_root_ports() -> None:
    def gpu(bdf: str, *chain: str) -> Function:
        return Function(bdf, "0000:00", chain, 0x0302, "10de", "2bb1")

    tree = Tree(laptop())
    a = gpu("0000:05:00.0", "rp", "up", "down1", "up1", "down11")
    assert tree.pair(a, gpu("0000:06:00.0", "rp", "up", "down1", "up1", "down12")) == "PIX"
    assert tree.pair(a, gpu("0000:07:00.0", "rp", "up", "down2", "up2", "down21")) == "PXB"
    assert tree.pair(a, gpu("0000:08:00.0", "other")) == "PHB"


def test_the_driver_for_the_screen_is_no_gpu_beside_real_ones() -> None:
    host = plx8749()
    board = Function("0000:0a:00.0", "0000:00", (), 0x0300, "1a03", "2000")  # a server's management chip
    tree = Tree(msgspec.structs.replace(host, functions=(*host.functions, board)))
    assert len(tree.gpus) == 4
    assert Tree(msgspec.structs.replace(host, functions=(board,))).gpus == []


def test_a_redirecting_port_and_a_narrow_link_are_pointed_at() -> None:
    tree = Tree(plx8749())
    drawn = [line for line in text(tree).splitlines() if line.endswith("<-- look")]
    assert len(drawn) == 4
    assert all("ACS redirects (0x001d)" in line for line in drawn)
    narrow = [line for line in text(Tree(frank2())).splitlines() if line.endswith("<-- look")]
    assert ["GPU 16" in line and "x4 of x16" in line for line in narrow] == [True]


def test_what_cannot_be_read_is_unknown_and_never_fine() -> None:
    tree = Tree(laptop())
    assert [redirects(one) for one in tree.path_ports(tree.gpus)] == [None]
    assert "ACS unknown" in text(tree)


@pytest.mark.parametrize("name", HOSTS)
def test_every_host_is_drawn(name: str) -> None:
    tree = Tree(HOSTS[name]())
    drawn = text(tree)
    for number, one in enumerate(tree.gpus):
        assert f"{one.bdf} GPU {number}" in drawn
    picture = ElementTree.fromstring(svg(tree))
    words = [element.text for element in picture.iter("{http://www.w3.org/2000/svg}text")]
    assert len(words) == len(drawn.splitlines())


def test_seventeen_gpus_are_drawn_in_time() -> None:
    """50 ms is the promise; this machine may be busy."""
    raw = msgspec.json.encode(frank2())
    best = 1.0
    for _ in range(5):
        began = time.perf_counter()
        tree = Tree(parse(msgspec.json.decode(raw), "frank2"))
        text(tree), tree.fabric(tree.gpus)
        best = min(best, time.perf_counter() - began)
    assert best < 0.05


@pytest.mark.parametrize("name", ["frank2", "plx8749", "two_sockets", "spark"])
def test_what_sysfs_shows_is_what_the_snapshot_says(tmp_path: Path, name: str) -> None:
    host = HOSTS[name]()
    Sys(tmp_path).show(host)
    seen = read(tmp_path, host.host)
    assert msgspec.structs.replace(seen, quadrants=host.quadrants) == host


def test_without_rights_the_port_and_its_acs_are_unknown(tmp_path: Path) -> None:
    Sys(tmp_path).show(laptop())
    seen = read(tmp_path, "laptop")
    assert {(one.port, one.acs_control) for one in seen.functions if one.kind == 0x0604} == {(None, None)}


def test_virtual_functions_are_left_out(tmp_path: Path) -> None:
    """A NIC may have hundreds; they are no part of the fabric."""
    Sys(tmp_path).show(spark())
    nic = next(one for one in spark().functions if one.kind == 0x0200)
    (tmp_path / "bus/pci/devices" / nic.bdf / "physfn").mkdir()
    assert nic.bdf not in {one.bdf for one in read(tmp_path, "spark1").functions}


@pytest.mark.parametrize("length", [0, 1, 63, 64, 255, 256, 259, 0x14C, 4096])
def test_a_cut_configuration_space_is_never_read_as_good(length: int) -> None:
    cut = config_of(6, 0x1D)[:length]
    offset = config_space.acs_offset(cut)
    assert offset is None or length >= 0x150
    assert config_space.port_type(cut) in (None, 6)


def test_capability_lists_that_run_in_circles_end() -> None:
    raw = bytearray(config_of(6, 0x1D))
    raw[0x61], raw[0x60] = 0x40, 0x05
    raw[0x100:0x104] = (0x0001 | 0x100 << 20).to_bytes(4, "little")
    assert config_space.port_type(bytes(raw)) is None
    assert config_space.acs_offset(bytes(raw)) is None


def test_a_function_that_has_left_the_bus_has_no_capabilities() -> None:
    """All ones is what the bus answers for nobody."""
    assert config_space.acs_offset(b"\xff" * 4096) == 0
    assert config_space.port_type(b"\xff" * 4096) is None


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"schema": "x"}, "expected schema 'roce-ring/pci-snapshot/v1'"),
        ({"functions": [{"bdf": "0000:01:00.0"}]}, "field 'root' is absent"),
        ({"functions": 3}, "holds the number 3, expected a list"),
        ({"host": None}, "expected text"),
    ],
)
def test_a_wrong_snapshot_gets_a_sentence(change: dict[str, object], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        parse(msgspec.to_builtins(laptop()) | change, "a.json")


def test_a_snapshot_that_contradicts_itself_is_refused() -> None:
    host = laptop()
    gpu = next(one for one in host.functions if one.kind == 0x0302)
    orphan = msgspec.structs.replace(gpu, bdf="0000:09:00.0", chain=("0000:08:00.0",))
    with pytest.raises(ConfigError, match=r"0000:09:00\.0: its chain names a bridge that the snapshot lacks"):
        parse(msgspec.to_builtins(msgspec.structs.replace(host, functions=(orphan,))), "a.json")
    with pytest.raises(ConfigError, match="is there twice"):
        parse(msgspec.to_builtins(msgspec.structs.replace(host, functions=host.functions * 2)), "a.json")


Run = Callable[..., tuple[int, str, str]]


@pytest.fixture
def run(typed: Run) -> Run:
    return partial(typed, "topo")


def test_topo_shows_this_machine(run: Run, tmp_path: Path) -> None:
    """Whatever it has, and its snapshot says the same elsewhere."""
    code, here, _ = run()
    assert code == 0
    assert run("--capture", str(tmp_path / "me.json"))[0] == 0
    load(tmp_path / "me.json")
    assert run("--from", str(tmp_path / "me.json"))[1] == here


@pytest.mark.parametrize("more", [["--json"], ["--gpus", "0"], ["--svg", "a.svg"], ["--p2p"]])
def test_a_capture_takes_no_option_that_it_would_ignore(run: Run, tmp_path: Path, more: list[str]) -> None:
    code, _, err = run("--capture", str(tmp_path / "me.json"), *more)
    assert (code, (tmp_path / "me.json").exists()) == (2, False)
    assert "--capture writes a snapshot and stops" in err


def test_p2p_is_tried_on_this_host_only_and_a_failure_is_told(run: Run, tmp_path: Path) -> None:
    """Of somebody's snapshot there is nothing to try; without CUDA here, nothing works and that is the answer."""
    file = tmp_path / "two.json"
    file.write_bytes(msgspec.json.encode(two_sockets()))
    code, _, err = run("--from", str(file), "--p2p")
    assert (code, "--p2p tries the GPUs of this host" in err) == (2, True)
    tree = Tree(two_sockets())
    broken = {"from": tree.gpus[0].bdf, "to": tree.gpus[1].bdf} | dict.fromkeys(PRIMITIVES, "") | {"loads": "hung"}
    table = verdict_table(tree, [broken]).splitlines()
    assert table[1].split() == ["0", "1", "yes", "yes", "yes", "no", "yes", "yes", "yes"]
    assert table[2] == "GPU 0 to 1, loads: hung"


def test_topo_of_a_snapshot(run: Run, tmp_path: Path) -> None:
    file = tmp_path / "frank2.json"
    file.write_bytes(msgspec.json.encode(frank2()))
    _, out, _ = run("--from", str(file), "--gpus", "0,4,8,12", "--svg", str(tmp_path / "a.svg"))
    assert out.splitlines()[-1] == "4 GPUs: fabric class pcie-hostbridge"
    assert "phases go round GPUs 0, 4, 8, 12: each uplink one host bridge a phase" in out
    assert (tmp_path / "a.svg").read_text().startswith("<svg")
    _, out, _ = run("--from", str(file), "--gpus", "0,1,2,3", "--json")
    told = json.loads(out)
    assert (told["schema"], told["fabric"], told["gpus"][0]["pairs"]["1"]) == (
        "roce-ring/topo/v1", "pcie-switch", "PIX",
    )  # fmt: skip


@pytest.mark.parametrize("name", HOSTS)
def test_topo_of_every_snapshot(run: Run, tmp_path: Path, name: str) -> None:
    """Switches, bare root ports, several domains, nothing to reduce over: what people send."""
    file = tmp_path / "a.json"
    file.write_bytes(msgspec.json.encode(HOSTS[name]()))
    code, out, _ = run("--from", str(file), "--svg", str(tmp_path / "a.svg"))
    told = json.loads(run("--from", str(file), "--json")[1])
    assert (code, told["host"], len(told["gpus"])) == (0, HOSTS[name]().host, len(Tree(HOSTS[name]()).gpus))
    assert f"fabric class {told['fabric']}" in out


@pytest.mark.parametrize("gpus", ["17", "0,0", "a", "-1", "0;1", ","])
def test_gpus_that_are_not_there_are_refused(run: Run, tmp_path: Path, gpus: str) -> None:
    file = tmp_path / "frank2.json"
    file.write_bytes(msgspec.json.encode(frank2()))
    code, _, err = run("--from", str(file), f"--gpus={gpus}")
    assert code == 2
    assert "of GPUs 0 to 16" in err


@pytest.mark.parametrize("raw", [b"", b"[1]", b"a: [\n", b"? [a]\n: b", b"\xff"])
def test_quadrants_that_are_no_mapping_are_refused(run: Run, tmp_path: Path, raw: bytes) -> None:
    (tmp_path / "q.yaml").write_bytes(raw)
    code, _, err = run("--quadrants", str(tmp_path / "q.yaml"))
    assert code == 2
    assert "quadrants" in err
    assert "Traceback" not in err
