"""What a child that tries peer access is believed, as far as no GPU is needed; the child is played by a script."""

from __future__ import annotations

import sys
import time
from importlib.util import find_spec
from pathlib import Path

import msgspec
import pytest

import roce_ring.gpu.verdicts
from roce_ring.fabric.tree import Tree
from roce_ring.gpu.p2p import PRIMITIVES
from roce_ring.gpu.remembered import key_of, recall, remember
from roce_ring.gpu.verdicts import Verdict, verdicts, worked
from tests.fabric.fake_sys import Sys
from tests.fabric.hosts import plx8749

# Answers as gpu/p2p.py does; `bad` says what happens at a try.
CHILD = """
import json, sys, time
bad = json.loads(sys.argv[1])
print("[]", flush=True)
tried = [(to, one) for to, _, names in (a.partition("=") for a in sys.argv[3:]) for one in names.split(",")]
for to, one in sorted(tried, key=lambda pair: pair[1] == "concurrent"):
    what = bad.get(f"{to} {one}", "")
    if what == "hangs":
        time.sleep(60)
    if what == "dies":
        sys.exit("out of luck")
    print(json.dumps([to, one, what]), flush=True)
"""


def ask(**bad: str) -> dict[str, Verdict]:
    """Of GPU a to b and c; `bad`: what happens at b_stores, say."""
    told = {name.replace("_", " "): what for name, what in bad.items()}
    command = [sys.executable, "-c", CHILD, msgspec.json.encode(told).decode()]
    return {one["to"]: one for one in verdicts("a", ["b", "c"], command)}


def test_each_pair_and_primitive_has_an_answer() -> None:
    found = ask(c_loads="3 values were wrong or did not come")
    assert set(found["b"]) == {"from", "to", *PRIMITIVES} and worked(found["b"])
    assert {name: why for name, why in found["c"].items() if why and name in PRIMITIVES} == {
        "loads": "3 values were wrong or did not come"
    }


def test_a_hang_costs_one_try_and_not_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    """On some hosts loads spin for ever and stores work: those must still be found to."""
    monkeypatch.setattr(roce_ring.gpu.verdicts, "STEP_S", 0.3)
    began = time.monotonic()
    found = ask(b_loads="hangs")
    assert time.monotonic() - began < 10
    assert {one: why for one, why in found["b"].items() if why and one in PRIMITIVES} == {"loads": "hung for 0.3 s"}
    assert worked(found["c"])


def test_a_crash_is_told_with_its_last_words() -> None:
    found = ask(b_graph="dies")
    assert found["b"]["graph"] == "the test ended with status 1: out of luck"
    assert (found["b"]["flags"], found["b"]["concurrent"], worked(found["c"])) == ("", "", True)


def test_all_pairs_at_once_fail_together() -> None:
    found = ask(b_concurrent="dies")
    assert {one["concurrent"] for one in found.values()} == {"the test ended with status 1: out of luck"}
    assert found["c"]["graph"] == ""


@pytest.mark.skipif(find_spec("cupy") is not None, reason="CuPy is here; tests/gpu says what it does")
def test_a_test_that_cannot_begin_is_a_verdict() -> None:
    """A child that dies must never read as "works"."""
    (found,) = verdicts("0000:01:00.0", ["0000:02:00.0"])
    assert all("the test ended with status 1: " in found[one] and "CuPy" in found[one] for one in PRIMITIVES)


@pytest.fixture
def host(tmp_path: Path) -> Path:
    """A root directory with a /sys and a /proc."""
    Sys(tmp_path / "sys").show(plx8749())
    for name, text in {
        "proc/cmdline": "quiet iommu=pt", "proc/sys/kernel/random/boot_id": "1", "sys/module/nvidia/version": "580",
    }.items():  # fmt: skip
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text + "\n")
    return tmp_path


BUSES = [one.bdf for one in Tree(plx8749()).gpus]


@pytest.mark.parametrize("name", ["proc/cmdline", "proc/sys/kernel/random/boot_id", "sys/module/nvidia/version"])
def test_what_changes_makes_a_verdict_old(host: Path, name: str) -> None:
    before = key_of(BUSES, host)
    assert before and before == key_of(BUSES, host) and before != key_of(BUSES[:2], host)
    (host / name).write_text("another\n")
    assert key_of(BUSES, host) not in ("", before)
    (host / name).unlink()
    assert key_of(BUSES, host) == ""


def test_access_control_is_part_of_it_and_unknown_means_never(host: Path) -> None:
    before = key_of(BUSES, host)
    port = next(one for one in plx8749().functions if one.acs_control == 0x1D)
    config = host / "sys/bus/pci/devices" / port.bdf / "config"
    raw = config.read_bytes()
    config.write_bytes(raw.replace(b"\x1d\x00", b"\x11\x00"))
    assert key_of(BUSES, host) not in ("", before)
    config.write_bytes(raw[:64])
    assert key_of(BUSES, host) == ""


def test_only_what_worked_is_kept(tmp_path: Path) -> None:
    """A machine that was mended must not be told of its past."""
    good, bad = [*ask().values()], [*ask(b_flags="3 values were wrong or did not come").values()]
    place = tmp_path / "run"
    remember(place, "k", bad)
    assert recall(place, "k") == []
    remember(place, "k", good)
    assert recall(place, "k") == good
    remember(place, "", good)
    assert recall(place, "") == []
    (place / "p2p-k.json").write_text('[{"from": "a", "to": "b"}]')
    assert recall(place, "k") == []
    (place / "p2p-k.json").write_text("{")
    assert recall(place, "k") == []
