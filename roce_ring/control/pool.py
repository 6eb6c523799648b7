"""Threads for a gRPC server that never keep a process alive.

The interpreter waits for the threads of a ThreadPoolExecutor before it runs atexit handlers. A client that watches a
rank holds such a thread for as long as it likes, so a rank whose user forgot close() would never end.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable
from concurrent.futures import Executor, Future
from typing import Any


class DaemonPool(Executor):
    """`threads` daemon threads, started at once. gRPC needs submit() only."""

    def __init__(self, threads: int, name: str) -> None:
        self._work: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._threads = [
            threading.Thread(target=self._run, name=f"{name}-{number}", daemon=True) for number in range(threads)
        ]
        for thread in self._threads:
            thread.start()

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        future: Future[Any] = Future()

        def work() -> None:
            if future.set_running_or_notify_cancel():
                try:
                    future.set_result(fn(*args, **kwargs))
                except BaseException as error:
                    future.set_exception(error)

        self._work.put(work)
        return future

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """The threads end when they are idle; nobody waits for them."""
        for _ in self._threads:
            self._work.put(None)

    def _run(self) -> None:
        while work := self._work.get():
            work()
