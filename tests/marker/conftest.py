"""Builds or finds the marker program and the fake rdma-core that it runs on here."""

from __future__ import annotations

import os
import shlex
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from mesh.marker import marker_program
from tests.marker.lab import Lab

HERE = Path(__file__).parent
LOADED = ("libibverbs.so.1", "libmlx5.so.1")  # names under which the program loads the fake


@pytest.fixture(scope="session")
def built(tmp_path_factory: pytest.TempPathFactory) -> tuple[list[str], Path]:
    """(command, folder with the fake libraries): those that the native tiers built, or the installed program."""
    if folder := os.environ.get("RR_MARKER_BUILD"):
        emulator = shlex.split(os.environ.get("RR_MARKER_EMULATOR", ""))
        return [*emulator, str(Path(folder) / "roce-ring-marker")], Path(folder) / "fake_rdma"
    try:
        program = marker_program()
    except FileNotFoundError as error:
        if os.environ.get("CI") == "true":
            raise
        pytest.skip(str(error))
    libraries = tmp_path_factory.mktemp("fake_rdma")
    first, second = (libraries / name for name in LOADED)
    script = f"-Wl,--version-script={HERE / 'fake_rdma.map'}"
    subprocess.run(["cc", "-shared", "-fPIC", script, "-o", first, HERE / "fake_rdma.c"], check=True, timeout=30)
    second.symlink_to(first.name)
    return [str(program)], libraries


@pytest.fixture
def lab(built: tuple[list[str], Path], tmp_path: Path) -> Iterator[Lab]:
    lab = Lab(*built, tmp_path)
    yield lab
    lab.end()
