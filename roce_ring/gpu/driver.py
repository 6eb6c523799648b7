"""The calls of the CUDA driver that a session needs, by ctypes. CuPy compiles the kernels and makes the context; a
launch through its own wrapper would cost more than the launch."""

from __future__ import annotations

import ctypes as ct
from functools import cache

from ..errors import RoceRingError, SetupError

_HOST_REGISTER_PORTABLE_MAPPED = 3
_EVENT_DISABLE_TIMING = 2
_STREAM_NON_BLOCKING = 1
_CAPTURE_NONE, _CAPTURE_ACTIVE = 0, 1
_NOT_READY = 600

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
            ("cuStreamWaitEvent", [_handle, _handle, _u32]),
            ("cuStreamIsCapturing", [_handle, ct.POINTER(ct.c_int)]),
            ("cuStreamGetCaptureInfo_v2", [_handle, ct.POINTER(ct.c_int), ct.POINTER(ct.c_uint64), *[_pointer] * 3]),
            ("cuEventCreate", [ct.POINTER(_handle), _u32]),
            ("cuEventDestroy_v2", [_handle]),
            ("cuEventRecord", [_handle, _handle]),
            ("cuEventQuery", [_handle]),
            ("cuLaunchKernel", [_handle, *[_u32] * 7, _handle, _pointer, _pointer]),
            ("cuOccupancyMaxActiveBlocksPerMultiprocessor", [ct.POINTER(ct.c_int), _handle, ct.c_int, ct.c_size_t]),
        ):
            function = getattr(self._lib, name)
            function.restype, function.argtypes = ct.c_int, arguments
        lib = self._lib
        self._push, self._pop, self._launch = lib.cuCtxPushCurrent_v2, lib.cuCtxPopCurrent_v2, lib.cuLaunchKernel
        self._is_capturing, self._capture_info = lib.cuStreamIsCapturing, lib.cuStreamGetCaptureInfo_v2

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
        self._check(self._push(context), "entering the communicator's context")
        return True

    def leave(self) -> None:
        self._pop(ct.byref(_handle()))

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

    def capture_of(self, stream: int) -> int:
        """Number of the graph capture that the stream is in; 0 if it is in none."""
        status, number = ct.c_int(), ct.c_uint64()
        code = self._is_capturing(stream, ct.byref(status))
        if not code and status.value == _CAPTURE_NONE:
            return 0
        code = code or self._capture_info(stream, ct.byref(status), ct.byref(number), None, None, None)
        if code:
            self._check(code, "asking whether the stream is in a capture")
        return number.value if status.value == _CAPTURE_ACTIVE else 0

    def new_event(self) -> int:
        event = _handle()
        self._check(self._lib.cuEventCreate(ct.byref(event), _EVENT_DISABLE_TIMING), "making an event")
        return event.value or 0

    def end_event(self, event: int) -> None:
        self._lib.cuEventDestroy_v2(event)

    def record(self, event: int, stream: int) -> None:
        self._check(self._lib.cuEventRecord(event, stream), "recording an event")

    def reached(self, event: int) -> bool:
        """Whether all that was in the stream when the event was recorded is done."""
        code = self._lib.cuEventQuery(event)
        if code and code != _NOT_READY:
            self._check(code, "asking for an event")
        return bool(code == 0)

    def wait(self, stream: int, event: int) -> None:
        self._check(self._lib.cuStreamWaitEvent(stream, event, 0), "ordering two streams")

    # ---- kernels ----

    def launch(self, function: int, blocks: int, threads: int, stream: int, argument: int) -> None:
        """`argument`: address of an array with one pointer, to the kernel's only parameter."""
        code = self._launch(function, blocks, 1, 1, threads, 1, 1, 0, stream, argument, None)
        if code:
            self._check(code, "launching a collective")

    def blocks_per_multiprocessor(self, function: int, threads: int) -> int:
        blocks = ct.c_int()
        code = self._lib.cuOccupancyMaxActiveBlocksPerMultiprocessor(ct.byref(blocks), function, threads, 0)
        self._check(code, "asking how many blocks fit the device")
        return blocks.value


@cache
def driver() -> Driver:
    """Loaded at first use. Raises SetupError where there is no driver."""
    return Driver()
