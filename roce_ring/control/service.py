"""What the control server asks of a session."""

from __future__ import annotations

from typing import Protocol

from .model import IdlePolicy, RankEvent, RankInfo, RankState, RankStats

# Name that health checks ask for; "" answers the same.
HEALTH_SERVICE = "roce_ring.v1.RankService"


class RankControl(Protocol):
    """Called from the server's threads, several at once, at any time from INIT to CLOSED. Nothing here may wait for a
    collective or for a device, except `drain` and `events`, which end by their time limit. A RoceRingError that a call
    raises reaches the caller as FAILED_PRECONDITION with its sentence."""

    def info(self) -> RankInfo: ...

    def state(self) -> RankState: ...

    def stats(self) -> RankStats: ...

    def set_idle(self, idle_spins: int | None, nap_us: int | None) -> IdlePolicy:
        """None keeps a value. Returns the policy in force from now on."""
        ...

    def abort(self, reason: str) -> None:
        """Ends the session on all ranks. A second abort changes nothing: the first reason stands."""
        ...

    def drain(self, timeout_s: float) -> bool:
        """Refuses new operations; true once the started ones have finished, false when the time is over first."""
        ...

    def events(self, after: int, timeout_s: float) -> list[RankEvent]:
        """Events with an index above `after`, oldest first; waits up to `timeout_s` while there are none."""
        ...
