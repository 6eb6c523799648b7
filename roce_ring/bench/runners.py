"""What runs a case: our communicator, and torch's gloo beside it for comparison."""

from __future__ import annotations

import os
from collections.abc import Callable
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from ..communicator import AllReduce
from ..errors import UnsupportedError
from .cases import Case
from .data import Placed


class _OnCpu:
    """Tensors in host memory; one operation a call."""

    ops = 1

    def place(self, _which: int, dtype: str, count: int, offset: int = 0) -> Placed:
        return Placed(dtype, count, offset)


class Ours(_OnCpu):
    def __init__(self, communicator: AllReduce) -> None:
        self._communicator = communicator
        self._words: Any = (np.ones(1, np.float32), np.empty(1, np.float32))
        self._meeting = communicator.choose_mode(self._words[0].nbytes)

    def __enter__(self) -> Ours:
        return self

    def __exit__(self, *error: object) -> None:
        pass

    def barrier(self) -> None:
        """Ranks meet in the smallest operation there is: over the exchange it takes longer than what is measured."""
        self._communicator.all_reduce(*self._words, mode=self._meeting)

    def timed(self, case: Case, x: Any, out: Any) -> Callable[[], object]:
        return self.bind(case, x, out)

    def bind(self, case: Case, x: Any, out: Any) -> Callable[[], object]:
        c = self._communicator
        if case.op == "all_gather":
            return partial(c.all_gather, x, 0, out)
        if case.op == "reduce_scatter":
            return partial(c.reduce_scatter, x, out)
        return partial(c.all_reduce, x, out, mode=case.mode, fp32_partials=case.fp32_partials)


class Gloo(_OnCpu):
    """torch.distributed over loopback. Its all-reduce works in place only; bind() copies x to out once."""

    def __init__(self, store: Path, rank: int, world: int, timeout_s: float) -> None:
        os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")  # otherwise it asks the resolver for this host's name
        try:
            import torch
            import torch.distributed as dist
        except ImportError as error:
            raise UnsupportedError(
                "comparing with gloo needs torch, which is not installed", "pip install torch"
            ) from error
        torch.set_num_threads(1)  # ranks share the cores already
        dist.init_process_group(
            "gloo", init_method=f"file://{store}", rank=rank, world_size=world, timeout=timedelta(seconds=timeout_s)
        )
        self._torch, self._dist = torch, dist

    def bind(self, case: Case, x: Any, out: Any) -> Callable[[], object]:
        if x is not out:
            out[:] = x
        plain = out.view("int16") if case.dtype == "bfloat16" else out
        tensor = self._torch.from_numpy(plain).view(getattr(self._torch, case.dtype))
        return partial(self._dist.all_reduce, tensor)

    def timed(self, case: Case, x: Any, out: Any) -> Callable[[], object]:
        return self.bind(case, x, out)

    def close(self) -> None:
        self._dist.destroy_process_group()
