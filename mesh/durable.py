"""Files that must be the old one or the new one, also after a crash or a power cut."""

from __future__ import annotations

import os
from pathlib import Path


def replace(path: Path, raw: bytes) -> None:
    """Writes `raw` in the place of `path`. Raises OSError; then the old one is still there."""
    new = path.with_name(f"{path.name}.new")
    with new.open("wb") as file:
        file.write(raw)
        file.flush()
        os.fsync(file.fileno())
    new.rename(path)
    folder = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)
