"""What a program prints with ``--json`` where it has no answer: a reader of standard output must never find nothing."""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import sys
from collections.abc import Iterable, Sequence
from typing import Any, NoReturn

from .finding import Finding

SCHEMA = "roce-ring/error/v1"


def print_error(code: str, message: str, hint: str = "") -> None:
    """One line. Where standard output takes nothing, the sentence on standard error has to do."""
    document = {"schema": SCHEMA, "error": {"code": code, "message": message, "hint": hint}}
    try:
        print(json.dumps(document), flush=True)
    except OSError:  # what is still buffered goes nowhere, or Python would fail once more on it when it ends
        with contextlib.suppress(OSError):
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def in_one(findings: Iterable[Finding]) -> tuple[str, str, str]:
    """Code, message and hint of findings that are the whole answer: a line for each."""
    found = tuple(findings)
    said = (f"{item.code}: {item.where}: {item.seen}; expected {item.expected}" for item in found)
    return found[0].code, "\n".join(said), "; ".join(dict.fromkeys(item.fix for item in found))


class Parser(argparse.ArgumentParser):
    """Usage errors go to standard output too if ``--json`` is among the arguments."""

    _given: Sequence[str] = ()

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        self._given = sys.argv[1:] if args is None else args
        return super().parse_known_args(args, namespace)

    def error(self, message: str) -> NoReturn:
        if "--json" in self._given:
            print_error("usage", message, f"see '{self.prog} --help'")
        super().error(message)
