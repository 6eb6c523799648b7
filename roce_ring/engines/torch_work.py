"""What torch gets for an operation: a Work whose wait() means what it means with torch's own backends."""

from __future__ import annotations

from concurrent.futures import Future
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist


def done(tensors: list[Any]) -> Any:
    """The Work of what is done on a CPU, or is in the current stream of a GPU: there, wait() makes the caller's stream
    wait for it (by an event), and holds up nobody on the host."""
    device = tensors[0].device
    future: Any = torch.futures.Future(devices=[device] if device.type == "cuda" else None)
    future.set_result(tensors)
    return torch._C._distributed_c10d._create_work_from_future(future)


class Later(dist.Work):  # type: ignore[misc]
    """The Work of what another thread will have done."""

    def __init__(self, future: Future[None], tensors: list[Any]) -> None:
        super().__init__()
        self._future, self._tensors = future, tensors

    def wait(self, timeout: timedelta = timedelta(0)) -> bool:
        """Raises what went wrong. `timeout`: 0 waits as long as the operation may take by its settings."""
        seconds = timeout.total_seconds()
        try:
            self._future.result(seconds if seconds > 0 else None)
        except TimeoutError as error:
            if self._future.done():
                raise
            raise dist.DistBackendError(f"the operation is not finished after {seconds:g} s") from error
        return True

    def synchronize(self) -> None:
        self.wait()

    def is_completed(self) -> bool:
        return self._future.done()

    def is_success(self) -> bool:
        return self._future.done() and self._future.exception() is None

    def exception(self) -> BaseException | None:
        return self._future.exception() if self._future.done() else None

    def result(self) -> list[Any]:
        self.wait()
        return self._tensors

    def get_future(self) -> Any:
        """A torch Future of the tensors. It goes through then() because only what a callback raises is an error for C++
        too, such as DDP's reducer."""
        begun: Any = torch.futures.Future()
        ready = begun.then(lambda _: self.result())
        self._future.add_done_callback(lambda _: begun.set_result(None))
        return ready
