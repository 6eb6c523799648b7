"""What an agent tells about its node. Field names are those of the messages in mesh_agent_service.proto."""

from __future__ import annotations

import msgspec

from ..finding import Finding


class ThingStatus(msgspec.Struct, frozen=True):
    """One thing of the plan. ``state``: same, absent or other (``seen`` says what); ``ours``: a teardown removes it."""

    key: str
    state: str
    seen: str = ""
    ours: bool = False
    packets: int = -1  # of a rule or a mark that counts; -1 for all else
    bytes: int = -1


class Holder(msgspec.Struct, frozen=True):
    """A running session that uses the paths."""

    session: str
    holder: str


class NodeStatus(msgspec.Struct, frozen=True):
    """``phase``: idle, applying, active or removing. ``forwarded``: datagrams this kernel forwarded since boot.
    ``error_counters``: "DEVICE COUNTER" -> value, of the counters that should not rise."""

    version: str
    host: str
    rank: int
    phase: str
    plan_hash: str
    staged_hash: str
    dataplane: str
    looked_unix_s: float
    forwarded: int
    things: tuple[ThingStatus, ...] = ()
    findings: tuple[Finding, ...] = ()
    leases: tuple[Holder, ...] = ()
    error_counters: dict[str, int] = {}

    @property
    def healthy(self) -> bool:
        return self.phase == "active" and not any(found.severity == "error" for found in self.findings)


class AgentEvent(msgspec.Struct, frozen=True):
    """Something that happened, numbered from 1 since the agent started."""

    index: int
    unix_s: float
    severity: str
    text: str
