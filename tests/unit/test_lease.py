"""A node's agent is a help and never a condition: sessions start where there is none, or where it is down."""

from __future__ import annotations

import logging
import socket
from pathlib import Path

import pytest

from roce_ring import lease


@pytest.fixture(autouse=True)
def no_agent_of_this_host(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lease, "RUN_DIR", tmp_path / "nowhere")


def test_without_an_agent_there_is_no_lease_and_no_word(tmp_path: Path) -> None:
    assert lease.take_lease(str(tmp_path), "s/0", "rank 0", "") is None


@pytest.mark.expected_warnings("no lease from the node agent")
def test_an_agent_that_is_down_keeps_no_session_from_starting(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Its socket is still there after a crash: one warning, and the session goes on without."""
    with socket.socket(socket.AF_UNIX) as left:
        left.bind(str(tmp_path / lease.SOCKET))
    with caplog.at_level(logging.WARNING):
        assert lease.take_lease(str(tmp_path), "s/0", "rank 0", "") is None
    assert "(it is down): nobody watches the paths" in caplog.text
