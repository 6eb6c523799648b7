"""`roce-ring topo`: the PCI fabric of this host, or of a snapshot that somebody sent."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ..errors import ConfigError
from .ranks import Json, text_table

if TYPE_CHECKING:
    from ..fabric.snapshot import Function
    from ..fabric.tree import Tree

SCHEMA = "roce-ring/topo/v1"


def register(app: typer.Typer) -> None:
    @app.command()
    def topo(
        source: Annotated[str, typer.Option("--from", metavar="FILE", help="Show this snapshot, not this host.")] = "",
        capture: Annotated[str, typer.Option(metavar="FILE", help="Write a snapshot of this host and stop.")] = "",
        gpus: Annotated[str, typer.Option(metavar="LIST", help="Only these GPUs, e.g. 0,4,8,12.")] = "",
        quadrants: Annotated[
            str, typer.Option(metavar="FILE", help="YAML: host bridge -> quadrant; else /etc/roce-ring/quadrants.yaml.")
        ] = "",
        picture: Annotated[str, typer.Option("--svg", metavar="FILE", help="Draw the tree there, too.")] = "",
        p2p: Annotated[
            bool, typer.Option("--p2p", help="Try what works between each two GPUs; takes seconds.")
        ] = False,
        as_json: Json = False,
    ) -> None:
        """Show GPUs, NICs, switches and host bridges, links that are narrower than they could be, ports that redirect
        peer traffic, and how each two GPUs reach each other.

        The last line names the fabric class of the GPUs, which decides their ladder. With --p2p it exits 1 if something
        does not work between two of them.
        """
        import platform

        from ..fabric import quadrants as operators
        from ..fabric import snapshot as snapshots
        from ..fabric.draw import svg, text
        from ..fabric.tree import Tree

        if source and capture:
            raise ConfigError("--from and --capture exclude each other", "a snapshot of a snapshot is a copy")
        if source and p2p:
            raise ConfigError("--p2p tries the GPUs of this host, but --from is there", "leave one of them out")
        if capture and (gpus or picture or as_json or p2p):
            raise ConfigError(
                "--capture writes a snapshot and stops: it goes without --gpus, --svg, --p2p and --json",
                f"give them with --from {capture} afterwards",
            )
        found = snapshots.load(Path(source)) if source else snapshots.read(Path("/sys"), platform.node())
        given = operators.load(Path(quadrants)) if quadrants else {} if source else operators.of_this_host()
        tree = Tree(found, given)
        if capture:
            from msgspec import json as packed

            fields = json.loads(packed.encode(found)) | ({"quadrants": given} if given else {})
            _write(capture, json.dumps(fields, indent=1) + "\n")
            print(f"wrote {len(found.functions)} functions to {capture}")
            return
        chosen = chosen_gpus(tree, gpus)
        if picture:
            _write(picture, svg(tree))
        found_p2p = tried(chosen) if p2p else []
        wrong = any(why for one in found_p2p for name, why in one.items() if name not in ("from", "to"))
        if as_json:
            print(json.dumps(as_dict(tree, chosen) | ({"p2p": found_p2p} if p2p else {}), indent=2))
            raise typer.Exit(1 if wrong else 0)
        print(text(tree) or f"{found.host} has no GPU and no NIC on a PCI bus")
        if len(chosen) > 1:
            print("\n" + matrix(tree, chosen))
        print("\n" + (verdict_table(tree, found_p2p) + "\n\n" if p2p else "") + summary(tree, chosen))
        raise typer.Exit(1 if wrong else 0)


def tried(gpus: list[Function]) -> list[dict[str, str]]:
    """Verdicts of every ordered pair; of a single GPU with itself."""
    from ..gpu.verdicts import verdicts

    peers = {one.bdf: [other.bdf for other in gpus if other is not one] or [one.bdf] for one in gpus}
    return [verdict for bdf, others in peers.items() for verdict in verdicts(bdf, others)]


def verdict_table(tree: Tree, found: list[dict[str, str]]) -> str:
    """A row an ordered pair; what went wrong is below it, once each."""
    from ..gpu.p2p import PRIMITIVES

    number = {one.bdf: str(tree.gpus.index(one)) for one in tree.gpus}
    rows = [
        (number[one["from"]], number[one["to"]], *("no" if one[name] else "yes" for name in PRIMITIVES))
        for one in found
    ]
    why = [
        f"GPU {number[one['from']]} to {number[one['to']]}, {name}: {one[name]}"
        for one in found
        for name in PRIMITIVES
        if one[name]
    ]
    table = text_table({"from": ">", "to": ">"} | dict.fromkeys(PRIMITIVES, "<"), rows)
    return "\n".join([table, *why])


def chosen_gpus(tree: Tree, text: str) -> list[Function]:
    """ "0,4" -> those GPUs; "" -> all. Raises ConfigError."""
    if not text:
        return tree.gpus
    numbers = text.split(",")
    wrong = [one for one in numbers if not (one.isascii() and one.isdigit() and int(one[:6]) < len(tree.gpus))]
    if wrong or len(set(numbers)) < len(numbers):
        have = f"0 to {len(tree.gpus) - 1}" if tree.gpus else "none here"
        raise ConfigError(f"--gpus {text[:60]!r}: expected different numbers joined by commas, of GPUs {have}")
    return [tree.gpus[int(one)] for one in numbers]


def _write(path: str, text: str) -> None:
    try:
        Path(path).write_text(text)
    except OSError as error:
        raise ConfigError(f"cannot write {path}: {error.strerror}", "name another file") from None


def matrix(tree: Tree, gpus: list[Function]) -> str:
    """How each two reach each other."""
    names = [f"GPU{tree.gpus.index(one)}" for one in gpus]
    rows = [
        (name, *("." if one is other else tree.pair(one, other) for other in gpus))
        for name, one in zip(names, gpus, strict=True)
    ]
    return text_table({"": "<"} | dict.fromkeys(names, "<"), rows)


def summary(tree: Tree, gpus: list[Function]) -> str:
    from ..fabric.group import group_of
    from ..fabric.tree import redirects

    if not gpus:
        return "no GPU"
    ports = tree.path_ports(gpus)
    acs = [redirects(one) for one in ports]
    said = (
        f"ACS redirects peer traffic at {acs.count(True)} of {len(ports)} ports" if True in acs
        else f"ACS is unknown at {acs.count(None)} of {len(ports)} ports (root may read it)" if None in acs
        else f"ACS redirects at none of {len(ports)} ports"
    )  # fmt: skip
    quadrants = {tree.quadrants[one.root] for one in gpus}
    names = ", ".join(sorted({one.name for one in quadrants}))
    why = "; ".join(sorted({one.why for one in quadrants}))
    group = group_of(tree, gpus)
    lines = [said, f"quadrants {names} ({why})"]
    if group.fabric == "pcie-hostbridge":
        order = ", ".join(str(tree.gpus.index(gpus[rank])) for rank in group.order)
        shared = f"{group.conflicts} times an uplink sends to several host bridges in one phase"
        lines += [
            f"phases go round GPUs {order}: {shared if group.conflicts else 'each uplink one host bridge a phase'}"
        ]
    return "\n".join([*lines, f"{len(gpus)} GPUs: fabric class {group.fabric}"])


def as_dict(tree: Tree, gpus: list[Function]) -> dict[str, Any]:
    from msgspec import to_builtins

    from ..fabric.draw import link_of
    from ..fabric.group import group_of
    from ..fabric.tree import redirects

    group = group_of(tree, gpus) if gpus else None
    return {
        "schema": SCHEMA,
        "host": tree.snapshot.host,
        "fabric": group.fabric if group else None,
        "ring_order": [tree.gpus.index(gpus[rank]) for rank in group.order] if group else [],
        "phase_conflicts": group.conflicts if group else 0,
        "gpus": [
            {
                "gpu": tree.gpus.index(one),
                "bdf": one.bdf,
                "quadrant": tree.quadrants[one.root].name,
                "link": link_of(one)[0],
                "narrow": link_of(one)[1],
                "pairs": {str(tree.gpus.index(other)): tree.pair(one, other) for other in gpus if other is not one},
            }
            for one in gpus
        ],
        "nics": [{"bdf": one.bdf, "names": list(one.names)} for one in tree.nics],
        "ports": [
            {"bdf": one.bdf, "acs_control": one.acs_control, "redirects": redirects(one)}
            for one in tree.path_ports(gpus)
        ],
        "quadrants": {root: {"name": one.name, "why": one.why} for root, one in tree.quadrants.items()},
        "snapshot": to_builtins(tree.snapshot),
    }
