"""What an agent remembers, and when it must not trust it."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from mesh.agent.agent import Agent
from mesh.agent.leases import Leases
from mesh.agent.model import Holder
from mesh.agent.state import State, StateError, load, save
from tests.mesh.agent.conftest import Bench


@pytest.fixture(autouse=True)
def boot(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The file with the boot id."""
    path = tmp_path / "boot_id"
    path.write_text("first\n")
    monkeypatch.setattr("mesh.agent.state.BOOT_ID", path)
    return path


def kept(tmp_path: Path, **values: object) -> State:
    state = State(boot_id="first", plan="{}", host="s1", owned={"route 1 dev a": {}}, **values)  # type: ignore[arg-type]
    save(tmp_path, state)
    return state


def test_what_is_saved_is_what_is_loaded(tmp_path: Path) -> None:
    state = kept(tmp_path, phase="active", queues_tried={"0000:01:00.0": "no"})
    assert load(tmp_path) == (state, False)
    assert (tmp_path / "agent.json").stat().st_mode & 0o022 == 0  # nobody else says what is ours


def test_a_crash_while_saving_leaves_the_old_state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whether it dies with half a file, or before the new one has its name."""
    state = kept(tmp_path, phase="active")
    (tmp_path / "agent.json.new").write_bytes(b'{"schema": "roce-ri')
    assert load(tmp_path)[0] == state

    def die(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(os, "fsync", die)
    with pytest.raises(KeyboardInterrupt):
        save(tmp_path, State(boot_id="first", phase="removing"))
    assert load(tmp_path)[0] == state


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b'{"phase": "dancing"}', b'{"color": "red"}', b"\xff\xfe"])
def test_a_file_that_is_no_state_is_one_sentence(tmp_path: Path, content: bytes) -> None:
    """It says which routes are ours: nothing may be touched on a guess."""
    (tmp_path / "agent.json").write_bytes(content)
    with pytest.raises(StateError, match=r"state file .*agent.json cannot be read \(.*remove it; then 'roce-ring up'"):
        load(tmp_path)
    assert (tmp_path / "agent.json").read_bytes() == content


def test_a_file_of_another_version_says_so(tmp_path: Path) -> None:
    (tmp_path / "agent.json").write_text(json.dumps({"schema": "roce-ring/mesh-agent/v7"}))
    with pytest.raises(StateError, match=r"schema 'roce-ring/mesh-agent/v7', expected .*v1"):
        load(tmp_path)


def test_a_place_that_cannot_be_written_is_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(StateError, match="cannot be written: no such file or directory"):
        save(tmp_path / "gone", State())


def test_a_plan_that_this_version_cannot_read_keeps_the_agent_from_starting(tmp_path: Path) -> None:
    """An update changed the form of plans: starting with none would forget what stands."""
    kept(tmp_path, phase="active")
    with pytest.raises(StateError, match="holds a plan that this version cannot read"):
        Agent(tmp_path, "soft")


def test_a_boot_forgets_what_was_ours_and_keeps_the_plan(tmp_path: Path, boot: Path) -> None:
    """Routes and rules went with it; whoever made those that are there now, it was not us."""
    kept(tmp_path, phase="active")
    boot.write_text("second\n")
    state, rebooted = load(tmp_path)
    assert rebooted
    assert (state.owned, state.plan, state.phase, state.boot_id, state.booted) == ({}, "{}", "active", "second", True)


def test_a_boot_finishes_a_removal(tmp_path: Path, boot: Path) -> None:
    kept(tmp_path, phase="removing")
    boot.write_text("second\n")
    state, _ = load(tmp_path)
    assert (state.phase, state.plan, state.owned) == ("idle", "", {})


def test_a_boot_in_the_middle_of_an_apply_leaves_it_to_be_finished(tmp_path: Path, boot: Path) -> None:
    kept(tmp_path, phase="applying")
    boot.write_text("second\n")
    assert load(tmp_path)[0].phase == "applying"


# leases


def test_leases_count_for_a_while_after_the_agent_was_started_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Sessions need a moment to come back; until then nothing may be reloaded under them."""
    now = [1000.0]
    monkeypatch.setattr("mesh.agent.leases.time.monotonic", lambda: now[0])
    Leases(tmp_path, rebooted=False).take("decode", "rank 0")
    after = Leases(tmp_path, rebooted=False)
    now[0] += 29
    assert after.all() == (Holder("decode", "rank 0"),)
    now[0] += 2
    assert after.all() == ()
    assert Leases(tmp_path, rebooted=False).all() == ()  # and are not brought up again by the next restart


def test_a_session_that_comes_back_counts_once(tmp_path: Path) -> None:
    Leases(tmp_path, rebooted=False).take("decode", "rank 0")
    after = Leases(tmp_path, rebooted=False)
    number = after.take("decode", "rank 0")
    assert after.all() == (Holder("decode", "rank 0"),)
    after.drop(number)
    assert after.all() == ()


def test_two_ranks_of_a_session_on_one_node_hold_one_each(tmp_path: Path) -> None:
    """The first that ends must not free the other's paths."""
    leases = Leases(tmp_path, rebooted=False)
    first, second = leases.take("decode", "rank 0"), leases.take("decode", "rank 0")
    leases.drop(first)
    assert len(leases.all()) == 1
    leases.drop(second)
    leases.drop(second)
    assert leases.all() == ()


def test_no_lease_outlives_a_boot(tmp_path: Path) -> None:
    Leases(tmp_path, rebooted=False).take("decode", "rank 0")
    assert Leases(tmp_path, rebooted=True).all() == ()


@pytest.mark.parametrize("content", [b"", b"{", b'{"a": 1}', b"\xff"])
def test_a_broken_lease_file_keeps_no_agent_from_starting(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "leases.json").write_bytes(content)
    assert Leases(tmp_path, rebooted=False).all() == ()


def test_no_lease_begins_while_the_node_changes(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever reloads a function has looked who runs; nobody may start in between."""
    import threading

    from mesh.finding import Refused

    monkeypatch.setattr("mesh.agent.agent.LEASE_WAIT_S", 0.05)
    agent = bench.up()
    inside, leave = threading.Event(), threading.Event()

    def slow(command: str) -> None:
        inside.set()
        leave.wait(10)

    bench.card.before = slow
    removal = threading.Thread(target=agent.teardown)
    removal.start()
    try:
        assert inside.wait(10)
        with pytest.raises(Refused, match="its agent is changing what the plan sets up"):
            agent.lease("decode", "rank 0", bench.plan.hash)
        assert agent.status().plan_hash == bench.plan.hash  # status never waits
    finally:
        leave.set()
        removal.join()
    with pytest.raises(Refused, match="holds no plan"):
        agent.lease("decode", "rank 0", bench.plan.hash)
