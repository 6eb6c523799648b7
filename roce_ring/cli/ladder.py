"""`roce-ring ladder`: shows, checks, compares and explains ladders."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Annotated

import typer

from ..errors import ConfigError
from .number import number
from .ranks import Json, text_table

if TYPE_CHECKING:
    from ..ladder.model import Ladder

Which = Annotated[str, typer.Argument(metavar="LADDER", help="A file, or the name of a shipped one.")]
SIZE = {"from": ">", "up to": ">", "mode": "<"}


def register(app: typer.Typer) -> None:
    ladder = typer.Typer(
        name="ladder", no_args_is_help=True, help="Which mode an all-reduce of which size takes (docs/ladder.md)."
    )
    app.add_typer(ladder, rich_help_panel="Tune")

    from .ladder_sweep import register as register_sweep

    @ladder.command()
    def show(
        which: Annotated[str, typer.Argument(metavar="[LADDER]", help="A file or a shipped one's name.")] = "",
        as_json: Json = False,
    ) -> None:
        """Print a ladder's bands of sizes, or those of all shipped ones."""
        from ..ladder.loading import shipped

        found = [find(which)] if which else list(shipped())
        if as_json:
            print(json.dumps({"schema": "roce-ring/ladder-show/v1", "ladders": [as_dict(one) for one in found]}))
            return
        print("\n\n".join(f"{headline(one)}\n{text_table(SIZE, bands(one))}" for one in found))

    @ladder.command()
    def check(file: Which, as_json: Json = False) -> None:
        """Say what is wrong with a ladder, or that nothing is.

        Exits 1 if something is, 2 if there is no such ladder.
        """
        from ..ladder.loading import parse, read

        one = known(file)
        raw = b"" if one else read(file)
        try:
            one = one or parse(raw, file)
        except ConfigError as error:
            if as_json:
                problem = {"schema": "roce-ring/ladder-check/v1", "ok": False, "problem": error.message}
                print(json.dumps(problem))
            else:
                print(error)
            raise typer.Exit(1) from None
        if as_json:
            print(json.dumps({"schema": "roce-ring/ladder-check/v1", "ok": True, "ladder": as_dict(one)}))
        else:
            print(f"right: {headline(one)}")

    @ladder.command()
    def diff(first: Which, second: Which, as_json: Json = False) -> None:
        """Print the sizes for which two ladders choose differently.

        Exits 1 if there are any.
        """
        from ..ladder.explain import differences

        a, b = find(first), find(second)
        rows = list(differences(a, b))
        if as_json:
            names = ("from_bytes", "upto_bytes", "first", "second")
            found = [dict(zip(names, row, strict=True)) for row in rows]
            print(json.dumps({"schema": "roce-ring/ladder-diff/v1", "differences": found}))
        elif rows:
            columns = {"from": ">", "up to": ">", a.name: "<", b.name: "<"} if a.name != b.name else {}
            columns = columns or {"from": ">", "up to": ">", "first": "<", "second": "<"}
            print(text_table(columns, [(f"{low:,}", f"{high:,}", ours, theirs) for low, high, ours, theirs in rows]))
        else:
            print(f"both choose alike up to {min(a.capacity, b.capacity):,} bytes")
        raise typer.Exit(1 if rows else 0)

    @ladder.command()
    def explain(
        size: Annotated[str, typer.Argument(metavar="SIZE", help="Payload in bytes.")],
        which: Annotated[
            str, typer.Option("--ladder", metavar="LADDER", help="A file, or the name of a shipped one.")
        ] = "roce-ring-mesh",
        world: Annotated[int, number(int, 0, 16, "Ranks; 0 for any.")] = 0,
        as_json: Json = False,
    ) -> None:
        """Say which mode a payload takes, why, and what else was considered."""
        from ..ladder.explain import explain as explained

        one = find(which)
        if not size.isascii() or not size.isdigit() or not 1 <= int(size[:20]) <= one.capacity:
            raise ConfigError(
                f"SIZE is {size[:40]!r}, expected a whole number of bytes from 1 to {one.capacity}",
                f"there {one.name} ends",
            )
        payload = int(size)
        (low, high), considered = explained(one, payload, world or one.file.key.world)
        if as_json:
            modes = [{"mode": c.mode, "chosen": c.chosen, "why": c.why, "median_us": c.median_us} for c in considered]
            head = {"schema": "roce-ring/ladder-explain/v1", "size_bytes": payload, "ladder": as_dict(one)}
            print(json.dumps(head | {"bucket": {"from_bytes": low, "upto_bytes": high}, "modes": modes}))
            return
        bucket = one.bucket(payload)[1]
        print(f"{payload:,} bytes: {considered[0].mode}\n{headline(one)}\nbucket {low:,} to {high:,} bytes")
        if bucket.at_bytes:
            print(f"medians are of {bucket.at_bytes:,} bytes")
        us = [f"{c.median_us:g} us" if c.median_us is not None else "" for c in considered]
        marks = ["*" if c.chosen else "" for c in considered]
        rows = [(mark, c.mode, median, c.why) for mark, c, median in zip(marks, considered, us, strict=True)]
        print("\n" + text_table({"": "<", "mode": "<", "median": ">", "why": "<"}, rows))

    register_sweep(ladder)


def find(which: str) -> Ladder:
    """A shipped ladder by name, or the file. Raises ConfigError."""
    from ..ladder.loading import load

    return known(which) or load(which)


def known(which: str) -> Ladder | None:
    """A shipped ladder by name; None if this is a file's. Raises ConfigError if it is neither."""
    from pathlib import Path

    from ..ladder.loading import shipped

    named = {one.name.removeprefix("shipped "): one for one in shipped()}
    if which in named:
        return named[which]
    if "/" not in which and not which.endswith(".json") and not Path(which).exists():
        raise ConfigError(f"there is no ladder {which!r}", f"shipped ones: {', '.join(named)}; or name a file")
    return None


def headline(one: Ladder) -> str:
    """Name, digest and where it comes from, on one line."""
    where = one.file.provenance
    key = one.file.key
    parts = [f"fabric {' and '.join(one.file.fabrics)}"]
    parts += [f"{name} {value}" for name in key.__struct_fields__ if (value := getattr(key, name)) is not None]
    return f"{one.name}: {', '.join(parts)}, digest {one.digest}; {where['kind']}: {where['source']}"


def bands(one: Ladder) -> list[tuple[str, ...]]:
    return [(f"{low:,}", f"{high:,}", mode) for low, high, mode in one.bands()]


def as_dict(one: Ladder) -> dict[str, object]:
    from msgspec import to_builtins

    return {"name": one.name, "digest": one.digest, "capacity_bytes": one.capacity, "file": to_builtins(one.file)}
