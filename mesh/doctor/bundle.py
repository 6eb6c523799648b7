"""The look as one program that ``python3 -`` can run: this package's own files, each as the module it is here."""

from __future__ import annotations

from pathlib import Path

_HERE = Path(__file__).parent
# In the order of their imports; nothing here needs more than the standard library.
_FILES = {
    "mesh.inventory": _HERE.parent / "inventory.py",
    **{
        f"mesh.doctor.{name}": _HERE / f"{name}.py"
        for name in ("machine", "look_functions", "look_network", "look_host", "look")
    },
}
_LOADER = """
import sys, types
for name in ("mesh", "mesh.doctor"):
    sys.modules[name] = types.ModuleType(name)
    sys.modules[name].__path__ = []
sys.modules["mesh"].doctor = sys.modules["mesh.doctor"]
for name, text in SOURCES.items():
    module = sys.modules[name] = types.ModuleType(name)
    module.__package__, _, child = name.rpartition(".")
    setattr(sys.modules[module.__package__], child, module)
    exec(compile(text, name, "exec", dont_inherit=True), module.__dict__)
sys.exit(sys.modules["mesh.doctor.look"].main())
"""


def program() -> str:
    """Python source; its arguments are those of ``look``."""
    sources = {name: path.read_text(encoding="utf-8") for name, path in _FILES.items()}
    return f"SOURCES = {sources!r}\n{_LOADER}"
