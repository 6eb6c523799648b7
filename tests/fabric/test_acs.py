"""Access control: exactly the bits that redirect, at exactly the ports on the path, and back to the word of before."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import partial
from pathlib import Path

import msgspec
import pytest

import roce_ring.cli.acs
import roce_ring.fabric.acs
from roce_ring.fabric import config_space
from roce_ring.fabric.acs import Acs, AcsError
from roce_ring.fabric.snapshot import read
from roce_ring.fabric.tree import Tree
from tests.fabric.fake_sys import Sys
from tests.fabric.hosts import laptop, plx8749

Run = Callable[..., tuple[int, str, str]]
PORTS = [f"0000:02:0{slot}.0" for slot in range(4)]


class Host:
    """Four V100 behind one switch whose ports redirect, as files."""

    def __init__(self, where: Path) -> None:
        self.sys, self.state = where / "sys", where / "run/acs.json"
        Sys(self.sys).show(plx8749())
        for bdf in PORTS:
            power = self.sys / "bus/pci/devices" / bdf / "power"
            power.mkdir()
            (power / "control").write_text("auto\n")
        self.acs = Acs(self.sys, self.state)
        self.tree = Tree(read(self.sys, "plx8749"))

    def words(self) -> list[int]:
        return [self.word(bdf) for bdf in PORTS]

    def word(self, bdf: str) -> int:
        config = (self.sys / "bus/pci/devices" / bdf / "config").read_bytes()
        return config_space.word(config, (config_space.acs_offset(config) or 0) + 6)

    def set_word(self, bdf: str, word: int) -> None:
        path = self.sys / "bus/pci/devices" / bdf / "config"
        raw = bytearray(path.read_bytes())
        raw[0x14E:0x150] = word.to_bytes(2, "little")
        path.write_bytes(raw)

    def power(self, bdf: str) -> str:
        return (self.sys / "bus/pci/devices" / bdf / "power/control").read_text().strip()

    def clear(self, *numbers: int) -> dict[str, tuple[int, int]]:
        gpus = [self.tree.gpus[number] for number in numbers] or self.tree.gpus
        changes = self.acs.plan(self.acs.ports(self.tree, gpus), gpus)
        self.acs.clear(changes)
        return changes

    def iommu(self, kind: str) -> None:
        for number, one in enumerate(self.tree.gpus):
            group = self.sys / f"kernel/iommu_groups/{number}"
            group.mkdir(parents=True)
            (group / "type").write_text(f"{kind}\n")
            (self.sys / "bus/pci/devices" / one.bdf / "iommu_group").symlink_to(group)


@pytest.fixture
def host(tmp_path: Path) -> Host:
    return Host(tmp_path)


def test_clear_restore_and_clear_again(host: Host) -> None:
    before = {path: path.read_bytes() for path in host.sys.rglob("config")}
    assert host.clear() == dict.fromkeys(PORTS, (0x001D, 0x0011))
    assert host.words() == [0x0011] * 4
    assert host.clear() == {}, "a second clear changes nothing"
    assert host.acs.restore() == dict.fromkeys(PORTS, 0x001D)
    assert {path: path.read_bytes() for path in host.sys.rglob("config")} == before, "not a byte elsewhere"


def test_only_the_ports_on_the_path(host: Host) -> None:
    host.clear(1, 2)
    assert host.words() == [0x001D, 0x0011, 0x0011, 0x001D]


def test_every_redirecting_bit_and_no_other(host: Host) -> None:
    host.set_word(PORTS[0], 0x007F)
    assert host.clear(0)[PORTS[0]] == (0x007F, 0x0053)


def test_a_port_that_lost_it_is_cleared_again_and_restore_still_knows_the_first_word(host: Host) -> None:
    """After an error or a sleep the kernel writes its default back; that is not what the owner had before."""
    host.set_word(PORTS[0], 0x003F)
    host.clear()
    host.set_word(PORTS[0], 0x001D)
    host.clear()
    host.acs.restore()
    assert host.word(PORTS[0]) == 0x003F


def test_a_cleared_port_may_not_sleep(host: Host) -> None:
    host.clear(0)
    assert [host.power(bdf) for bdf in PORTS[:2]] == ["on", "auto"]
    host.acs.restore()
    assert host.power(PORTS[0]) == "auto"


def test_a_translating_iommu_refuses(host: Host) -> None:
    """Without redirection peers' packets pass the IOMMU by, with addresses only it can read."""
    host.iommu("DMA-FQ")
    with pytest.raises(AcsError, match=r"the IOMMU translates for 0000:03:00\.0 \(domain type DMA-FQ\)"):
        host.clear()
    assert host.words() == [0x001D] * 4
    assert not host.state.exists()


def test_an_iommu_that_passes_through_does_not(host: Host) -> None:
    host.iommu("identity")
    assert len(host.clear()) == 4


def test_what_cannot_be_read_is_left_alone(host: Host) -> None:
    """Without root the kernel gives 64 bytes."""
    path = host.sys / "bus/pci/devices" / PORTS[2] / "config"
    path.write_bytes(path.read_bytes()[:64])
    with pytest.raises(AcsError, match=r"access control of 0000:02:02\.0 cannot be read"):
        host.clear()
    assert host.words()[0] == 0x001D


def test_a_boot_forgets(host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    """The firmware's words are back then; an old word would be somebody else's."""
    host.clear()
    state = json.loads(host.state.read_text())
    host.state.write_text(json.dumps(state | {"boot_id": "another"}))
    assert host.acs.saved() == {}


def test_a_state_that_cannot_be_read_stops_everything(host: Host) -> None:
    host.clear(0)
    host.state.write_text("{")
    with pytest.raises(AcsError, match="says which words to put back and cannot be read"):
        host.clear(1)
    assert host.words()[1] == 0x001D


def test_the_word_of_before_is_kept_before_the_port_is_touched(host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    """Killed between the two, restore() must still know it."""

    def killed(self: Acs, bdf: str, word: int) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(Acs, "_write", killed)
    with pytest.raises(KeyboardInterrupt):
        host.clear(0)
    monkeypatch.undo()
    assert host.acs.saved() == {PORTS[0]: 0x001D}


def test_a_port_that_ignores_the_write_is_told(host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    path = host.sys / "bus/pci/devices" / PORTS[0] / "config"
    other = path.with_name("elsewhere")
    other.write_bytes(path.read_bytes())
    reads = {"at": path.read_bytes()}
    monkeypatch.setattr(Acs, "_config", lambda self, bdf: reads["at"])
    with pytest.raises(AcsError, match=r"was told 0x0011 and shows 0x001d"):
        host.acs.clear({PORTS[0]: (0x001D, 0x0011)})


@pytest.fixture
def run(host: Host, monkeypatch: pytest.MonkeyPatch, typed: Run) -> Run:
    monkeypatch.setattr(roce_ring.cli.acs, "SYS", host.sys)
    monkeypatch.setattr(roce_ring.cli.acs, "STATE", host.state)

    return partial(typed, "acs")


def test_the_command_is_dry_unless_told(run: Run, host: Host) -> None:
    code, out, _ = run("clear")
    assert (code, out.count("0x001d -> 0x0011"), "dry run" in out) == (0, 4, True)
    assert host.words() == [0x001D] * 4
    assert run("status")[0] == 1
    assert run("clear", "--apply", "--gpus", "0,1")[0] == 0
    assert host.words() == [0x0011, 0x0011, 0x001D, 0x001D]
    assert run("status", "--gpus", "0,1")[0] == 0
    code, out, _ = run("restore", "--apply", "--json")
    assert (code, json.loads(out)["schema"], host.words()) == (0, "roce-ring/acs-restore/v1", [0x001D] * 4)


def test_status_of_what_cannot_be_read_is_not_fine(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    Sys(tmp_path / "other").show(laptop())
    monkeypatch.setattr(roce_ring.cli.acs, "SYS", tmp_path / "other")
    code, out, _ = run("status")
    assert (code, "unknown" in out) == (2, True)
    code, out, _ = run("status", "--json")
    assert (code, json.loads(out)["ports"][0]["redirects"]) == (2, None)


def test_the_state_is_strict_json(host: Host) -> None:
    host.clear(0)
    assert msgspec.json.decode(host.state.read_bytes(), type=roce_ring.fabric.acs.State).ports[PORTS[0]].word == 0x001D
