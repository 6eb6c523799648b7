"""Proves one path with real RDMA writes, outside any session: a queue pair on one port, its peer's on another.

    with Probe("rocep1s0f0", "192.168.101.1", flow_label=path.flow_label) as probe:
        probe.connect(endpoint_of_the_peer)  # probe.endpoint goes the other way
        result = probe.write(count=3, size=4096, timeout_s=1.0)

Both ends must be connected before either writes; whoever is written into has nothing to do.
"""

from __future__ import annotations

import ctypes as ct
import ipaddress
from dataclasses import dataclass
from types import TracebackType

from .errors import SetupError
from .native import call, native

ENDPOINT_BYTES = 48  # rr_endpoint
_MAX_COUNT = 4096


@dataclass(frozen=True, slots=True)
class ProbeResult:
    """`ok`: every write was acknowledged. `why`: else what happened, in one sentence. `latencies_us`: of each write
    that was, from posting it to its acknowledgement."""

    ok: bool
    why: str
    latencies_us: tuple[float, ...]


class Probe:
    """`rdma`: device name; `address`: IPv4 address of its port, without prefix length; `flow_label`: the planned
    path's; `size`: bytes of the largest write, a multiple of 8 to 1 MiB. Opening takes at most 2 s (a port that has
    just come up needs some time for its GID), connecting about a second where the peer's MAC cannot be found. May be
    used from any thread, by one at a time. Raises SetupError."""

    def __init__(self, rdma: str, address: str, flow_label: int = 0, size: int = 65536) -> None:
        self._lib = native().proxy
        self._probe: int | None = None
        if "verbs" not in native().providers:
            raise SetupError("this build has no verbs provider", "install libibverbs-dev and then the package again")
        try:
            ipv4 = int.from_bytes(ipaddress.IPv4Address(address).packed, "little")
        except ValueError:
            raise SetupError(f"'{address}' is no IPv4 address", "give the port's planned one, without '/24'") from None
        self._probe = _call(self._lib.rr_probe_open, rdma.encode(), ipv4, flow_label, size)
        out = ct.create_string_buffer(ENDPOINT_BYTES)
        self._lib.rr_probe_endpoint(self._probe, out)
        self.endpoint: bytes = out.raw

    def connect(self, peer: bytes) -> None:
        """`peer`: the other probe's `endpoint`. Raises SetupError."""
        if len(peer) != ENDPOINT_BYTES:
            raise SetupError(
                f"the peer's endpoint has {len(peer)} bytes, expected {ENDPOINT_BYTES}",
                "both ends must run the same version",
            )
        _call(self._lib.rr_probe_connect, self._open(), peer)

    def write(self, count: int = 3, size: int = 4096, timeout_s: float = 1.0) -> ProbeResult:
        """`count` writes of `size` bytes, one after the other, each with a time limit. A path that does not work is a
        result; raises SetupError only for arguments out of bounds (1 to 4096 writes, 1 ms to 60 s) and for a probe that
        is not connected, closed, or has failed before."""
        took = (ct.c_uint64 * max(1, min(count, _MAX_COUNT)))()
        why = ct.create_string_buffer(1024)
        limit_ms = round(timeout_s * 1000)
        done = self._lib.rr_probe_write(self._open(), count, size, limit_ms, took, why, len(why))
        if done < 0:
            raise _error(why.value.decode(errors="replace"))
        return ProbeResult(done == count, why.value.decode(errors="replace"), tuple(ns / 1000 for ns in took[:done]))

    def close(self) -> None:
        """Gives the queue pair back. Safe to call twice."""
        probe, self._probe = self._probe, None
        if probe is not None:
            self._lib.rr_probe_close(probe)

    def _open(self) -> int:
        if self._probe is None:
            raise SetupError("this probe is closed", "make a new one")
        return self._probe

    def __enter__(self) -> Probe:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def _call(function: object, *arguments: object) -> int:
    try:
        return call(function, *arguments)
    except SetupError as error:
        raise _error(error.message) from None


def _error(sentence: str) -> SetupError:
    """The C library ends a sentence with '; ' and what to do."""
    message, _, hint = sentence.partition("; ")
    return SetupError(message, hint)
