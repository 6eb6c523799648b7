"""All-reduce for tensor parallelism over a switchless RoCE ring, and over PCIe inside one machine."""

from __future__ import annotations

from importlib.metadata import version

__version__ = version("roce-ring")
