"""Fixtures of the Soft-RoCE tests: one boot per module, and what the guest said with every failure.

A module says what it wants with ``RING = (nodes, planes)`` or ``(nodes, planes, processors of the guest)``; without it
gets the four-Spark ring on both planes and one processor.
"""

from __future__ import annotations

import shutil
from collections.abc import Generator, Iterator
from pathlib import Path

import pytest

from tests.softroce import byhand, kernel
from tests.softroce.guest import TOOLS
from tests.softroce.ring import Ring, plan_of


@pytest.fixture(scope="session")
def soft_ring() -> type[Ring]:
    """The class to make rings of. Skips with the reason where they cannot run (`make test` says it in its table)."""
    if wrong := [*kernel.obstacles(), *_missing()]:
        pytest.skip(f"no Soft-RoCE ring here: {'; '.join(wrong)}")
    return Ring


def _missing() -> list[str]:
    packages = sorted({package for tool, package in TOOLS if not (shutil.which(tool) or Path(tool).exists())})
    missing = [f"tools are missing (apt-get install {' '.join(packages)})"] if packages else []
    if not kernel.cached():
        missing.append("no kernel in the cache (python tests/softroce/kernel.py builds it)")
    return missing


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
    if report.failed and call.when != "teardown" and isinstance(ring, Ring):  # the guest may be gone by then
        report.sections.append(("the Soft-RoCE guest", ring.guest.report()))
    return report
