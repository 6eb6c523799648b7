"""Compile the GPU kernels for every architecture we support, on a machine without a GPU.

    python tests/compile/check_cuda.py [SOURCE]

Two compilers see the same source: nvcc 13 (the ahead-of-time view) and NVRTC, the run-time compiler that CuPy uses in
production. CUDA 13 dropped sm_70, and the CUDA 12 packages carry no nvcc program, so sm_70 goes through NVRTC 12.9.
Compilers come from PyPI, are cached under build/cuda by version, and are never put into the virtual environment.

Fails on an error, on a warning, and on a register spill in the one-shot kernel (any function with `full` in its name).
"""

from __future__ import annotations

import argparse
import ctypes
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
CACHE = ROOT / "build" / "cuda"
TRACES = ROOT / "kernels" / "stall.cuh"  # a program of its own
INCLUDES = [ROOT / "kernels", ROOT / "proxy" / "include"]
NO_SPILL = "full"

CUDA13 = {
    "nvidia-cuda-nvcc": "13.0.88",
    "nvidia-nvvm": "13.0.88",
    "nvidia-cuda-crt": "13.0.88",
    "nvidia-cuda-runtime": "13.0.96",
    "nvidia-cuda-cccl": "13.0.85",  # cuda_fp16.h includes <nv/target>
    "nvidia-cuda-nvrtc": "13.0.88",
}
CUDA12 = {
    "nvidia-cuda-nvrtc-cu12": "12.9.86",
    "nvidia-cuda-runtime-cu12": "12.9.79",
    "nvidia-cuda-cccl-cu12": "12.9.27",
}

# 80: A100. 90: H100/H200. 120: RTX PRO 6000. 121: GB10 (DGX Spark). 70: V100, the oldest with the memory model we use.
NVCC_ARCHS = (80, 90, 120, 121)
NVRTC13_ARCHS = (121,)  # 90 is compiled with the profiling build
NVRTC12_ARCHS = (70,)


@dataclass(frozen=True)
class Function:
    name: str
    registers: int
    spill_bytes: int

    def __str__(self) -> str:
        spills = f" (spills {self.spill_bytes} B)" if self.spill_bytes else ""
        return f"{self.name} {self.registers}{spills}"


def fetch(name: str, packages: dict[str, str]) -> Path:
    """The folder that holds `packages`, downloaded once; the folder's name changes with any version."""
    folder = CACHE / "-".join([name, *packages.values()])
    if not folder.exists():
        print(f"cuda: downloading {', '.join(packages)} into {folder.relative_to(ROOT)}", flush=True)
        partial = folder.with_suffix(".partial")
        shutil.rmtree(partial, ignore_errors=True)
        pins = [f"{package}=={version}" for package, version in packages.items()]
        command = [sys.executable, "-m", "pip", "install", "-qq", "--no-deps", "--target", str(partial), *pins]
        subprocess.run(command, check=True)
        partial.rename(folder)
    return folder


def parse_ptxas(text: str) -> list[Function]:
    """Registers and spills per function, from what `ptxas -v` prints (nvcc and NVRTC print the same lines)."""
    functions: list[Function] = []
    name, spill = "", 0
    for line in text.splitlines():
        if found := re.search(r"Function properties for (\S+)", line):
            name, spill = found[1], 0
        elif found := re.search(r"(\d+) bytes spill stores, (\d+) bytes spill loads", line):
            spill = int(found[1]) + int(found[2])
        elif (found := re.search(r"Used (\d+) registers", line)) and name:
            functions.append(Function(name, int(found[1]), spill))
            name = ""
    return functions


def warnings_in(text: str) -> list[str]:
    """Warning lines, without NVRTC 12.9's word that sm_70 is on its way out, which is why 12.9 is used."""
    return [line for line in text.splitlines() if re.search(r"\bwarning\b", line) and "are deprecated" not in line]


def nvcc(toolkit: Path, source: Path, arch: int) -> str:
    """Compile with nvcc; returns what the compiler said. Raises RuntimeError where it failed."""
    command = [str(toolkit / "nvidia/cu13/bin/nvcc"), "-std=c++17", "-cubin", f"-arch=sm_{arch}", "-o", "/dev/null"]
    command += ["-Werror", "all-warnings", "-Xptxas", "-v", *(f"-I{path}" for path in INCLUDES), str(source)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    said = done.stdout + done.stderr
    if done.returncode != 0:
        raise RuntimeError(said)
    return said


def nvrtc(libraries: Path, headers: list[Path], source: Path, arch: int, *more: str) -> str:
    """Compile with the NVRTC in folder `libraries` and `more` options; returns its log. Raises RuntimeError where it
    failed."""
    # NVRTC opens its builtins by bare name; loading them first makes that name resolve without LD_LIBRARY_PATH.
    ctypes.CDLL(str(next(path for path in libraries.glob("libnvrtc-builtins.so.*"))))
    lib = ctypes.CDLL(str(next(path for path in libraries.glob("libnvrtc.so.*"))))
    program = ctypes.c_void_p()
    rc = lib.nvrtcCreateProgram(ctypes.byref(program), source.read_bytes(), source.name.encode(), 0, None, None)
    options = [f"--gpu-architecture=sm_{arch}", "-std=c++17", "--ptxas-options=-v", *more]
    options += [f"-I{path}" for path in [*INCLUDES, *headers]]
    arguments = (ctypes.c_char_p * len(options))(*map(str.encode, options))
    rc = rc or lib.nvrtcCompileProgram(program, len(options), arguments)
    size = ctypes.c_size_t()
    lib.nvrtcGetProgramLogSize(program, ctypes.byref(size))
    log = ctypes.create_string_buffer(max(size.value, 1))
    lib.nvrtcGetProgramLog(program, log)
    lib.nvrtcDestroyProgram(ctypes.byref(program))
    said = log.value.decode()
    if rc != 0:
        raise RuntimeError(f"nvrtc result {rc}\n{said}")
    return said


def main() -> int:
    parser = argparse.ArgumentParser(description="Compile the GPU kernels for every supported architecture.")
    parser.add_argument("source", nargs="?", type=Path, default=ROOT / "kernels" / "roce_ring_kernels.cu")
    source: Path = parser.parse_args().source
    if not source.exists():
        print(f"cuda: no source file {source}", file=sys.stderr)
        return 2

    cuda13, cuda12 = fetch("cuda13", CUDA13), fetch("cuda12", CUDA12)
    include13 = cuda13 / "nvidia/cu13/include"
    headers13 = [include13, include13 / "cccl"]
    headers12 = [cuda12 / "nvidia/cuda_runtime/include", cuda12 / "nvidia/cuda_cccl/include"]
    lib13, lib12 = cuda13 / "nvidia/cu13/lib", cuda12 / "nvidia/cuda_nvrtc/lib"
    jobs: dict[str, Callable[[], str]] = {
        **{f"nvcc 13.0 sm_{arch}": partial(nvcc, cuda13, source, arch) for arch in NVCC_ARCHS},
        **{f"nvrtc 13.0 sm_{arch}": partial(nvrtc, lib13, headers13, source, arch) for arch in NVRTC13_ARCHS},
        "nvrtc 13.0 sm_90 profiling": partial(nvrtc, lib13, headers13, source, 90, "-DRR_PROFILE=1"),
        **{f"nvrtc 12.9 sm_{arch}": partial(nvrtc, lib12, headers12, source, arch) for arch in NVRTC12_ARCHS},
        f"nvrtc 13.0 sm_90 {TRACES.name}": partial(nvrtc, lib13, headers13, TRACES, 90),
        f"nvrtc 12.9 sm_{NVRTC12_ARCHS[0]} {TRACES.name}": partial(nvrtc, lib12, headers12, TRACES, NVRTC12_ARCHS[0]),
    }

    problems: list[str] = []
    with ThreadPoolExecutor(2) as pool:
        futures = {title: pool.submit(compile_it) for title, compile_it in jobs.items()}
    for title, future in futures.items():
        if error := future.exception():
            problems.append(f"{title}: did not compile\n{error}")
            print(f"cuda: {title}: FAILED", flush=True)
            continue
        said = future.result()
        functions = parse_ptxas(said)
        registers = ", ".join(map(str, functions))
        print(f"cuda: {title}: {len(functions)} functions, registers: {registers}", flush=True)
        problems += [f"{title}: {line}" for line in warnings_in(said)]
        problems += [
            f"{title}: {f.name} spills {f.spill_bytes} bytes of registers; the one-shot kernel must not spill"
            for f in functions
            if NO_SPILL in f.name and f.spill_bytes
        ]
        if not functions:
            problems.append(f"{title}: compiled to nothing; is there a __global__ function in {source.name}?")
        elif TRACES.name not in title and not any(NO_SPILL in f.name for f in functions):
            problems.append(f"{title}: no function has '{NO_SPILL}' in its name: the spill check checks nothing")

    for problem in problems:
        print(f"cuda: {problem}", file=sys.stderr)
    passed = len(jobs) - len({problem.split(":")[0] for problem in problems})
    print(f"cuda: {passed} of {len(jobs)} compilations passed")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
