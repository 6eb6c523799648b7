"""`roce-ring acs`: access control at the ports between this host's GPUs."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from .ranks import Json, text_table
from .topo import chosen_gpus

if TYPE_CHECKING:
    from ..fabric.acs import Acs, Port
    from ..fabric.snapshot import Function

SYS = Path("/sys")
STATE = Path("/run/roce-ring/acs.json")  # gone after a boot, as what it tells of
Gpus = Annotated[str, typer.Option(metavar="LIST", help="Only the ports of these GPUs, e.g. 0,1.")]
Apply = Annotated[bool, typer.Option("--apply", help="Do it. Without, only say what would be done.")]


def register(app: typer.Typer) -> None:
    acs = typer.Typer(
        name="acs",
        no_args_is_help=True,
        help="Ports that send GPU-to-GPU traffic up to the CPU and back (docs/topo.md).",
    )
    app.add_typer(acs, rich_help_panel="Tune")

    @acs.command()
    def status(gpus: Gpus = "", as_json: Json = False) -> None:
        """Show the ports on the GPUs' paths and what their control bits say.

        Exits 1 if one redirects peer traffic, 2 if one cannot be read.
        """
        acs, ports, _ = _look(gpus)
        saved = acs.saved()
        if as_json:
            rows = [
                {"bdf": one.bdf, "kind": one.kind, "acs_control": one.word, "redirects": one.redirects,
                 "before": saved.get(one.bdf)}
                for one in ports
            ]  # fmt: skip
            print(json.dumps({"schema": "roce-ring/acs-status/v1", "ports": rows}, indent=2))
        elif not ports:
            print("no port lies between GPUs here")
        else:
            columns = {"port": "<", "kind": "<", "control": "<", "redirects": "<", "sets": "<", "before": "<"}
            print(text_table(columns, [(*_cells(one), _hex(saved.get(one.bdf))) for one in ports]))
        unknown, bad = any(one.redirects is None for one in ports), any(one.redirects for one in ports)
        raise typer.Exit(1 if bad else 2 if unknown else 0)

    @acs.command()
    def clear(gpus: Gpus = "", apply: Apply = False, as_json: Json = False) -> None:
        """Clear request redirect, completion redirect and egress control at the ports on the GPUs' paths.

        Only with the IOMMU off or in passthrough. Lost with a reboot, and when a port recovers from an error or wakes:
        deploy/systemd has a unit that does it again. VMs that own a GPU lose their isolation from its neighbours.
        """
        acs, ports, chosen = _look(gpus)
        changes = acs.plan(ports, chosen)
        if apply:
            acs.clear(changes)
        _tell("clear", {bdf: list(words) for bdf, words in changes.items()}, apply, as_json)

    @acs.command()
    def restore(apply: Apply = False, as_json: Json = False) -> None:
        """Put back every control word that `clear` has changed since the machine was booted."""
        from ..fabric.acs import Acs

        acs = Acs(SYS, STATE)
        saved = acs.restore() if apply else acs.saved()
        _tell("restore", {bdf: [None, word] for bdf, word in saved.items()}, apply, as_json)


def _look(gpus: str) -> tuple[Acs, list[Port], list[Function]]:
    import platform

    from ..fabric.acs import Acs
    from ..fabric.snapshot import read
    from ..fabric.tree import Tree

    tree = Tree(read(SYS, platform.node()))
    chosen = chosen_gpus(tree, gpus)
    acs = Acs(SYS, STATE)
    return acs, acs.ports(tree, chosen), chosen


def _cells(one: Port) -> tuple[str, ...]:
    from ..fabric.acs import bits

    if one.offset is None:
        return one.bdf, one.kind, "unknown", "unknown", "(run as root)"
    if not one.offset:
        return one.bdf, one.kind, "no ACS", "no", ""
    return one.bdf, one.kind, _hex(one.word), "yes" if one.redirects else "no", bits(one.word or 0)


def _hex(word: int | None) -> str:
    return "" if word is None else f"{word:#06x}"


def _tell(verb: str, changes: dict[str, list[int | None]], applied: bool, as_json: bool) -> None:
    if as_json:
        rows = [{"bdf": bdf, "from": words[0], "to": words[1]} for bdf, words in changes.items()]
        print(json.dumps({"schema": f"roce-ring/acs-{verb}/v1", "applied": applied, "ports": rows}))
        return
    for bdf, (before, after) in changes.items():
        print(f"{bdf}: {_hex(before)}{' -> ' if before is not None else ''}{_hex(after)}")
    done = "nothing to do" if not changes else "done" if applied else "not done: this was a dry run; --apply does it"
    print(f"{len(changes)} ports: {done}")
