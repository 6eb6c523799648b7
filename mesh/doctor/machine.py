"""One machine as a look sees it: files below a root, and commands. What could not be asked is kept by section."""

from __future__ import annotations

import glob
import os
from pathlib import Path
from typing import Any, Callable  # noqa: UP035 (a remote machine may have an older Python)

from .. import inventory

Json = dict[str, Any]
Run = Callable[..., str]  # (argument list, stdin="") -> stdout; raises OSError or subprocess.SubprocessError


class Machine:
    """``unknown``: section of the evidence -> the first reason why something of it could not be read."""

    def __init__(self, root: Path = Path("/"), run: Run = inventory.run_command) -> None:
        self.root = root
        self.unknown: dict[str, str] = {}
        self.again = run  # as run(), but asks anew
        self._asked: dict[tuple[str, ...], str | Exception] = {}

    def path(self, name: str) -> Path:
        """``name``, an absolute path, below the root."""
        return self.root / name.lstrip("/")

    def text(self, name: str) -> str | None:
        return inventory.read_text(self.path(name))

    def number(self, name: str) -> int | None:
        return inventory.read_number(self.path(name))

    def find(self, pattern: str) -> list[str]:
        """Absolute paths that match, as the machine itself would call them."""
        prefix = str(self.root).rstrip("/")
        return sorted(found[len(prefix) :] for found in glob.glob(prefix + pattern))  # noqa: PTH207 (absolute pattern)

    def may_list(self, section: str, name: str) -> bool:
        """Whether this user may list folder ``name``; one that is there and closed is noted."""
        folder = self.path(name)
        for part in (*reversed(folder.parents), folder):
            if os.path.isdir(part) and not os.access(part, os.X_OK if part != folder else os.R_OK | os.X_OK):  # noqa: PTH112
                self.note(section, [f"{part} is closed to this user; look as root"])
                return False
        return True

    def note(self, section: str, problems: list[str]) -> None:
        """``problems`` say why something of ``section`` is not known; the first reason stays."""
        if problems:
            self.unknown.setdefault(section, problems[0])

    def run(self, argv: list[str], stdin: str = "") -> str:
        """A command's output. Asked once: the same question again gets the same answer."""
        key = (*argv, stdin)
        if key not in self._asked:
            try:
                self._asked[key] = self.again(argv, stdin) if stdin else self.again(argv)
            except Exception as error:  # kept for whoever asks again; ask_text() words it
                self._asked[key] = error
        answer = self._asked[key]
        if isinstance(answer, Exception):
            raise answer
        return answer

    def ask(self, section: str, argv: list[str], stdin: str = "") -> str | None:
        problems: list[str] = []
        text = inventory.ask_text(lambda words: self.run(words, stdin), argv, problems)
        self.note(section, problems)
        return text

    def ask_json(self, section: str, argv: list[str]) -> Any:
        problems: list[str] = []
        data = inventory.ask_json(self.run, argv, problems)
        self.note(section, problems)
        return data
