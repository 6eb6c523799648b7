"""Errors that a user may see: one sentence that says what is wrong and where, and a hint how to fix it."""

from __future__ import annotations


class RoceRingError(Exception):
    """`code` is for programs, `message` and `hint` are for people."""

    def __init__(self, code: str, message: str, hint: str = "") -> None:
        super().__init__(message)
        self.code = code
        self.message = message
        self.hint = hint

    def __str__(self) -> str:
        if not self.hint:
            return self.message
        return f"{self.message}\nfix: {self.hint}" if "\n" in self.message else f"{self.message} ({self.hint})"


class SetupError(RoceRingError):
    """Ranks could not start together, or this host could not be set up."""

    def __init__(self, message: str, hint: str = "") -> None:
        super().__init__("setup", message, hint)


class ConfigError(RoceRingError):
    """A setting or a file of settings is wrong."""

    def __init__(self, message: str, hint: str = "") -> None:
        super().__init__("config", message, hint)


class UnsupportedError(RoceRingError):
    """A tensor or a request that this communicator does not take. Nothing was done; all ranks refuse it alike."""

    def __init__(self, message: str, hint: str = "") -> None:
        super().__init__("unsupported", message, hint)


class SessionAborted(RoceRingError):
    """The session is over on all ranks. `culprit` is the rank that every rank names, or None. Only reset() helps."""

    def __init__(self, code: str, message: str, hint: str = "", culprit: int | None = None) -> None:
        super().__init__(code, message, hint)
        self.culprit = culprit

    def with_detail(self, detail: str) -> SessionAborted:
        """The same, knowing more."""
        return type(self)(self.code, f"{self.message}; {detail}", self.hint, self.culprit)


class PeerDead(SessionAborted):
    """A peer's process or host is gone."""


class PeerClosed(SessionAborted):
    """A peer closed its session while others still needed it."""


class PeerTimeout(SessionAborted):
    """A peer sent nothing before the hard deadline."""
