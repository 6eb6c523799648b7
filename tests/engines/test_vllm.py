"""vLLM's released code over our communicator: its plug-in loader, process group, CUDA communicator and worker."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.engines.environment import Rank, environment_line, launch, vllm_sites

pytest.importorskip("torch", reason="the engines need torch")

PROGRAM = Path(__file__).with_name("vllm_rank.py")
OURS = "roce_ring.engines.communicator.Communicator"
STOCK = "vllm.distributed.device_communicators.custom_all_reduce.CustomAllreduce"
LINE = environment_line("pair-two-cables.yaml", "vllm")


def run(scenario: str, environ: dict[str, str] | list[dict[str, str]], world: int) -> list[Rank]:
    return launch(PROGRAM, vllm_sites(), scenario, environ, world, preload="torch,tests.engines.vllm_on_cpu")


@pytest.fixture
def names(tmp_path: Path) -> dict[str, str]:
    """What every rank of a test has beside the line under test: a run directory, so that tests can run side by side."""
    return {"ROCE_RING_RUN_DIR": str(tmp_path / "run")}


def test_a_plans_line_is_all_that_four_ranks_need(names: dict[str, str]) -> None:
    line = environment_line("four-spark-ring.yaml", "vllm")
    ranks = run("routed 262144", {**line, **names}, 4)
    for rank in ranks:
        assert (rank.code, rank.said.get("communicator"), rank.said.get("wrong")) == (0, OURS, []), rank.log
    log = ranks[0].log
    assert "RoCEnante ready: world=4 hcas=none gid_index=none max_size=262144" in log
    assert "DSV41_ROCE_GATHER ready: max 262144 bytes per rank" in log
    assert "roce-ring: all-reduce 57344 B bfloat16: payload_rsag, 1 block; above 262144 B: gloo" in log
    assert "roce-ring: all-gather 512 B bfloat16; above 262144 B: gloo" in log
    assert not any("RoCEnante" in rank.log for rank in ranks[1:])


def test_our_own_line_does_the_same(names: dict[str, str]) -> None:
    line = environment_line("pair-two-cables.yaml", "roce-ring")
    for rank in run("routed 524288", {**line, **names, "ROCE_RING_MODE": "ring"}, 2):
        assert (rank.code, rank.said.get("communicator"), rank.said.get("wrong")) == (0, OURS, []), rank.log


def test_one_rank_that_cannot_keeps_all_from_it(names: dict[str, str]) -> None:
    """Alone it would fall back while the others wait for it in their first all-reduce."""
    broken = {**LINE, **names, "ROCE_RING_MAX_BYTES": "lots"}
    for rank in run("declined", [{**LINE, **names}, broken], 2):
        assert (rank.code, rank.said.get("communicator"), rank.said.get("wrong")) == (0, STOCK, []), rank.log
        told = [line for line in rank.log.splitlines() if "roce-ring is not used" in line]
        assert len(told) == 1
        assert "rank 1: environment: ROCE_RING_MAX_BYTES: expected a whole number of bytes" in told[0]
        assert "rank 0:" not in told[0]


def test_required_by_one_rank_ends_all(names: dict[str, str]) -> None:
    """vLLM has no handler around the constructor, so nothing swallows this."""
    broken = {**LINE, **names, "VLLM_ENABLE_ROCE_ALLREDUCE": "yes"}
    for rank in run("declined", [{**LINE, **names, "ROCE_RING_REQUIRED": "1"}, broken], 2):
        assert rank.code == 1, rank.log
        assert "rank 1: environment: VLLM_ENABLE_ROCE_ALLREDUCE: expected 0 or 1, got 'yes'" in rank.log
        assert "ROCE_RING_REQUIRED=1, so this engine ends" in rank.log.splitlines()[-1]


def test_a_lost_rank_ends_the_others_by_name(names: dict[str, str]) -> None:
    """Also at the end of a step and where its results are fetched, for graph replays return whatever they find."""
    *others, lost = run("lost", {**LINE, **names}, 2)
    assert lost.code < 0
    for rank in others:
        for what in ("collective", "step", "results"):
            assert rank.said[what].startswith("PeerDead: rank 1"), rank.log
        assert rank.said["s"] < 6


@pytest.mark.parametrize("required", ["0", "1"])
def test_a_missing_target_is_loud(required: str) -> None:
    """And nothing else is hooked: half of it would look like all of it."""
    (rank,) = run("no target", {**LINE, "ROCE_RING_REQUIRED": required}, 1)
    assert "roce-ring is not used: this vLLM (0.33.0) has no" in rank.log
    assert "custom_all_reduce.CustomAllreduce; expected version 0.33, or a newer roce-ring" in rank.log
    assert (rank.code, rank.said.get("hooked")) == ((0, {}) if required == "0" else (1, None))


@pytest.mark.parametrize("required", ["0", "1"])
def test_an_engine_that_never_asks_is_told_at_its_first_step(required: str) -> None:
    (rank,) = run("no group", {**LINE, "ROCE_RING_REQUIRED": required}, 1)
    assert (
        "vLLM asked for no all-reduce of two or more ranks (start it without --disable-custom-all-reduce)" in rank.log
    )
    assert (rank.code, rank.said) == ((0, {"went on": True}) if required == "0" else (1, {}))


def test_unset_leaves_the_engine_as_it_is() -> None:
    """The same functions as with the plug-in kept out, and nothing of ours loaded but the plug-in itself. Turned on,
    each is wrapped once however often vLLM loads its plug-ins."""
    without, unset, on = (
        run("targets", environ, 1)[0].said
        for environ in ({"VLLM_PLUGINS": "none"}, {"ROCE_RING_MAX_BYTES": "4096"}, LINE)
    )
    assert without["hooked"] == unset["hooked"] == {}
    assert without["ours"] == []
    assert not {"roce_ring.communicator", "roce_ring.settings", "roce_ring.native"} & set(unset["ours"])
    assert on["hooked"] == {"custom": 1, "gather": 1, "worker": 1}
