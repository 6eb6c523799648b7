"""AllReduce: the one public class. A communicator over all ranks of one exchange."""

from __future__ import annotations

import contextlib
import ctypes as ct
import dataclasses
import os
import zlib
from collections.abc import Iterator, Sequence
from multiprocessing.util import Finalize
from typing import TYPE_CHECKING, Any

from .errors import ConfigError, RoceRingError, UnsupportedError
from .exchange import Exchange, RendezvousExchange, Tls, TorchExchange, gather_errors
from .fused import add_norm, add_prefetch
from .ladder.model import Profile as LadderProfile
from .modes import mode as mode_by_name
from .native import ALL_GATHER, ALL_REDUCE, DTYPES, MAX_WORLD, REDUCE_SCATTER, WAVE_ALL, WAVE_TWO, Launch, Op
from .session import Session
from .settings import Settings
from .tensors import Tensor, current_stream, describe, empty
from .topology import Topology

if TYPE_CHECKING:
    from .gpu.repeats import Repeats


class AllReduce:
    """Sums, gathers and scatters tensors over `world` ranks. Every rank makes the same calls, in the same order, with
    tensors of the same shape and dtype.

    Takes C-contiguous numpy arrays and torch CPU tensors of float32, float16 and bfloat16 (all-gather: any dtype), of 1
    element up to `settings.max_bytes` (`gather_bytes` for all-gather shards, which defaults to max_bytes here), at any
    alignment. The result has the same bits on every rank and on every repeat.

    `device`: "cpu", or "cuda" or "cuda:N" for CuPy arrays and torch tensors of that GPU (docs/gpu.md). There a call
    puts the operation into the current stream and returns; in a graph capture it becomes part of the graph. check()
    says whether work that was put into a stream has failed.

    `profile`: kernels that note where their time goes, a little slower (session.read_profiles; bench --profile).

    Collective constructor: raises SetupError on all ranks, naming every offender, or on none. After a failed operation
    the communicator stays failed on all ranks until reset()."""

    def __init__(
        self,
        exchange: Exchange,
        settings: Settings | None = None,
        topology: Topology | None = None,
        *,
        device: str = "cpu",
        first_seq: int = 0,
        serve: bool = True,
        profile: bool = False,
    ) -> None:
        if not 2 <= exchange.world <= MAX_WORLD:
            raise ConfigError(
                f"the world is {exchange.world}, expected 2 to {MAX_WORLD} ranks", "alone there is nothing to reduce"
            )
        settings = Settings.from_env(os.environ) if settings is None else settings
        if settings.gather_bytes == 0:
            settings = dataclasses.replace(settings, gather_bytes=settings.max_bytes)
        self._exchange, self.settings, self._serve, self._device = exchange, settings, serve, device
        self._profile = profile
        self._forced = None if settings.mode == "auto" else LadderProfile(settings.mode)
        self._topology = topology or _topology(exchange, settings)
        self._reaches_all = self._topology.complete
        self.rank, self.world = exchange.rank, exchange.world
        self._pid = os.getpid()
        self._capturing = False
        self._tags: dict[tuple[object, ...], int] = {}
        self._begin(first_seq)
        # A process that ends without close(), or drops its communicator, still says good-bye, so that its peers hear
        # "closed" and not "dead". Not atexit: processes of multiprocessing never run that.
        self._at_exit = Finalize(None, self.close, exitpriority=0)

    def _begin(self, first_seq: int) -> None:
        """A new session, and on a GPU a short way for what it does again and again."""
        self.session = Session(
            self._exchange,
            self.settings,
            self._topology,
            device=self._device,
            first_seq=first_seq,
            serve=self._serve,
            profile=self._profile,
        )
        self._repeats: Repeats | None = None
        if self.session.device != "cpu":
            from .gpu.repeats import Repeats

            self._repeats = Repeats(self.session)

    @classmethod
    def from_torch(
        cls,
        group: Any = None,
        *,
        settings: Settings | None = None,
        topology: Topology | None = None,
        device: str = "cpu",
        serve: bool = True,
    ) -> AllReduce:
        """Over a torch.distributed CPU (gloo) process group; None is the default group."""
        return cls(TorchExchange(group), settings, topology, device=device, serve=serve)

    @classmethod
    def from_rendezvous(
        cls,
        address: str,
        rank: int,
        world: int,
        *,
        timeout_s: float = 60.0,
        tls: Tls | None = None,
        settings: Settings | None = None,
        topology: Topology | None = None,
        device: str = "cpu",
        serve: bool = True,
    ) -> AllReduce:
        """Ranks meet at `address`: "unix:/path" or "127.0.0.1:port" on one machine, "host:port" with mutual TLS between
        machines (see RendezvousExchange)."""
        settings = Settings.from_env(os.environ) if settings is None else settings
        exchange = RendezvousExchange(address, rank, world, job=settings.name, timeout_s=timeout_s, tls=tls)
        try:
            return cls(exchange, settings, topology, device=device, serve=serve)
        except BaseException:
            exchange.close()
            raise

    # ---- what it takes ----

    def should_all_reduce(self, x: Any) -> bool:
        """Whether all_reduce takes `x`. Depends on dtype, size, contiguity and device only, so all ranks answer
        alike."""
        try:
            return self._refusal(describe(x), self.settings.max_bytes) is None
        except UnsupportedError:
            return False

    def _refusal(self, t: Tensor, limit: int) -> tuple[str, str] | None:
        """What is wrong, and how to fix it."""
        if t.device != self.session.device:
            expected = f"the tensor is on {t.device}, expected {self.session.device}"
            return expected, "copy it, or leave it to another all-reduce"
        if t.dtype not in DTYPES:
            return f"dtype {t.dtype} is not one of {', '.join(DTYPES)}", "convert it"
        if not t.contiguous:
            return "the tensor is not contiguous", "pass a contiguous copy"
        if t.bytes == 0:
            return "the tensor is empty", "leave the call out on all ranks"
        if t.bytes > limit:
            return (
                f"the tensor has {t.bytes} bytes, at most {limit} are taken",
                "raise ROCE_RING_MAX_BYTES on all ranks",
            )
        return None

    def _checked(self, x: Any, limit: int, what: str) -> Tensor:
        t = describe(x)
        refusal = self._refusal(t, limit)
        if refusal:
            raise UnsupportedError(f"{what}: {refusal[0]}", refusal[1])
        self._same_process()
        return t

    def _complete(self, what: str) -> None:
        if not self._reaches_all:
            raise UnsupportedError(
                f"{what} needs a path between every two ranks; this session has those of ring neighbours",
                f"set ROCE_RING_MODE to auto: mode {self.settings.mode} leaves the others out",
            )

    def _same_process(self) -> None:
        if os.getpid() != self._pid:
            raise RoceRingError(
                "forked",
                "this communicator belongs to the process that made it, not to its child",
                "make one after the fork",
            )

    def _out(self, x: Any, wanted: Tensor, out: Any, shape: tuple[int, ...], what: str) -> tuple[Any, Tensor]:
        """`wanted`: what x is."""
        if out is None:
            if wanted.library == "cupy" and self.session.capturing(current_stream(wanted)):
                raise UnsupportedError(
                    f"{what}: CuPy's memory pool cannot give an output inside a graph capture",
                    "pass out=, made before the capture and kept as long as the graph",
                )
            out = empty(x, shape)
        t = describe(out)
        if (t.shape, t.dtype, t.device, t.contiguous, t.writable) != (shape, wanted.dtype, wanted.device, True, True):
            form = f"{'' if t.contiguous else 'non-contiguous '}{'' if t.writable else 'read-only '}"
            raise UnsupportedError(
                f"{what}: out is a {form}{t.dtype}{list(t.shape)} on {t.device}, "
                f"expected a contiguous writable {wanted.dtype}{list(shape)} on {wanted.device}"
            )
        return out, t

    # ---- operations ----

    def all_reduce(
        self,
        x: Any,
        out: Any = None,
        *,
        mode: str | None = None,
        fp32_partials: bool = False,
        residual: Any = None,
        norm_weight: Any = None,
        eps: float = 1e-6,
        prefetch: Sequence[Any] = (),
    ) -> Any:
        """The sum of x over all ranks, in `out` (same shape and dtype; may be x itself), or in a new tensor.

        `mode`: one of modes.modes(); None or "auto" takes the settings' (by default the best for the size).
        `fp32_partials`: modes that pass partial sums on carry a 16-bit dtype's as fp32, for
        twice the bytes and one rounding.
        `residual` (like x) and `norm_weight` (like one row of x, the last dimension): adds the sum to the residual in
        place, and returns (RMSNorm of that with `eps`, in `out`; the residual). Same launch, same bits on all ranks.
        `prefetch`: up to 8 tensors that are read next, such as the next layer's weights. What fits the cache is asked
        for while the operation waits for its peers. They must live as long as a graph that this call is captured in."""
        asked = (mode, fp32_partials)
        if not isinstance(prefetch, (list, tuple)):
            kind = type(prefetch).__name__
            raise UnsupportedError(f"all_reduce: prefetch is a {kind}, expected a list of tensors")
        plain = residual is None and norm_weight is None and not prefetch
        if self._repeats is not None and plain:
            done = self._repeats.again(x, out, asked)
            if done is not None:
                return done
        t = self._checked(x, self.settings.max_bytes, "all_reduce")
        out, to = self._out(x, t, out, t.shape, "all_reduce")
        if 0 < abs(to.pointer - t.pointer) < t.bytes:  # ring modes would overwrite input that they still need
            raise UnsupportedError(
                "all_reduce: out overlaps x without being x", "pass x itself, or memory apart from x"
            )
        if mode in (None, "auto"):
            chosen_for = self._profile_for(t.bytes)
            mode, fp32_partials = chosen_for.mode, fp32_partials or chosen_for.fp32_partials
        chosen = mode_by_name(mode, self.world, self._reaches_all, self.session.access)
        op = self.session.op()
        op.kind, op.mode, op.dtype, op.count = ALL_REDUCE, chosen.value, DTYPES[t.dtype], t.count
        op.fp32_partials = int(fp32_partials and chosen.partials and t.dtype != "float32")
        same: tuple[object, ...] = (t.dtype, t.shape)
        fused = residual is not None or norm_weight is not None
        if fused:
            add_norm(op, t, to, chosen, residual, norm_weight, eps)
            same = (*same, eps)
        if prefetch:
            add_prefetch(op, prefetch, self.session.device, self.session.prefetch_bytes)
        launch = self._launch(op, t, to, same)
        if self._repeats is not None and launch is not None and plain:
            self._repeats.remember(x, t, asked, launch)
        return (out, residual) if fused else out

    def choose_mode(self, size_bytes: int) -> str:
        """The mode that all_reduce takes for a payload of this size: the settings', or the ladder's."""
        return self._profile_for(size_bytes).mode

    def describe_choice(self, size_bytes: int) -> str:
        """For a log, such as "full, 2 blocks"."""
        blocks = self.session.blocks(size_bytes)
        return f"{self.choose_mode(size_bytes)}, {blocks} block{'s' if blocks > 1 else ''}"

    def _profile_for(self, size_bytes: int) -> LadderProfile:
        return self._forced or self.session.ladder.profile(size_bytes)

    def reduce_scatter(self, x: Any, out: Any = None) -> Any:
        """x has shape [world * n, ...]; returns rows [rank * n, (rank + 1) * n) of its sum over all ranks."""
        self._complete("reduce_scatter")
        t = self._checked(x, self.settings.max_bytes, "reduce_scatter")
        if not t.shape or t.shape[0] % self.world:
            raise UnsupportedError(
                f"reduce_scatter: the first dimension of {list(t.shape)} is no multiple of the world of {self.world}"
            )
        out, to = self._out(x, t, out, (t.shape[0] // self.world, *t.shape[1:]), "reduce_scatter")
        op = self.session.op()
        op.kind, op.dtype, op.count = REDUCE_SCATTER, DTYPES[t.dtype], t.count // self.world
        self._launch(op, t, to, (t.dtype, t.shape))
        return out

    def all_gather(self, x: Any, dim: int = 0, out: Any = None, *, sizes: Sequence[int] | None = None) -> Any:
        """All ranks' x side by side along `dim`: the first or the last dimension. `sizes`: every rank's extent of that
        dimension if they differ, the same list on all ranks."""
        self._complete("all_gather")
        t = describe(x)
        last = len(t.shape) - 1
        if not t.shape or dim not in (0, last, -1):
            raise UnsupportedError(f"all_gather: dim is {dim} of shape {list(t.shape)}, expected the first or the last")
        dim = last if dim in (-1, last) and last > 0 and dim != 0 else 0
        extents = list(sizes) if sizes is not None else [t.shape[dim]] * self.world
        if (
            not all(isinstance(one, int) for one in extents)
            or len(extents) != self.world
            or min(extents) < 0
            or extents[self.rank] != t.shape[dim]
        ):
            raise UnsupportedError(
                f"all_gather: sizes {extents} do not fit: "
                f"expected {self.world} sizes of which number {self.rank} is {t.shape[dim]}"
            )
        rows = 1
        for one in t.shape[:dim]:
            rows *= one
        unit = t.item_bytes
        for one in t.shape[dim + 1 :]:
            unit *= one
        largest = rows * max(extents) * unit
        if not t.contiguous or t.device != self.session.device or not 1 <= largest <= self.settings.gather_bytes:
            reason = (
                "the tensor is not contiguous" if not t.contiguous
                else f"the tensor is on {t.device}, expected {self.session.device}" if t.device != self.session.device
                else f"the largest shard has {largest} bytes, expected 1 to {self.settings.gather_bytes}"
            )  # fmt: skip
            raise UnsupportedError(
                f"all_gather: {reason}", "raise ROCE_RING_GATHER_BYTES on all ranks for larger shards"
            )
        self._same_process()
        shape = (*t.shape[:dim], sum(extents), *t.shape[dim + 1 :])
        out, to = self._out(x, t, out, shape, "all_gather")
        op = self.session.op()
        op.kind, op.rows, op.dtype = ALL_GATHER, rows, DTYPES["float32"]
        op.width[: self.world] = [extent * unit for extent in extents]
        self._launch(op, t, to, (t.dtype, dim, t.shape[:dim], t.shape[dim + 1 :]))
        return out

    def _launch(self, op: Op, x: Tensor, out: Tensor, same: tuple[object, ...]) -> Launch | None:
        """Runs it (cpu), or launches it and returns the launch. `same`: what all ranks must have alike beside what the
        kernel sees; a difference is an error on all."""
        op.tag = self._tags.get(same) or self._tags.setdefault(same, zlib.crc32(repr(same).encode()))
        threshold = self.settings.two_wave_threshold_bytes
        op.wave = WAVE_TWO if threshold and x.bytes >= threshold else WAVE_ALL
        if x.device == "cpu":
            setattr(op, "in", x.pointer)
            op.out = out.pointer
            self.session.run(op)
            return None
        launch = self.session.prepare(op, x.bytes)
        self.session.launch(ct.byref(launch), x.pointer, out.pointer, current_stream(x))
        return launch

    @contextlib.contextmanager
    def capture(self) -> Iterator[None]:
        """Marks where an engine captures graphs. Operations inside run at once, as its warm-up expects, unless the
        current stream is being captured. Captures do not nest."""
        if self._capturing:
            raise RoceRingError("capture", "capture() inside capture(): one communicator has one capture at a time")
        self._capturing = True
        try:
            yield
        finally:
            self._capturing = False

    # ---- life ----

    def check(self) -> None:
        """Raises what ended the session, if it has ended; never waits. For work that did not raise by itself."""
        self.session.check()

    def reset(self) -> None:
        """Collective: a new session over the same exchange, with new memory and connections. The only way on after an
        abort. Ranks that died must have been replaced by a new exchange instead."""
        self._same_process()
        self.session.close()
        self._begin(0)

    def close(self) -> None:
        """Says good-bye and gives everything back. Peers that still need this rank fail with PeerClosed. A forked child
        has nothing to give back: there it does nothing."""
        if os.getpid() != self._pid:
            return
        self.session.close()
        self._exchange.close()
        self._at_exit.cancel()

    def __enter__(self) -> AllReduce:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: object) -> None:
        """Peers of a rank that somebody stopped are told so, and not that it made too few calls."""
        stopped = isinstance(error, KeyboardInterrupt) or (
            isinstance(error, SystemExit) and error.code not in (None, 0)
        )
        if stopped and os.getpid() == self._pid:
            self.session.abort("INTERRUPTED")
        self.close()


def _topology(exchange: Exchange, settings: Settings) -> Topology:
    """A rank whose plan cannot be read must not leave the others waiting: the outcome is shared first."""
    found: Topology | None = None
    error: str | None = None
    try:
        found = Topology.from_settings(settings, exchange.rank, exchange.world)
    except RoceRingError as failed:
        error = str(failed)
    gather_errors(exchange, error)
    assert found is not None  # gather_errors raised otherwise
    return found
