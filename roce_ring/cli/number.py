"""Options that are a number within bounds, refused in our words: value, option and range."""

from __future__ import annotations

from typing import Any

import typer


def number(kind: type[int] | type[float], low: float, high: float, text: str, **more: Any) -> Any:
    """A typer option. `text`: its help; `more`: what typer.Option takes beside."""
    what = "a whole number" if kind is int else "a number"

    def parse(given: object) -> float:
        try:
            value = kind(str(given))
        except ValueError:
            value = low - 1
        if not low <= value <= high:  # true for nan
            raise typer.BadParameter(f"{str(given)[:60]!r} is not {what} from {low} to {high}")
        return value

    return typer.Option(parser=parse, metavar=f"{low}..{high}", help=text, **more)
