"""Packages that older engines import at the top and that nothing here calls: they are gigabytes."""

from __future__ import annotations

import sys
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import ClassVar

ABSENT = ("torchvision", "transformers", "huggingface_hub")
PATCHES = "sglang.srt.utils.hf_transformers_patches"  # patches what is absent


class _Anything(ModuleType):
    """A package that has every name, each an empty class."""

    __path__: ClassVar[list[str]] = []

    def __getattr__(self, name: str) -> type:
        if name.startswith("__"):
            raise AttributeError(name)
        return type(name, (), {})


class _Absent(MetaPathFinder, Loader):
    def find_spec(self, name: str, path: object = None, target: object = None) -> ModuleSpec | None:
        return ModuleSpec(name, self, is_package=True) if name.partition(".")[0] in ABSENT else None

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        return _Anything(spec.name)

    def exec_module(self, module: ModuleType) -> None: ...


def stand_in() -> None:
    sys.meta_path.append(_Absent())
    sys.modules[PATCHES] = _Anything(PATCHES)
