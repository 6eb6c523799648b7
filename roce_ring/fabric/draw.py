"""A PCI tree as text and as SVG. Only branches that end at a GPU or a NIC."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from html import escape

from . import config_space
from .snapshot import GPUS, NETWORK, Function
from .tree import Tree, redirects

_PORTS = {
    config_space.ROOT_PORT: "root port", config_space.UPSTREAM: "switch", config_space.DOWNSTREAM: "port",
}  # fmt: skip
_GENERATIONS = {"2.5": 1, "5.0": 2, "5": 2, "8.0": 3, "16.0": 4, "32.0": 5, "64.0": 6}  # GT/s


@dataclass(slots=True)
class Branch:
    """`alert`: something on this line wants a look."""

    label: str
    alert: bool = False
    below: list[Branch] = field(default_factory=list)


def branches(tree: Tree) -> list[Branch]:
    """One per host bridge."""
    shown = [one for one in tree.snapshot.functions if one in tree.gpus or one.kind >> 8 == NETWORK]
    tops: dict[str, Branch] = {}
    made: dict[str, Branch] = {}
    for one in shown:
        quadrant = tree.quadrants[one.root]
        numa = f", NUMA node {one.numa}" if one.numa >= 0 else ""
        above = tops.setdefault(one.root, Branch(f"host bridge {one.root}{numa}, quadrant {quadrant.name}"))
        for bdf in (*one.chain, one.bdf):
            if bdf not in made:
                made[bdf] = Branch(*_label(tree, tree.functions[bdf]))
                above.below.append(made[bdf])
            above = made[bdf]
    return [tops[root] for root in sorted(tops)]


def _label(tree: Tree, one: Function) -> tuple[str, bool]:
    if one in tree.gpus:
        what = f"GPU {tree.gpus.index(one)} {one.vendor}:{one.device}"
    elif one.kind in GPUS or one.kind >> 8 == NETWORK:
        what = f"NIC {' '.join(one.names) or f'{one.vendor}:{one.device}'}"
    else:
        what = _PORTS.get(one.port or 0, "bridge")
    link, narrow = link_of(one)
    words = [f"{one.bdf} {what}", link]
    turns = one.port in (config_space.ROOT_PORT, config_space.DOWNSTREAM)
    if turns and redirects(one):
        words.append(f"ACS redirects ({one.acs_control:#06x})")
    elif turns and redirects(one) is None:
        words.append("ACS unknown")
    return "  ".join(filter(None, words)), narrow or bool(turns and redirects(one))


def link_of(one: Function) -> tuple[str, bool]:
    """("Gen5 x4 of x16", whether it is narrower than it could be). Speed is not judged: idle GPUs lower it."""
    if not one.width:
        return "", False
    generation = _GENERATIONS.get(one.speed.split(" ")[0])
    narrow = 0 < one.width < one.max_width
    return f"{f'Gen{generation} ' if generation else ''}x{one.width}{f' of x{one.max_width}' if narrow else ''}", narrow


def text(tree: Tree) -> str:
    lines = []
    for top in branches(tree):
        lines += [top.label, *_lines(top, "")]
    return "\n".join(lines)


def _lines(branch: Branch, indent: str) -> Iterator[str]:
    for number, one in enumerate(branch.below):
        last = number + 1 == len(branch.below)
        yield f"{indent}{'└─ ' if last else '├─ '}{one.label}{'  <-- look' if one.alert else ''}"
        yield from _lines(one, indent + ("   " if last else "│  "))


_ROW, _STEP, _MARGIN = 22, 26, 14


def svg(tree: Tree) -> str:
    """The same as a picture: a row for each line, a step to the right for each level."""
    rows: list[tuple[int, int, Branch]] = []  # level, row of the parent, branch

    def place(branch: Branch, level: int, parent: int) -> None:
        at = len(rows)
        rows.append((level, parent, branch))
        for one in branch.below:
            place(one, level + 1, at)

    for top in branches(tree):
        place(top, 0, -1)
    width = max((_MARGIN + level * _STEP + 8 * len(one.label) for level, _, one in rows), default=200) + _MARGIN
    height = len(rows) * _ROW + 2 * _MARGIN
    size = f'width="{width}" height="{height}"'
    head = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" {size}'
    out = [f'{head} font-family="monospace" font-size="13">', f'<rect {size} fill="white"/>']
    for row, (level, parent, one) in enumerate(rows):
        x, y = _MARGIN + level * _STEP, _MARGIN + row * _ROW + 14
        if parent >= 0:
            from_x, from_y = x - _STEP + 6, _MARGIN + parent * _ROW + 18
            out.append(f'<path d="M{from_x} {from_y} V{y - 4} H{x - 4}" fill="none" stroke="#888"/>')
        color = "#b00020" if one.alert else "#1a5fb4" if "GPU" in one.label else "#222"
        weight = ' font-weight="bold"' if level == 0 else ""
        out.append(f'<text x="{x}" y="{y}" fill="{color}"{weight}>{escape(one.label)}</text>')
    return "\n".join([*out, "</svg>", ""])
