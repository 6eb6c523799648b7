"""Fixtures of the Soft-RoCE tests: one boot per module, and what the guest said with every failure.

A module says what it wants with ``RING = (nodes, planes)`` or ``(nodes, planes, processors of the guest)``; without it
gets the four-Spark ring on both planes and one processor.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Generator, Iterator
from pathlib import Path

import pytest

from tests.softroce import byhand, kernel
from tests.softroce.ring import Ring, plan_of

WANTED = os.environ.get("ROCE_RING_SOFT") == "1"
TOOLS = {
    "ip": "iproute2",
    "tc": "iproute2",
    "rdma": "iproute2",
    "setpriv": "util-linux",
    "ibv_rc_pingpong": "ibverbs-utils",
    "ib_write_lat": "perftest",
    "cc": "gcc",
}
FILES = {"/usr/include/infiniband/verbs.h": "libibverbs-dev", "/etc/libibverbs.d/rxe.driver": "ibverbs-providers"}


def _in_the_way() -> str:
    """Why the ring cannot run here, in words; empty if it can."""
    if os.geteuid() != 0:
        return "the Soft-RoCE ring needs root"
    missing = {package for tool, package in TOOLS.items() if not shutil.which(tool)}
    missing |= {package for file, package in FILES.items() if not Path(file).exists()}
    if missing:
        return f"the Soft-RoCE ring needs tools: apt-get install {' '.join(sorted(missing))}"
    if not kernel.cached():
        return "no Soft-RoCE kernel in the cache: ROCE_RING_SOFT=1 builds it (about 6 minutes on two cores)"
    return ""


def pytest_collection_finish(session: pytest.Session) -> None:
    """Build here, where no test's time limit runs."""
    ours = any("soft_ring" in getattr(item, "fixturenames", ()) for item in session.items)
    if WANTED and ours and not session.config.option.collectonly:
        try:
            kernel.kernel()
        except kernel.KernelError as failed:
            raise pytest.UsageError(str(failed)) from None


@pytest.fixture(scope="session")
def soft_ring() -> type[Ring]:
    """The class to make rings of, where they can run. With ROCE_RING_SOFT=1 'cannot' is a failure and no skip."""
    if why := _in_the_way():
        (pytest.fail if WANTED else pytest.skip)(why)
    return Ring


@pytest.fixture(scope="module")
def ring(request: pytest.FixtureRequest, soft_ring: type[Ring]) -> Iterator[Ring]:
    """The module's ring; several in turn: ``@pytest.mark.parametrize("ring", [...], indirect=True, scope="module")``"""
    nodes, planes, *cpus = getattr(request, "param", getattr(request.module, "RING", (4, 2)))
    with soft_ring(plan_of(nodes, planes), *cpus) as ring:
        yield ring


@pytest.fixture(scope="module")
def planned_ring(ring: Ring) -> Ring:
    """The same ring, its plan set up by hand: far nodes are reached through their neighbours."""
    for node in ring.nodes:
        byhand.apply(node)
    return ring


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    ring = getattr(item, "funcargs", {}).get("ring")
    if report.failed and isinstance(ring, Ring):
        report.sections.append(("the Soft-RoCE guest", ring.guest.report()))
    return report
