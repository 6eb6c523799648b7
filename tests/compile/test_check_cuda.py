"""The CUDA compile check must be able to fail: it reads spills and warnings out of what the compilers really print."""

from __future__ import annotations

from tests.compile import check_cuda

PTXAS = """\
ptxas info    : 0 bytes gmem
ptxas info    : Compiling entry function 'rr_full_f16' for 'sm_70'
ptxas info    : Function properties for rr_full_f16
ptxas         .     64 bytes stack frame, 40 bytes spill stores, 24 bytes spill loads
ptxas info    : Used 255 registers, used 0 barriers, 384 bytes cmem[0]
ptxas info    : Compiling entry function 'rr_ring_f16' for 'sm_70'
ptxas info    : Function properties for rr_ring_f16
    0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads
ptxas info    : Used 12 registers, used 0 barriers
"""


def test_spills_are_read_from_both_compilers_spelling() -> None:
    """Guards the no-spill rule: nvcc indents the spill line, NVRTC prefixes it with `ptxas .`"""
    functions = {f.name: f for f in check_cuda.parse_ptxas(PTXAS)}
    assert functions["rr_full_f16"].spill_bytes == 64
    assert functions["rr_full_f16"].registers == 255
    assert functions["rr_ring_f16"].spill_bytes == 0


def test_only_the_known_deprecation_is_not_a_warning() -> None:
    """Guards 'warnings are errors' for NVRTC, which has no option for it."""
    known = "nvrtc: warning: Architectures prior to '<compute/sm>_75' are deprecated and may be removed later"
    real = 'k.cu(3): warning #177-D: variable "x" was declared but never referenced'
    assert check_cuda.warnings_in(f"{known}\n{real}") == [real]
