"""A run as Markdown, to be kept: what it ran on, how, and the table."""

from __future__ import annotations

import os
import platform
import time
from pathlib import Path

from .. import __version__
from .cases import Spec
from .job import Result
from .table import render


def markdown(result: Result, spec: Spec) -> str:
    first = result.ranks[0]
    against = " against gloo" if spec.gloo else ""
    load = ", ".join(f"{one:.1f}" for one in os.getloadavg())
    return "\n".join(
        [
            f"# {result.world} ranks over {first.provider}{against}",
            "",
            f"- date: {time.strftime('%Y-%m-%d %H:%M UTC', time.gmtime())}",
            f"- roce-ring {__version__}, Python {platform.python_version()}{_torch() if spec.gloo else ''}",
            f"- {_cpu()}, {first.cpus} CPUs for {2 * result.world} threads of ours, kernel {platform.release()}",
            f"- load average at the end (1, 5, 15 minutes): {load}",
            f"- {spec.iterations} samples a row, all rows in turn; a sample is the time of the slowest rank",
            "",
            "```",
            render(result, spec),
            "```",
            "",
        ]
    )


def _torch() -> str:
    from importlib.metadata import version

    return f", torch {version('torch')}"


def _cpu() -> str:
    for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.machine()
