"""What a communicator for a GPU says where there is none. What it does where there is one: tests/gpu."""

from __future__ import annotations

import os
from importlib.util import find_spec
from pathlib import Path

import pytest

from roce_ring.bench.mps import mps
from roce_ring.errors import SetupError
from tests.local.ranks import MEETING_S, Rank, Starter


def open_on(me: Rank, device: str = "cpu") -> None:
    from roce_ring.communicator import AllReduce

    AllReduce.from_rendezvous(
        me.address, me.rank, me.world, timeout_s=MEETING_S, settings=me.settings(), device=device
    ).close()


def test_a_rank_on_another_kind_of_device_is_named(start: Starter) -> None:
    """One rank of a job was started without its GPU: all say so before anything is registered or compiled."""
    errors = start(open_on, 3, per_rank={1: {"device": "cuda"}}).errors()
    assert [one.type for one in errors] == ["SetupError"] * 3
    for one in errors:
        assert "device | ranks 0, 2 say cpu | rank 1 says cuda" in one.message.replace("  ", " ")


def test_a_word_that_is_no_device_is_refused(start: Starter) -> None:
    """Guards against a typo that would look for a GPU, or take the CPU silently."""
    for one in start(open_on, 2, device="gpu").errors():
        assert "device is 'gpu', expected cpu, cuda or cuda:N" in one.message


@pytest.mark.skipif(find_spec("cupy") is not None, reason="CuPy is here; tests/gpu says what it does")
def test_without_cupy_every_rank_says_what_to_install(start: Starter) -> None:
    """The first thing a user with a fresh environment meets: a sentence with a command, not an ImportError."""
    for one in start(open_on, 2, device="cuda").errors():
        assert one.type == "SetupError"
        assert "rank 0: a communicator for cuda needs CuPy" in one.message
        assert "rank 1: a communicator for cuda needs CuPy" in one.message


CONTROL = """#!/bin/sh
{ echo "$CUDA_MPS_PIPE_DIRECTORY" "$@"; [ $# -gt 0 ] || cat; } >> "$(dirname "$0")/said"
"""


def test_a_private_mps_daemon_is_stopped_whatever_happens(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A daemon that outlives its run would take every later process of that GPU in."""
    control = tmp_path / "nvidia-cuda-mps-control"
    control.write_text(CONTROL)
    control.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    monkeypatch.setenv("CUDA_MPS_PIPE_DIRECTORY", "/the/host's")
    pipes = []

    def interrupted_run() -> None:
        with mps():
            pipes.append(Path(os.environ["CUDA_MPS_PIPE_DIRECTORY"]))
            assert pipes[0].is_dir()
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted_run()
    (pipe,) = pipes
    assert (tmp_path / "said").read_text() == f"{pipe} -d\n{pipe}\nquit\n"
    assert os.environ["CUDA_MPS_PIPE_DIRECTORY"] == "/the/host's"
    assert not pipe.exists()


def test_without_mps_a_sentence_says_what_else_there_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(SetupError, match="nvidia-cuda-mps-control does not start: no such file") as refused, mps():
        pass
    assert "--share processes" in (refused.value.hint or "")
