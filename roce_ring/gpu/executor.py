"""One session's kernels on a GPU: the region as the device sees it, the state that kernels keep between launches, and
the order of launches.

One operation at a time, in the same order on all ranks: that is the contract with the user, as for any collective.
Within it,
  - a launch goes to the stream that is current when the call is made, and waits there (by an event) for this
    session's last eager launch on another stream;
  - in a graph capture the launch becomes part of the graph. A capture sees this communicator on one stream only: two
    branches of one graph would run at the same time.
A replay is ordered by the stream it is launched on, like all that is in the graph: the host does not see it.
"""

from __future__ import annotations

import ctypes as ct
import time
from collections.abc import Callable
from struct import Struct
from typing import Any

from ..errors import RoceRingError, SetupError
from ..native import ALL_REDUCE, QUEUE_TWO_STREAMS, DeviceState, Launch, Layout, Op, ProfiledState, native
from .driver import CudaError, driver
from .program import import_cupy, key_of, program

_pack = Struct("QQQ").pack_into  # rr_queue's in, out, to: one call for three fields
_ONE_SHOT = (1, 2)  # full, full_phased
THREADS = 512
MAX_BLOCKS = 8  # of one operation; all of them wait, so all must be resident
MAX_BLOCKS_DIRECT = 32  # where the blocks move the bytes as well
# State that a graph may still look at: a replay after close() reads "failed" there and leaves.
_immortal: list[Any] = []


def device_number(device: str) -> int:
    """Of "cuda" (the current one) or "cuda:N". Raises SetupError."""
    name, _, number = device.partition(":")
    if name != "cuda" or (number and not number.isdecimal()) or device.endswith(":"):
        raise SetupError(f"device is {device!r}, expected cpu, cuda or cuda:N")
    cupy = import_cupy()
    driver()
    try:
        count = cupy.cuda.runtime.getDeviceCount()
        found = int(number) if number else cupy.cuda.runtime.getDevice()
    except cupy.cuda.runtime.CUDARuntimeError as error:
        raise SetupError(f"CUDA does not start here: {error}") from error
    if found >= count:
        raise SetupError(f"device is {device!r}, but this process sees {count} of them", "look at CUDA_VISIBLE_DEVICES")
    return int(found)


class GpuExecutor:
    """Not thread-safe: the session's lock is held around every call but capturing()."""

    def __init__(
        self, device: int, region: int, layout: Layout, state: DeviceState | ProfiledState, direct: bool
    ) -> None:
        """Everything that a launch may need is loaded here and launched once, so that nothing is loaded, compiled or
        allocated in a capture. `state`: what kernels begin with; a profiled one takes the build that fills it.
        `direct`: kernels reach peers' memory themselves; use_peers() comes before the first launch. Raises SetupError
        or CudaError."""
        self._cuda, self._cupy, self.device = driver(), import_cupy(), device
        self._region = 0
        self._stream = self._event = 0
        with self._cupy.cuda.Device(device):
            self._cupy.cuda.runtime.free(0)  # makes the context
            self.context = self._cuda.current_context()
            self._program = program(device, direct, isinstance(state, ProfiledState))
            self.name, self.l2_bytes = self._program.name, self._program.l2_bytes
            self._room = self._check_room()
            self._direct, self._most_blocks = direct, MAX_BLOCKS
            self._cuda.register(region, layout.region_bytes)
            self._region = region
            self._stream, self._event = self._cuda.new_stream(), self._cuda.new_event()
            self._state = self._new_state(state)
            self._queue = self._cuda.new_queue(self._event, region + layout.abort)
            self._queue_ref, self._launch = ct.byref(self._queue), native().kernels.rr_queue_launch
            self._launch_all_once()

    def _new_state(self, state: DeviceState | ProfiledState) -> Any:
        memory = self._cupy.empty(ct.sizeof(state), self._cupy.uint8)
        memory.data.copy_from_host(ct.addressof(state), ct.sizeof(state))
        # From pageable memory that may return before the bytes are there, and no other stream waits for it.
        self._cupy.cuda.Stream.null.synchronize()
        return memory

    @property
    def state_address(self) -> int:
        return int(self._state.data.ptr)

    def read_state(self, into: DeviceState | ProfiledState) -> None:
        """What kernels have left there. Whoever wants a certain one's finishes its stream first."""
        with self._cupy.cuda.Device(self.device):
            stream = self._cupy.cuda.ExternalStream(self._stream)
            self._state.data.copy_to_host_async(ct.c_void_p(ct.addressof(into)), ct.sizeof(into), stream)
            stream.synchronize()

    def use_peers(self, ranks_here: int) -> None:
        """`ranks_here`: ranks on this GPU, whose blocks all run at once."""
        self._most_blocks = max(1, min(MAX_BLOCKS_DIRECT, self._room // ranks_here))

    def _check_room(self) -> int:
        """Blocks that run at once. Blocks that wait for each other must all be among them. Raises SetupError."""
        kernels = set(self._program.functions.values())
        fewest = min(self._cuda.blocks_per_multiprocessor(one, THREADS) for one in kernels)
        room = fewest * self._program.multiprocessors
        if room < MAX_BLOCKS:
            raise SetupError(
                f"{self.name} (cuda:{self.device}) has room for {room} blocks of {THREADS} threads at once, "
                f"{MAX_BLOCKS} are needed: they wait for each other",
                "give this process more multiprocessors (MIG slice, MPS thread percentage)",
            )
        return room

    def _launch_all_once(self) -> None:
        """With a state that says "failed", so that the kernels leave at once and touch nothing else."""
        idle = self._new_state(DeviceState(failed=1))
        for function in set(self._program.functions.values()):
            launch = Launch(Op(state=int(idle.data.ptr)), function, 1, THREADS)
            if code := self.put(ct.byref(launch), 0, 0, self._stream):
                raise self.refusal(code)
        self._cuda.finish(self._stream)
        self._queue.ordered = 0

    @property
    def state_bytes(self) -> int:
        return int(self._state.nbytes)

    # ---- operations ----

    def capturing(self, stream: int) -> bool:
        return self._cuda.capturing(stream)

    @staticmethod
    def pieces_for(op: Op, size_bytes: int) -> int:
        """Parts in which a one-shot all-reduce travels, 0 for one; the same on all ranks. Measured over shm
        (docs/results); over a fabric every part costs messages of its own."""
        one_shot = op.kind == ALL_REDUCE and op.mode in _ONE_SHOT
        return 4 if one_shot and size_bytes >= 32768 else 0

    def prepare(self, op: Op, size_bytes: int) -> Launch:
        """`size_bytes`: of the payload."""
        function = self._program.functions[key_of(op.kind, op.mode, op.dtype)]
        return Launch(op, function, self.blocks(size_bytes), THREADS)

    def blocks(self, size_bytes: int) -> int:
        """Of a launch with this payload."""
        return min(blocks_for(size_bytes, self._direct), self._most_blocks)

    def put(self, launch: Any, at: int, to: int, stream: int) -> int:
        """`launch`: byref() of what prepare() gave; `at`, `to`: addresses of input and output. Returns when the launch
        is in the stream, with what rr_queue_launch says."""
        _pack(self._queue, 0, at, to, stream)
        return self._launch(self._queue_ref, launch)  # type: ignore[no-any-return]

    def refusal(self, code: int) -> RoceRingError:
        """What `put` returned, in words; not for an aborted session."""
        if code == QUEUE_TWO_STREAMS:
            return RoceRingError(
                "capture",
                "two streams of one graph capture use this communicator: its operations would run at the same time",
                "launch them from one stream, or make a communicator for each",
            )
        return self._cuda.queue_error(code)

    # ---- going down ----

    def close(
        self, started_and_done: Callable[[], tuple[int, int]], abort: Callable[[], None], timeout_s: float
    ) -> None:
        """Eager operations are finished first. No kernel of this session touches the region when this returns, nor will
        any replay. `abort` ends waits for peers that do not come within `timeout_s`."""
        if not self._region:
            return
        region, self._region = self._region, 0
        cuda, deadline = self._cuda, time.monotonic() + timeout_s
        entered = cuda.enter(self.context)
        try:
            while self._queue.ordered and not cuda.reached(self._event) and time.monotonic() < deadline:
                time.sleep(0.001)
            # From now on launches leave at once: any word but 0 says "failed".
            cuda.fill(self.state_address + DeviceState.failed.offset, 1, 8, self._stream)
            cuda.finish(self._stream)
            while len(set(started_and_done())) == 2 and time.monotonic() < deadline:
                time.sleep(0.001)
            if len(set(started_and_done())) == 2:
                abort()
            cuda.synchronize()
            cuda.end_event(self._event)
            cuda.end_stream(self._stream)
            cuda.unregister(region)
        except CudaError:
            return  # the context is lost, and with it whatever could touch the region
        finally:
            if self._queue.captured:
                _immortal.append((self._state, self._program))
            if entered:
                cuda.leave()


def blocks_for(size_bytes: int, direct: bool) -> int:
    """Blocks of a launch. `direct`: they reach peers' memory. docs/results has the tables that this was read off (one
    H200, four ranks)."""
    if not direct:
        return 1 if size_bytes <= 16384 else 4
    return 1 if size_bytes <= 16384 else 4 if size_bytes <= 65536 else 8 if size_bytes <= 262144 else 32
