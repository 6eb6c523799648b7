"""What torch gets for an operation: a Work whose wait() means what it means with torch's own backends."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future
from datetime import timedelta
from queue import SimpleQueue
from typing import Any

import torch
import torch.distributed as dist


def done(tensors: list[Any]) -> Any:
    """The Work of what is done on a CPU, or is in the current stream of a GPU: there, wait() makes the caller's stream
    wait for it (by an event), and holds up nobody on the host."""
    future: Any = torch.futures.Future(devices=[one.device for one in tensors[:1] if one.is_cuda])
    future.set_result(tensors)
    return torch._C._distributed_c10d._create_work_from_future(future)


class Line:
    """A thread that does one thing after another. A daemon, unlike an executor's: a process that ends does not wait for
    an operation whose peers may never come; its communicators' close() ends that."""

    def __init__(self, name: str) -> None:
        self._queue: SimpleQueue[tuple[Future[None], Callable[[], None]] | None] = SimpleQueue()
        self._thread = threading.Thread(target=self._work, name=name, daemon=True)
        self._thread.start()
        self.last: Future[None] | None = None

    def put(self, task: Callable[[], None]) -> Future[None]:
        self.last = Future()
        self._queue.put((self.last, task))
        return self.last

    def _work(self) -> None:
        while (one := self._queue.get()) is not None:
            future, task = one
            try:
                task()
            except BaseException as error:
                future.set_exception(error)
            else:
                future.set_result(None)

    def end(self) -> None:
        """When it has done what it was given."""
        self._queue.put(None)
        self._thread.join()


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
