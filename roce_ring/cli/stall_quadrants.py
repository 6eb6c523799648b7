"""`roce-ring stall quadrants`: measures which host bridges share a quadrant, and writes it down for sessions."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ..errors import ConfigError
from .number import number

if TYPE_CHECKING:
    from ..stall.trace import Trace

SIZE = 80 << 10  # of the published figures
BLOCKS = 16


def register(stall: typer.Typer) -> None:
    @stall.command()
    def quadrants(
        out: Annotated[
            Path | None,
            typer.Option(metavar="FILE", help="Write them there; sessions read /etc/roce-ring/quadrants.yaml."),
        ] = None,
        seconds: Annotated[float, number(float, 2.5, 60, "For each two host bridges: windows come every 2.3 s.")] = 5.0,
    ) -> None:
        """Measure which host bridges share a quadrant of the IO die.

        Between two of one quadrant, reads never stall, and writes to several GPUs at once take no longer than writes to
        one after the other. The GPUs must be idle.
        """
        import platform

        from ..fabric.snapshot import read
        from ..fabric.tree import Tree
        from ..gpu.executor import device_number
        from ..gpu.program import import_cupy
        from ..stall.gpu import Gpus
        from ..stall.quadrants import measured
        from ..stall.record import record
        from .stall_record import MOST_RANKS

        tree = Tree(read(Path("/sys"), platform.node()))
        below: dict[str, list[str]] = {}
        for one in tree.gpus:
            below.setdefault(one.root, []).append(one.bdf)
        if len(below) < 2:
            raise ConfigError(f"GPUs here sit below {len(below)} host bridges: there is nothing to tell apart")
        device_number("cuda")  # says what is missing
        by_bus = import_cupy().cuda.runtime.deviceGetByPCIBusId

        def trace(bridges: Sequence[str], pattern: str) -> Trace:
            left = {bridge: iter(below[bridge]) for bridge in bridges}
            devices = [by_bus(next(left[bridge])) for bridge in bridges]
            print(f"{pattern} on GPUs {', '.join(map(str, devices))}", file=sys.stderr)
            return record(Gpus(devices, SIZE, BLOCKS), pattern, seconds)

        found = measured({bridge: len(gpus) for bridge, gpus in below.items()}, trace, MOST_RANKS)
        text = as_yaml(found)
        print(text, end="")
        if out:
            from .bench import written

            with written("--out", out):
                out.write_text(text, encoding="utf-8")


def as_yaml(found: dict[str, str]) -> str:
    """Host bridges in quotes: some are numbers to YAML."""
    import yaml

    text: str = yaml.safe_dump(found, default_style="'")
    return text
