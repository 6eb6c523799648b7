"""The node agent's own code starts a marker, finds it after a restart, and takes it back. The marker is the real
program on a fake rdma-core."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from errno import EPERM
from pathlib import Path

import pytest

from tests.marker.lab import Lab

ROOT = Path(__file__).resolve().parents[2]
EMPTY_RUN = ["unshare", "--mount", "--net", "sh", "-c", 'mount -t tmpfs none /run && exec "$@"', "sh"]

pytestmark = pytest.mark.skipif(
    os.geteuid() != 0 or not shutil.which("unshare") or "RR_MARKER_BUILD" in os.environ,
    reason="needs root and unshare (util-linux), and the installed program",
)


def agent(lab: Lab, step: str, **environment: str) -> object:
    bare = "/usr/sbin:/usr/bin:/sbin:/bin"  # as for a service: the program is found beside Python, not on PATH
    environment |= {"PATH": bare, "PYTHONPATH": str(ROOT), "RR_FAKE_DEVICES": "rocep1s0f0=mlx5"}
    command = [*EMPTY_RUN, sys.executable, str(ROOT / "tests" / "marker" / "agent_life.py"), step]
    done = subprocess.run(
        command,
        cwd=ROOT,
        env={**lab.environment, **environment},
        capture_output=True,
        text=True,
        check=False,
        timeout=40,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_marker_outlives_its_agent_and_the_next_one_takes_it_back(lab: Lab) -> None:
    seen = agent(lab, "life")
    assert seen == {
        "before": ["absent", "absent"],
        "again": ["same", "absent"],
        "left": [],
        "after": ["absent", "absent"],
    }
    assert lab.calls()[-4:] == ["destroy flow 1", "destroy action 1", "destroy matcher 1", "close"]


def test_the_agent_repeats_what_a_marker_said(lab: Lab) -> None:
    (why,) = agent(lab, "make", RR_FAKE_FAIL=f"mlx5dv_create_flow#1={EPERM}")
    assert why.startswith("'roce-ring-marker --device rocep1s0f0 --mark sport=65535,ethertype=0x88b5' ended at once: ")
    assert why.endswith("run it as root, or with the capability CAP_NET_RAW")
