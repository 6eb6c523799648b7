"""A node of a plan whose card is a fake (card.py) and whose markers are the real program on a fake rdma-core."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from mesh import marker
from mesh.agent import dataplane, making
from mesh.agent.agent import Agent
from mesh.loading import load_facts, plan_text
from mesh.model import NodePlan, Plan
from mesh.planner import make_plan
from tests.mesh.agent.card import Card
from tests.mesh.rings import EXAMPLES, document, facts, ring_cables

HERE = Path(__file__).parents[2] / "marker"


def plan_of(name: str) -> Plan:
    return make_plan(load_facts(EXAMPLES / f"{name}.yaml"))[0]


def small_queues() -> Plan:
    """The four-node ring before anybody set its hairpin queues."""
    return make_plan(facts(document(4, ring_cables(4), hairpin_queue_size=1024)))[0]


class Bench:
    """One node, and the agents that live on it one after the other."""

    def __init__(self, plan: Plan, folder: Path, rank: int = 0) -> None:
        self.plan, self.folder = plan, folder
        self.node: NodePlan = plan.nodes[rank]
        self.sysfs = folder / "sys"
        self.card = Card(self.node, self.sysfs)
        self.agents: list[Agent] = []
        (folder / "state").mkdir()

    def agent(self) -> Agent:
        agent = Agent(self.folder / "state", run=self.card.run, sysfs=self.sysfs)
        self.agents.append(agent)
        return agent

    @property
    def document(self) -> str:
        return plan_text(self.plan)

    def up(self, agent: Agent | None = None, force: bool = False) -> Agent:
        agent = agent or self.agent()
        agent.stage(self.document, self.node.host)
        agent.commit(self.plan.hash, force)
        return agent

    def boot(self) -> None:
        """Of the machine: the next agent finds another boot id, and what a boot leaves."""
        self.card.reboot()
        self.folder.joinpath("boot_id").write_text(f"boot {len(self.card.asked)}\n")


@pytest.fixture(scope="session")
def fake_rdma(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the fake rdma-core that the marker is tested on."""
    folder = tmp_path_factory.mktemp("fake_rdma")
    script = f"-Wl,--version-script={HERE / 'fake_rdma.map'}"
    first = folder / "libibverbs.so.1"
    subprocess.run(["cc", "-shared", "-fPIC", script, "-o", first, HERE / "fake_rdma.c"], check=True, timeout=30)
    (folder / "libmlx5.so.1").symlink_to(first.name)
    return folder


@pytest.fixture
def markers(fake_rdma: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[], dict[str, int]]:
    """Agents start the real marker program here, in a folder of the test's own. Returns device -> process id."""
    try:
        program = marker.marker_program()
    except FileNotFoundError as error:
        if os.environ.get("CI") == "true":
            raise
        pytest.skip(str(error))
    run_dir, wrapper = tmp_path / "markers", tmp_path / "bin" / "roce-ring-marker"
    wrapper.parent.mkdir()
    wrapper.write_text(
        f"#!/bin/sh\nexport LD_LIBRARY_PATH={fake_rdma} RR_FAKE_RECORD={tmp_path}/record\n"
        f'export RR_FAKE_DEVICES="$(ls {tmp_path}/sys/class/infiniband | sed s/$/=mlx5/ | paste -sd,)"\n'
        f'exec {program} --run-dir {run_dir} "$@"\n'
    )
    wrapper.chmod(0o755)
    alive = marker.running
    monkeypatch.setattr(making, "marker_program", lambda: wrapper)
    monkeypatch.setattr(making, "RUN_DIR", run_dir)
    for module in (making, dataplane):
        monkeypatch.setattr(module, "running", lambda device: alive(device, run_dir))

    def running() -> dict[str, int]:
        devices = [path.stem for path in run_dir.glob("*.state")] if run_dir.is_dir() else []
        return {device: found.pid for device in sorted(devices) if (found := alive(device, run_dir)) is not None}

    return running


@pytest.fixture
def bench(
    markers: Callable[[], dict[str, int]],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    request: pytest.FixtureRequest,
) -> Iterator[Bench]:
    """The first node of the four-Spark ring; ``@pytest.mark.parametrize("bench", [plan], indirect=True)``: another."""
    boot_id = tmp_path / "boot_id"
    boot_id.write_text("boot 0\n")
    monkeypatch.setattr("mesh.agent.state.BOOT_ID", boot_id)
    bench = Bench(getattr(request, "param", None) or plan_of("four-spark-ring"), tmp_path)
    yield bench
    for pid in markers().values():
        os.kill(pid, signal.SIGKILL)
    for agent in bench.agents:
        for process in agent._maker._started:
            process.wait(10)
