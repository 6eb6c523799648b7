"""All-reduce for tensor parallelism over a switchless RoCE ring, and over PCIe inside one machine.

Importing this package imports nothing heavy: what it exports is loaded at first use.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .communicator import AllReduce as AllReduce

    __version__: str

__all__ = ["AllReduce", "__version__"]


def __getattr__(name: str) -> object:
    if name == "AllReduce":
        from .communicator import AllReduce

        return AllReduce
    if name == "__version__":
        from importlib.metadata import version

        return version("roce-ring")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
