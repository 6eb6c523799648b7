"""Cases on a GPU: tensors in device memory, and 40 operations of a case captured in one graph, because that is how a
decoding engine runs them."""

from __future__ import annotations

import ctypes as ct
from collections.abc import Callable
from typing import Any

from ..communicator import AllReduce
from ..errors import SetupError
from ..gpu.program import import_cupy
from .cases import GRAPH_OPS, ITEM_BYTES, Case, Spec
from .data import GUARD, STORAGE, Placed
from .runners import Ours


class _OnGpu(Placed):
    """The same bytes in device memory, which the operation sees; the host's copy is what is written and compared."""

    def __init__(self, dtype: str, count: int, offset: int, memory: Any, stream: Any) -> None:
        super().__init__(dtype, count, offset)
        self._begin_there, self._memory, self._stream = GUARD + offset, memory, stream
        self._part = self._raw[self._begin - self._begin_there : self._end + GUARD]

    def send(self) -> None:
        self._memory.data.copy_from_host_async(self._host(), self._part.nbytes, self._stream)
        self._stream.synchronize()

    def fetch(self) -> None:
        self._memory.data.copy_to_host_async(self._host(), self._part.nbytes, self._stream)
        self._stream.synchronize()

    def _host(self) -> ct.c_void_p:
        return ct.c_void_p(self._part.ctypes.data)

    def tensor(self, begin: int = 0, count: int | None = None) -> Any:
        """A CuPy array, or a torch tensor for bfloat16, which CuPy has not."""
        item, cupy = ITEM_BYTES[self.dtype], import_cupy()
        count = self.values.size - begin if count is None else count
        where = self._memory.data + self._begin_there + begin * item
        kind = cupy.int16 if self.dtype == "bfloat16" else STORAGE[self.dtype]
        array = cupy.ndarray((count,), kind, memptr=where)
        return array if self.dtype != "bfloat16" else _bfloat16(array)


def _bfloat16(array: Any) -> Any:
    import torch

    return torch.as_tensor(array, device=f"cuda:{array.device.id}").view(torch.bfloat16)


class OursOnGpu(Ours):
    """One rank's stream, memory and graphs. All memory is taken here: an allocation may wait for the device, whose
    kernels wait for the rank that allocates."""

    ops = GRAPH_OPS

    def __init__(self, communicator: AllReduce, spec: Spec) -> None:
        super().__init__(communicator)
        cupy = import_cupy()
        self._device = cupy.cuda.Device(int(communicator.session.device.partition(":")[2]))
        with self._device:
            self._stream = cupy.cuda.Stream(non_blocking=True)
            self._memory = [cupy.empty(spec.capacity + 4 * GUARD, cupy.uint8) for _ in range(2)]
            self._words = tuple(cupy.zeros(1, cupy.float32) for _ in range(2))
            self._device.synchronize()
        self._torch = None
        if "bfloat16" in spec.dtypes:
            import torch

            self._torch = torch.cuda.stream(torch.cuda.ExternalStream(self._stream.ptr, device=self._device.id))
        self._graphs: dict[Case, Any] = {}

    def __enter__(self) -> OursOnGpu:
        """From here on this thread works on the rank's stream."""
        self._device.__enter__()
        self._stream.__enter__()
        if self._torch:
            self._torch.__enter__()
            _bfloat16(self._memory[0][:2].view("int16"))  # torch gets ready
        return self

    def __exit__(self, *error: object) -> None:
        self._stream.synchronize()
        if self._torch:
            self._torch.__exit__(*error)
        self._stream.__exit__(*error)
        self._device.__exit__(*error)

    def barrier(self) -> None:
        self._communicator.all_reduce(*self._words, mode=self._meeting)
        self._stream.synchronize()

    def place(self, which: int, dtype: str, count: int, offset: int = 0) -> Placed:
        return _OnGpu(dtype, count, offset, self._memory[which], self._stream)

    def bind(self, case: Case, x: Any, out: Any) -> Callable[[], object]:
        put = super().bind(case, x, out)

        def call() -> None:
            put()
            self._stream.synchronize()
            self._communicator.check()

        return call

    def timed(self, case: Case, x: Any, out: Any) -> Callable[[], object]:
        """A replay of the case's graph, to its end. The tensors lie where they lay when it was captured."""
        graph = self._graphs.get(case)
        if graph is None:
            put = super().bind(case, x, out)
            self._stream.begin_capture()
            for _ in range(GRAPH_OPS):
                put()
            graph = self._graphs[case] = self._stream.end_capture()

        def replay() -> None:
            graph.launch(self._stream)
            self._stream.synchronize()

        return replay


def gpu_problem(spec: Spec, world: int) -> str:
    """Why this process cannot run `spec` on its GPUs; empty if it can. Does not touch the GPU beyond counting."""
    from importlib.util import find_spec

    from ..gpu.executor import device_number

    named = spec.device.count(",") + 1
    if named not in (1, world):
        return f"--device {spec.device} names {named} GPUs for {world} ranks: name one for all, or one for each"
    try:
        for rank in range(named):
            device_number(spec.device_of(rank))
    except SetupError as error:
        return error.message
    if "bfloat16" in spec.dtypes and find_spec("torch") is None:
        return "bfloat16 on a GPU needs torch, which is not installed: pip install torch, or leave bf16 out of --dtype"
    return ""
