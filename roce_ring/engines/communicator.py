"""What an engine sees: the object that SGLang and vLLM expect of a custom all-reduce, over our AllReduce."""

from __future__ import annotations

import contextlib
import logging
import weakref
from collections.abc import Iterator
from typing import Any

from ..communicator import AllReduce
from ..errors import UnsupportedError
from ..native import DTYPES
from ..tensors import Tensor, describe

# Prefills come in thousands of sizes; a log is for people.
MOST_SHAPES_TOLD = 32
MOST_SHAPES_KNOWN = 256

_live: weakref.WeakSet[Communicator] = weakref.WeakSet()


class Communicator:
    """Never falls back by itself: what `should_custom_ar` takes depends on dtype, shape and size, so all ranks answer
    alike, and a failed session raises on all ranks, for good.

    `gather`: all-gathers go through here too. `beyond`: what the engine uses for the rest, for the log."""

    disabled = False
    original_disabled = False  # SGLang puts `disabled` back to this after a piecewise capture

    def __init__(self, all_reduce: AllReduce, *, gather: bool, log: logging.Logger, beyond: str) -> None:
        self._ours, self._gather, self._log, self._beyond = all_reduce, gather, log, beyond
        self.world_size, self.rank = all_reduce.world, all_reduce.rank
        self.max_size = all_reduce.settings.max_bytes
        self._told: set[tuple[object, ...]] = set()
        self._fits: set[tuple[object, ...]] = set()
        self._device = int(all_reduce.session.device.partition(":")[2] or -1)  # as torch numbers them; the CPU is -1
        _live.add(self)
        # Engines drop a communicator without closing it. This object is all they hold, so its end is the session's.
        self._at_end = weakref.finalize(self, all_reduce.close)

    # ---- all-reduce ----

    def should_custom_ar(self, x: Any) -> bool:
        # Decoding asks about the same few shapes before every all-reduce, and a look into a set is cheaper than to find
        # out all about a tensor.
        if (x.dtype, x.shape) in self._fits:
            return bool(x.get_device() == self._device)
        t = self._described(x)
        # Not by strides: a view on one rank alone must not send that rank elsewhere.
        fits = (
            t is not None
            and t.device == self._ours.session.device
            and t.dtype in DTYPES
            and 0 < t.bytes <= self.max_size
        )
        if fits and len(self._fits) < MOST_SHAPES_KNOWN:
            self._fits.add((x.dtype, x.shape))
        return fits

    def custom_all_reduce(self, x: Any) -> Any:
        """A new tensor with the sum. Raises SessionAborted once a rank is lost."""
        if (x.dtype, x.shape) not in self._told:
            self._tell("all-reduce", x, (x.dtype, x.shape))
        return self._ours.all_reduce(x.contiguous())

    # ---- all-gather ----

    def should_all_gather(self, x: Any, out: Any) -> bool:
        """`x`: this rank's part. `out`: room for all ranks' parts one behind the other, in any shape."""
        one, room = self._part(x), self._described(out)
        return (
            one is not None
            and room is not None
            and room.contiguous
            and (room.device, room.dtype) == (one.device, one.dtype)
            and room.count == one.count * self.world_size
        )

    def all_gather_into(self, out: Any, x: Any) -> None:
        self._tell_of_gather(x)
        self._ours.all_gather(x.contiguous().view(-1), out=out.view(-1))

    def gathered(self, x: Any, dim: int) -> Any:
        """A new tensor with all ranks' x side by side along the first or the last dimension; None: left to the
        engine."""
        dim += x.dim() if dim < 0 else 0
        if dim not in (0, x.dim() - 1) or self._part(x) is None:
            return None
        self._tell_of_gather(x)
        return self._ours.all_gather(x.contiguous(), dim)

    def _part(self, x: Any) -> Tensor | None:
        """One rank's part, if it can be gathered here."""
        one = self._described(x) if self._gather else None
        if one is None or one.device != self._ours.session.device:
            return None
        return one if 0 < one.bytes <= self._ours.settings.gather_bytes else None

    @staticmethod
    def _described(x: Any) -> Tensor | None:
        try:
            return describe(x)
        except UnsupportedError:
            return None

    def _tell_of_gather(self, x: Any) -> None:
        shape = ("gather", x.shape, x.dtype)
        if shape not in self._told:
            self._tell("all-gather", x, shape)

    # ---- what vLLM's models ask its own ----

    fully_connected = False  # by NVLink
    mnnvl_lamport_ag_multicast_ptr = 0

    def custom_all_gather(self, x: Any) -> Any:
        return self.gathered(x, 0)

    def custom_reduce_scatter(self, x: Any) -> None:
        """Left to the engine."""

    # ---- life ----

    @contextlib.contextmanager
    def capture(self) -> Iterator[None]:
        """Around all of an engine's graph captures. Warm-up steps inside run real collectives: that loads every kernel
        and keeps the ranks in step."""
        with self._ours.capture():
            yield

    def check(self) -> None:
        """Raises SessionAborted if the session has ended; a microsecond otherwise."""
        self._ours.check()

    def close(self) -> None:
        _live.discard(self)
        self._at_end()

    def _tell(self, what: str, x: Any, shape: tuple[object, ...]) -> None:
        """One line for each shape that is routed here for the first time."""
        if len(self._told) > MOST_SHAPES_TOLD:
            return
        self._told.add(shape)
        if self.rank:
            return
        if len(self._told) > MOST_SHAPES_TOLD:
            self._log.info("roce-ring: %d shapes told; further ones are routed without a line", MOST_SHAPES_TOLD)
            return
        settings, t = self._ours.settings, describe(x)
        gathers = what == "all-gather"
        how = "" if gathers else f": {self._ours.describe_choice(t.bytes)}"
        limit = settings.gather_bytes if gathers else settings.max_bytes
        self._log.info("roce-ring: %s %d B %s%s; above %d B: %s", what, t.bytes, t.dtype, how, limit, self._beyond)


def live() -> list[Communicator]:
    """Those that this process has open."""
    return list(_live)


def check_all() -> None:
    """Raises SessionAborted if any has ended."""
    for one in _live:
        one.check()
