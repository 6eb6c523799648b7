"""The calls of the CUDA driver that a session needs, by ctypes: those of its set-up and its end. What every operation
calls, kernels/queue.c calls by address. CuPy compiles the kernels and makes the context."""

from __future__ import annotations

import ctypes as ct
from functools import cache

from ..errors import RoceRingError, SetupError
from ..native import Queue

_HOST_REGISTER_PORTABLE_MAPPED = 3
_EVENT_DISABLE_TIMING = 2
_STREAM_NON_BLOCKING = 1
_CAPTURE_ACTIVE = 1
_NOT_READY = 600

# What kernels/queue.c calls, by the name it has in rr_queue.
_QUEUE_CALLS = {
    "launch_kernel": "cuLaunchKernel",
    "is_capturing": "cuStreamIsCapturing",
    "get_capture_info": "cuStreamGetCaptureInfo_v2",
    "record_event": "cuEventRecord",
    "wait_event": "cuStreamWaitEvent",
    "get_context": "cuCtxGetCurrent",
    "push_context": "cuCtxPushCurrent_v2",
    "pop_context": "cuCtxPopCurrent_v2",
}
# RR_STEP_*: at which of them it was refused.
_QUEUE_STEPS = (
    "", "entering the communicator's context", "asking whether the stream is in a capture", "ordering two streams",
    "launching a collective", "recording an event",
)  # fmt: skip
_QUEUE_STEP_SHIFT = 16

_pointer, _handle, _u32 = ct.c_void_p, ct.c_void_p, ct.c_uint


class CudaError(RoceRingError):
    """The driver refused. After some errors (an illegal address anywhere in the process) it refuses everything."""

    def __init__(self, what: str, name: str, meaning: str) -> None:
        super().__init__("cuda", f"{what} failed: {meaning} ({name})")
        self.name = name


class Driver:
    """libcuda, with its signatures. All handles are plain integers. Calls act on the calling thread's context, if they
    take no handle."""

    def __init__(self) -> None:
        try:
            self._lib = ct.CDLL("libcuda.so.1")
        except OSError as error:
            raise SetupError(
                f"this host has no NVIDIA driver: {error}", "use a communicator for the cpu, or install the driver"
            ) from error
        for name, arguments in (
            ("cuGetErrorName", [ct.c_int, ct.POINTER(ct.c_char_p)]),
            ("cuGetErrorString", [ct.c_int, ct.POINTER(ct.c_char_p)]),
            ("cuCtxGetCurrent", [ct.POINTER(_handle)]),
            ("cuCtxPushCurrent_v2", [_handle]),
            ("cuCtxPopCurrent_v2", [ct.POINTER(_handle)]),
            ("cuCtxSynchronize", []),
            ("cuMemHostRegister_v2", [_pointer, ct.c_size_t, _u32]),
            ("cuMemHostUnregister", [_pointer]),
            ("cuMemHostGetDevicePointer_v2", [ct.POINTER(_pointer), _pointer, _u32]),
            ("cuMemsetD8Async", [_pointer, ct.c_ubyte, ct.c_size_t, _handle]),
            ("cuStreamCreate", [ct.POINTER(_handle), _u32]),
            ("cuStreamDestroy_v2", [_handle]),
            ("cuStreamSynchronize", [_handle]),
            ("cuStreamIsCapturing", [_handle, ct.POINTER(ct.c_int)]),
            ("cuEventCreate", [ct.POINTER(_handle), _u32]),
            ("cuEventDestroy_v2", [_handle]),
            ("cuEventQuery", [_handle]),
            ("cuOccupancyMaxActiveBlocksPerMultiprocessor", [ct.POINTER(ct.c_int), _handle, ct.c_int, ct.c_size_t]),
        ):
            function = getattr(self._lib, name)
            function.restype, function.argtypes = ct.c_int, arguments

    def _check(self, code: int, what: str) -> None:
        if code:
            name, meaning = ct.c_char_p(), ct.c_char_p()
            self._lib.cuGetErrorName(code, ct.byref(name))
            self._lib.cuGetErrorString(code, ct.byref(meaning))
            raise CudaError(what, (name.value or b"?").decode(), (meaning.value or str(code).encode()).decode())

    # ---- context ----

    def current_context(self) -> int:
        context = _handle()
        self._check(self._lib.cuCtxGetCurrent(ct.byref(context)), "asking for the current context")
        return context.value or 0

    def enter(self, context: int) -> bool:
        """Makes it the calling thread's. True if it was not: then leave() has to follow."""
        if self.current_context() == context:
            return False
        self._check(self._lib.cuCtxPushCurrent_v2(context), "entering the communicator's context")
        return True

    def leave(self) -> None:
        self._lib.cuCtxPopCurrent_v2(ct.byref(_handle()))

    def synchronize(self) -> None:
        self._check(self._lib.cuCtxSynchronize(), "waiting for the device")

    # ---- memory ----

    def register(self, address: int, size: int) -> None:
        """Makes host pages reachable for the device at the same address."""
        code = self._lib.cuMemHostRegister_v2(address, size, _HOST_REGISTER_PORTABLE_MAPPED)
        self._check(code, f"registering a region of {size} bytes with the device")
        seen = _pointer()
        self._check(self._lib.cuMemHostGetDevicePointer_v2(ct.byref(seen), address, 0), "mapping the region")
        if seen.value != address:
            self.unregister(address)
            raise SetupError(
                f"the device sees the region at {seen.value or 0:#x}, the host at {address:#x}; they must be equal",
                "this device has no unified addressing with host memory: report it",
            )

    def unregister(self, address: int) -> None:
        self._check(self._lib.cuMemHostUnregister(address), "giving the region back")

    def fill(self, address: int, value: int, size: int, stream: int) -> None:
        self._check(self._lib.cuMemsetD8Async(address, value, size, stream), "writing device memory")

    # ---- streams and events ----

    def new_stream(self) -> int:
        stream = _handle()
        self._check(self._lib.cuStreamCreate(ct.byref(stream), _STREAM_NON_BLOCKING), "making a stream")
        return stream.value or 0

    def end_stream(self, stream: int) -> None:
        self._lib.cuStreamDestroy_v2(stream)

    def finish(self, stream: int) -> None:
        self._check(self._lib.cuStreamSynchronize(stream), "waiting for a stream")

    def capturing(self, stream: int) -> bool:
        """Whether it is being captured for a graph."""
        status = ct.c_int()
        self._check(self._lib.cuStreamIsCapturing(stream, ct.byref(status)), _QUEUE_STEPS[2])
        return status.value == _CAPTURE_ACTIVE

    def new_event(self) -> int:
        event = _handle()
        self._check(self._lib.cuEventCreate(ct.byref(event), _EVENT_DISABLE_TIMING), "making an event")
        return event.value or 0

    def end_event(self, event: int) -> None:
        self._lib.cuEventDestroy_v2(event)

    def reached(self, event: int) -> bool:
        """Whether all that was in the stream when the event was recorded is done."""
        code = self._lib.cuEventQuery(event)
        if code and code != _NOT_READY:
            self._check(code, "asking for an event")
        return bool(code == 0)

    # ---- kernels ----

    def new_queue(self, event: int, abort_word: int) -> Queue:
        """For launches in the calling thread's context. `abort_word`: its address."""
        calls = {name: ct.cast(getattr(self._lib, call), _pointer).value for name, call in _QUEUE_CALLS.items()}
        return Queue(context=self.current_context(), event=event, abort=abort_word, **calls)

    def queue_error(self, code: int) -> CudaError:
        """What rr_queue_launch returned, if it is above 0."""
        try:
            self._check(code & (1 << _QUEUE_STEP_SHIFT) - 1, _QUEUE_STEPS[code >> _QUEUE_STEP_SHIFT])
        except CudaError as error:
            return error
        raise AssertionError(f"{code:#x} is no refusal")

    def blocks_per_multiprocessor(self, function: int, threads: int) -> int:
        blocks = ct.c_int()
        code = self._lib.cuOccupancyMaxActiveBlocksPerMultiprocessor(ct.byref(blocks), function, threads, 0)
        self._check(code, "asking how many blocks fit the device")
        return blocks.value


@cache
def driver() -> Driver:
    """Loaded at first use. Raises SetupError where there is no driver."""
    return Driver()
