"""The kernels as loaded code of one device: compiled by NVRTC from the same source that builds for the CPU, once per
machine and version (CuPy keeps the result on disk)."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from ..errors import SetupError
from ..modes import modes
from ..native import ALL_GATHER, ALL_REDUCE, DTYPES, REDUCE_SCATTER

_PACKAGE = Path(__file__).resolve().parents[1]
_SOURCE = "roce_ring_kernels.cu"
# What all-reduce modes share a kernel. The rest are ring modes and halving.
_KERNEL_OF_MODE = {
    "full": "full",
    "full_phased": "full",
    "payload_rsag": "payload_rsag",
    "payload_rsag_phased": "payload_rsag",
    "bulk_push": "payload_rsag",
    "bulk_push_phased": "payload_rsag",
    "pull": "pull",
    "bulk_pull": "pull",
}

Key = tuple[int, int, int]  # kind, mode (all-reduce only), dtype (not for all-gather)


@dataclass(frozen=True, slots=True)
class Program:
    """`functions`: handle of the kernel of each kind of operation."""

    loaded: Any  # keeps the code loaded
    functions: dict[Key, int]
    multiprocessors: int
    l2_bytes: int
    name: str


def key_of(kind: int, mode: int, dtype: int) -> Key:
    return kind, mode if kind == ALL_REDUCE else 0, dtype if kind != ALL_GATHER else 0


def kernel_names(direct: bool) -> dict[Key, str]:
    """`direct`: of the set whose kernels reach peers' memory themselves."""
    how = "direct_" if direct else ""
    names: dict[Key, str] = {(ALL_GATHER, 0, 0): f"rr_all_gather_{how}bytes"}
    for dtype, number in DTYPES.items():
        names[REDUCE_SCATTER, 0, number] = f"rr_reduce_scatter_{how}{dtype}"
        for mode in modes().values():
            if direct or not mode.access:
                kernel = _KERNEL_OF_MODE.get(mode.name, "lanes")
                names[ALL_REDUCE, mode.value, number] = f"rr_{kernel}_{how}{dtype}"
    return names


def compile_kernels(
    kernels: Path, headers: Path, direct: bool = False, profile: bool = False
) -> dict[Key, tuple[Any, int]]:
    """For the current device: what keeps the code loaded, and the kernel's handle. `profile`: the build that notes
    where its time goes (kernels/profile.cuh). Raises SetupError with the compiler's words."""
    names = kernel_names(direct)
    module = compiled(_SOURCE, kernels, headers, f"-DRR_SETS={1 + direct}", f"-DRR_PROFILE={int(profile)}")
    kernel = {name: module.get_function(name) for name in set(names.values())}
    return {key: (kernel[name], int(kernel[name].kernel.ptr)) for key, name in names.items()}


def compiled(
    source: str, kernels: Path = _PACKAGE / "kernels", headers: Path = _PACKAGE / "_include", *more: str
) -> Any:
    """For the current device: a CuPy module. `source`: a file of `kernels`; `more`: options. Raises SetupError with the
    compiler's words."""
    cupy = import_cupy()
    # CuPy's cache on disk knows the source it was given, not the headers that this source includes.
    digest = hashlib.sha256()
    for path in sorted([*kernels.iterdir(), *headers.rglob("*")]):
        if path.suffix in (".cuh", ".h", ".def"):
            digest.update(path.read_bytes())
    options = (
        "-std=c++17",
        f"-I{kernels}",
        f"-I{headers}",
        f"-DRR_SOURCE_DIGEST=0x{digest.hexdigest()[:15]}",
        *more,
    )
    try:
        module = cupy.RawModule(code=(kernels / source).read_text(), options=options, backend="nvrtc")
        module.compile()
    except (OSError, cupy.cuda.compiler.CompileException, cupy.cuda.driver.CUDADriverError) as error:
        raise SetupError(f"the kernels do not compile: {str(error).strip()[-1500:]}") from error
    return module


@cache
def program(device: int, direct: bool, profile: bool) -> Program:
    """Compiles the set with a proxy or the direct one, or loads what an earlier process compiled. Raises SetupError."""
    cupy = import_cupy()
    with cupy.cuda.Device(device):
        # where a wheel puts them
        compiled = compile_kernels(_PACKAGE / "kernels", _PACKAGE / "_include", direct, profile)
        facts = cupy.cuda.runtime.getDeviceProperties(device)
    functions = {key: handle for key, (_, handle) in compiled.items()}
    return Program(compiled, functions, facts["multiProcessorCount"], facts["l2CacheSize"], facts["name"].decode())


def import_cupy() -> Any:
    try:
        import cupy
    except ImportError as error:
        raise SetupError(
            f"a communicator for cuda needs CuPy: {error}; "
            "pip install 'roce-ring[cuda]' (CUDA 13) or 'roce-ring[cuda12]'"
        ) from error
    return cupy
