"""Engines as they are released, in folders of their own under build/engines: a rank of a test is this project's Python
with such a folder in front of its path, so that it finds our entry points as any installed package's.

Engines are installed without their dependencies (a GPU's whole software, several GB): what their distributed code
imports is listed in requirements-*.txt.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
BUILD = ROOT / "build" / "engines"
HERE = Path(__file__).parent
INSTALL_S = 600.0
VLLM = "0.33.0"
# What its setup.py imports; later ones than this project's own environment has, or not in it at all.
VLLM_BUILD = (
    "setuptools==80.10.2",
    "setuptools-scm==10.3.4",
    "vcs-versioning==2.6.0",
    "setuptools-rust==1.13.0",
    "semantic-version==2.10.0",
)


def site(name: str, *packages: str, **environ: str) -> Path:
    """The folder with what requirements-NAME.txt lists, or with `packages`; made once, and anew if the list changes.
    `environ`: what builds of sources need to know."""
    wanted = list(packages) or ["-r", str(HERE / f"requirements-{name}.txt")]
    listed = "\n".join(packages) or (HERE / f"requirements-{name}.txt").read_text()
    folder = BUILD / f"{name}-{hashlib.sha256(listed.encode()).hexdigest()[:12]}"
    if not folder.is_dir():
        half = folder.with_suffix(".half")
        shutil.rmtree(half, ignore_errors=True)
        pip = [sys.executable, "-m", "pip", "install", "-q", "--no-deps", "--no-compile", "--target", str(half)]
        every = {**os.environ, **environ}
        done = subprocess.run(
            [*pip, *wanted], capture_output=True, text=True, timeout=INSTALL_S, check=False, env=every
        )
        if done.returncode:
            raise RuntimeError(f"{name} could not be installed: {done.stderr[-2000:]}")
        half.rename(folder)
    return folder


def vllm_sites() -> list[Path]:
    """vLLM, what it imports, and SGLang's folder, which has the rest of that. Its wheel has 340 MB, nearly all of it
    for GPUs; its source has 47, and a build target that compiles nothing, which makes a wheel of the same Python."""
    engine = site(
        f"vllm-{VLLM}",
        "--no-build-isolation",
        "--no-binary=vllm",
        f"vllm=={VLLM}",
        PYTHONPATH=str(site("vllm-build", *VLLM_BUILD)),
        VLLM_TARGET_DEVICE="empty",
        VLLM_VERSION_OVERRIDE=VLLM,  # else the wheel calls itself 0.33.0+empty, which pip refuses
    )
    return [engine, site("vllm"), site("sglang")]


@dataclass(frozen=True)
class Rank:
    """What became of one process: `said` is the JSON of its last line of standard output, or {}."""

    code: int
    said: dict[str, Any]
    log: str


_zygotes: dict[tuple[object, ...], subprocess.Popen[str]] = {}  # of this process; they end when it does


def launch(
    program: Path,
    sites: list[Path],
    scenario: str,
    environ: dict[str, str] | list[dict[str, str]],
    world: int,
    *,
    preload: str,
) -> list[Rank]:
    """Runs PROGRAM RANK WORLD PORT SCENARIO once for each rank, to the end. `environ`: what a user would export, for
    all ranks or for each. Nothing else of ours is in their environment. `preload`: modules joined by commas that they
    find imported."""
    each = environ if isinstance(environ, list) else [environ] * world
    ours = ("ROCE_RING_", "SGLANG_", "VLLM_", "B12X_", "DSV41_")
    plain = {name: value for name, value in os.environ.items() if not name.startswith(ours)}
    plain |= {"PYTHONPATH": os.pathsep.join(map(str, [*sites, ROOT])), "OMP_NUM_THREADS": "1"}
    zygote = _zygotes.get((*sites, preload))
    if zygote is None:
        command = [sys.executable, "-W", "ignore", str(HERE / "zygote.py"), preload]
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
        zygote = _zygotes[*sites, preload] = subprocess.Popen(command, env=plain, text=True, **pipes)  # type: ignore[call-overload]
    assert zygote.stdin is not None
    assert zygote.stdout is not None
    port = str(_free_port())
    with tempfile.TemporaryDirectory(prefix="roce-ring-engine-") as folder:
        request = {
            "program": str(program),
            "arguments": [[str(rank), str(world), port, scenario] for rank in range(world)],
            "environ": [{**plain, **mine} for mine in each],
            "folder": folder,
        }
        zygote.stdin.write(json.dumps(request) + "\n")
        zygote.stdin.flush()
        codes = json.loads(zygote.stdout.readline() or "[]")  # pytest-timeout ends a test that waits here for ever
        return [_rank(code, Path(folder), rank) for rank, code in enumerate(codes)]


def _rank(code: int, folder: Path, rank: int) -> Rank:
    lines = [line for line in (folder / f"{rank}.out").read_text().splitlines() if line.startswith("{")]
    return Rank(code, json.loads(lines[-1]) if lines else {}, (folder / f"{rank}.log").read_text())


def _free_port() -> int:
    import socket

    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return int(one.getsockname()[1])


def environment_line(sample: str, engine: str) -> dict[str, str]:
    """What `roce-ring plan` prints for an engine, as a shell would export it."""
    done = subprocess.run(
        [sys.executable, "-m", "roce_ring.mesh.plan", str(ROOT / "mesh" / "examples" / sample)],
        capture_output=True,
        text=True,
        check=True,
    )
    names = {"nccl": "NCCL_", "roce-ring": "ROCE_RING_", "vllm": "VLLM_", "sglang": "DSV41_"}
    (line,) = (line for line in done.stdout.splitlines() if line.startswith(names[engine]))
    return dict(item.split("=", 1) for item in line.split())
