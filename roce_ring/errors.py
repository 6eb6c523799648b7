"""Errors that a user may see: one sentence that says what is wrong and where, and a hint how to fix it."""

from __future__ import annotations


class RoceRingError(Exception):
    """`code` is for programs, `message` and `hint` are for people."""

    def __init__(self, code: str, message: str, hint: str = "") -> None:
        super().__init__(message)
        self.code = code
        self.message = message
        self.hint = hint


class SetupError(RoceRingError):
    """Ranks could not start together, or this host could not be set up."""

    def __init__(self, message: str, hint: str = "") -> None:
        super().__init__("setup", message, hint)


class ConfigError(RoceRingError):
    """A setting or a file of settings is wrong."""

    def __init__(self, message: str, hint: str = "") -> None:
        super().__init__("config", message, hint)
