"""What turns an engine's plug-in on, and what happens if ranks disagree about it: without an engine."""

from __future__ import annotations

import logging
import subprocess
import sys

import pytest

from roce_ring.engines import opening
from roce_ring.engines.opening import device_name, gid_index, group_name, planned_world
from roce_ring.engines.switches import Switches
from roce_ring.engines.vote import Ballot, Outcome, count
from roce_ring.errors import ConfigError
from roce_ring.settings import Settings


@pytest.mark.parametrize("engine", ["sglang", "vllm"])
@pytest.mark.parametrize(
    "environ",
    [
        {},
        {"ROCE_RING_ALLREDUCE": "0"},
        {"ROCE_RING_MAX_BYTES": "4096", "DSV41_ROCE_RING": "1", "DSV41_ROCE_GATHER": "4096"},
        {"ROCE_RING_REQUIRED": "0"},
    ],
)
def test_an_engine_is_left_alone_unless_a_switch_says_otherwise(engine: str, environ: dict[str, str]) -> None:
    assert not Switches.from_env(environ, engine).on


def test_each_engine_has_a_name_of_its_own_and_all_share_one() -> None:
    assert Switches.from_env({"ROCE_RING_ALLREDUCE": "1"}, "vllm") == Switches(True, "ROCE_RING_ALLREDUCE")
    assert Switches.from_env({"SGLANG_ROCE_ALLREDUCE": "1"}, "sglang").named == "SGLANG_ROCE_ALLREDUCE"
    assert not Switches.from_env({"SGLANG_ROCE_ALLREDUCE": "1"}, "vllm").on
    assert not Switches.from_env({"VLLM_ENABLE_ROCE_ALLREDUCE": "1"}, "sglang").on


@pytest.mark.parametrize("name", ["DSV41_ROCE_GATHER", "VLLM_ROCE_ALLGATHER_MAX_SIZE"])
def test_the_recipes_zero_keeps_gathers_in_the_engine(name: str) -> None:
    assert not Switches.from_env({"ROCE_RING_ALLREDUCE": "1", name: "0"}, "sglang").gather
    assert Switches.from_env({"ROCE_RING_ALLREDUCE": "1", name: "4096"}, "sglang").gather
    assert Switches.from_env({"ROCE_RING_ALLREDUCE": "1"}, "sglang").gather


@pytest.mark.parametrize(
    ("environ", "sentence"),
    [
        ({"SGLANG_ROCE_ALLREDUCE": "yes"}, "SGLANG_ROCE_ALLREDUCE: expected 0 or 1, got 'yes'"),
        ({"ROCE_RING_REQUIRED": ""}, "ROCE_RING_REQUIRED: expected 0 or 1, got ''"),
        (
            {"ROCE_RING_ALLREDUCE": "0", "SGLANG_ROCE_ALLREDUCE": "1"},
            "ROCE_RING_ALLREDUCE=0 and SGLANG_ROCE_ALLREDUCE=1 are two names of one switch with different values",
        ),
        ({"ROCE_RING_ALLREDUCE": "1", "DSV41_ROCE_RING": "0"}, "asks for a switched fabric"),
        ({"ROCE_RING_REQUIRED": "1"}, "nothing turns roce-ring on: set ROCE_RING_ALLREDUCE=1"),
    ],
)
def test_contradictions_are_one_sentence(environ: dict[str, str], sentence: str) -> None:
    with pytest.raises(ConfigError) as caught:
        Switches.from_env(environ, "sglang")
    assert sentence in str(caught.value)


def test_switches_are_no_settings_and_no_unknown_names() -> None:
    assert Settings.from_env({"ROCE_RING_ALLREDUCE": "1", "ROCE_RING_REQUIRED": "1"}) == Settings()
    with pytest.raises(ConfigError, match="did you mean ROCE_RING_REQUIRED"):
        Settings.from_env({"ROCE_RING_REQUIRE": "1"})


def test_one_no_is_everybodys() -> None:
    assert count([Ballot(), Ballot()]) == Outcome(yes=True)
    assert count([Ballot(), Ballot(no="no CuPy")]) == Outcome(why="rank 1: no CuPy")
    assert count([Ballot(required=True), Ballot(no="no CuPy")]).required


def test_a_group_that_no_plan_speaks_of_is_no_fault_but_half_of_one_is() -> None:
    assert count([Ballot(covered=False, required=True)] * 2) == Outcome(none_of_ours=True)
    assert count([Ballot(), Ballot(covered=False)]).why == "rank 1: its plan is for a group of another size"


def test_the_world_of_a_plan_is_read_from_the_environment_line() -> None:
    assert planned_world(Settings()) is None
    assert planned_world(Settings(hca="a,b,c,d", peer_hca_maps="1=0/2;0=1/3")) == 2


def test_groups_of_one_process_have_names_of_their_own() -> None:
    names = {
        group_name("job", members, 4, nth)
        for members, nth in (((0, 1, 2, 3), 1), ((0, 1, 2, 3), 2), ((0, 1), 1), ((2, 3), 1), ((0, 1), 2))
    }
    assert len(names) == 5
    assert "job" in names
    for name in names:
        assert Settings(name=name).name == name


def test_devices_by_any_of_their_names() -> None:
    assert [device_name(one) for one in (1, "cuda:1", "cpu")] == ["cuda:1", "cuda:1", "cpu"]


def test_gid_index_is_the_ipv4_entry_of_roce_v2(tmp_path: object) -> None:
    from pathlib import Path

    ports = Path(str(tmp_path)) / "rocep1s0f0" / "ports" / "1"
    (ports / "gids").mkdir(parents=True)
    (ports / "gid_attrs" / "types").mkdir(parents=True)
    four, six = "0000:0000:0000:0000:0000:ffff:0a0a:0001", "fe80:0000:0000:0000:0000:0000:0000:0001"
    for index, (gid, kind) in enumerate(
        [(six, "IB/RoCE v1"), (six, "RoCE v2"), (four, "IB/RoCE v1"), (four, "RoCE v2")]
    ):
        (ports / "gids" / str(index)).write_text(gid + "\n")
        (ports / "gid_attrs" / "types" / str(index)).write_text(kind + "\n")
    assert gid_index(("rocep1s0f0",), Path(str(tmp_path))) == "3"
    assert gid_index((), Path(str(tmp_path))) == "none"


@pytest.mark.parametrize(
    ("asked", "sentence"), [([], "asked for no all-reduce"), (["a group of 2 ranks"], "a group of 2")]
)
def test_an_engine_that_never_asked_is_told_of_at_its_first_step(
    monkeypatch: pytest.MonkeyPatch, asked: list[str], sentence: str
) -> None:
    """--disable-custom-all-reduce in an old recipe, or a hook that did not take: nothing else would show it."""
    monkeypatch.setattr(opening, "_asked", asked)
    monkeypatch.setattr(opening, "_checked", [])
    monkeypatch.setenv("ROCE_RING_REQUIRED", "1")
    log = logging.getLogger("quiet")
    log.propagate = False
    with pytest.raises(SystemExit, match=sentence):
        opening.check_asked("SGLang", "start it without --disable-custom-all-reduce", log)
    opening.check_asked("SGLang", "", log)  # once is enough


@pytest.mark.expected_warnings("SGLang asked for no all-reduce of two or more ranks .start it without")
def test_it_goes_on_where_it_may(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(opening, "_asked", [])
    monkeypatch.setattr(opening, "_checked", [])
    opening.check_asked("SGLang", "start it without --disable-custom-all-reduce", logging.getLogger("told"))


def test_a_disabled_plug_in_is_nearly_free() -> None:
    """It is loaded in every process of an engine on every machine that has it installed."""
    script = (
        "import sys, time; began = time.perf_counter()\n"
        "from roce_ring.engines.sglang import register; register()\n"
        "took = time.perf_counter() - began\n"
        "heavy = {'torch', 'cupy', 'grpc', 'numpy', 'google.protobuf'} & set(sys.modules)\n"
        "assert not heavy, heavy\n"
        "assert 'roce_ring.engines.opening' not in sys.modules\n"
        "print(took)"
    )
    took = min(
        float(subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True, env={}).stdout)
        for _ in range(3)
    )
    assert took < 0.150
