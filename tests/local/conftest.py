"""Tests of whole ranks: real processes, the real proxy over shared memory, the real kernels on the CPU."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.local.ranks import Starter


@pytest.fixture
def start() -> Iterator[Starter]:
    """start(scenario, world): see Starter. Fails the test if a process, a region or a socket is left."""
    starter = Starter()
    yield starter
    starter.close()
