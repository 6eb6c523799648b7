"""An operator's word on which host bridge belongs to which quadrant of the IO die: no file of the kernel's says it."""

from __future__ import annotations

from pathlib import Path

import yaml

from ..errors import ConfigError

HERE = Path("/etc/roce-ring/quadrants.yaml")  # of this host: sessions and `topo` go by it if it is there
_MOST_BYTES = 1 << 16
_FIX = "write lines like '0000:40: q1' (or '\"40\": q1')"


def load(path: Path) -> dict[str, str]:
    """Host bridge -> quadrant. Raises ConfigError."""
    try:
        with path.open("rb") as file:
            raw = yaml.safe_load(file.read(_MOST_BYTES))
    except OSError as error:
        raise ConfigError(f"cannot read quadrants {path}: {(error.strerror or str(error)).lower()}", _FIX) from None
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        raise ConfigError(f"quadrants {path} is not YAML: {str(error).splitlines()[0]}", _FIX) from None
    if not isinstance(raw, dict) or not raw or not all(isinstance(one, str) for one in raw):
        raise ConfigError(f"quadrants {path} is no mapping of host bridges (in quotes) to quadrants", _FIX)
    return {name: str(where)[:40] for name, where in raw.items()}


def of_this_host() -> dict[str, str]:
    """Empty if nobody has said anything. Raises ConfigError."""
    return load(HERE) if HERE.exists() else {}
