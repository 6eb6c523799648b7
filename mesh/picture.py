"""The ring as an SVG picture: nodes, cables and their planes, rank against ring position, forwarded paths."""

from __future__ import annotations

import math
from collections.abc import Iterator
from xml.sax.saxutils import escape

from .model import Path, Plan, PlannedCable

Point = tuple[float, float]

_COLOURS = ("#1f6feb", "#d9730d")  # plane 0, plane 1; told apart by people who do not see red or green
_INK, _DIM = "#1b1f24", "#57606a"
_BOX = (132.0, 58.0)
_MARGIN = 150.0
_SPACING = 290.0  # between neighbours, so that box, port labels and subnets have room
_MOST_CURVES = 5  # forwarded pairs; more curves hide each other, and the text below counts them anyway
_LEGEND_HEIGHT = 96.0


def svg(plan: Plan) -> str:
    """The picture as one SVG document."""
    places = _places(plan)
    width = max(x for x, _ in places) + _MARGIN
    height = max(y for _, y in places) + _MARGIN - 50
    body = [*_forwarded(plan, places), *_cables(plan, places), *_boxes(plan, places), *_legend(plan, height)]
    total = height + _LEGEND_HEIGHT
    title = f"{plan.shape} of {len(plan.hosts)} nodes, plan {plan.hash[:12]}"
    head = [
        (
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:.0f} {total:.0f}" width="{width:.0f}" '
            f'height="{total:.0f}" font-family="sans-serif" font-size="13" role="img">'
        ),
        f"<title>{escape(title)}</title>",
        f'<rect width="{width:.0f}" height="{total:.0f}" fill="#ffffff"/>',
    ]
    return "\n".join([*head, *body, "</svg>", ""])


def _places(plan: Plan) -> tuple[Point, ...]:
    """The centre of each rank's box: a circle for a ring, clockwise in ring order from the top; a line otherwise."""
    size = len(plan.ring)
    points: dict[int, Point] = {}
    if plan.shape == "ring":
        radius = max(262.0, size * _SPACING / (2 * math.pi))
        for place, rank in enumerate(plan.ring):
            angle = 2 * math.pi * place / size - math.pi / 2
            points[rank] = (_MARGIN + radius * (1 + math.cos(angle)), _MARGIN - 50 + radius * (1 + math.sin(angle)))
    else:
        step = _SPACING * (1.6 if size == 2 else 1.1)
        for place, rank in enumerate(plan.ring):
            points[rank] = (_MARGIN + step * place, _MARGIN + 10)
    return tuple(points[rank] for rank in range(size))


def _boxes(plan: Plan, places: tuple[Point, ...]) -> Iterator[str]:
    wide, high = _BOX
    for node, (x, y) in zip(plan.nodes, places, strict=True):
        yield (
            f'<rect x="{x - wide / 2:.1f}" y="{y - high / 2:.1f}" width="{wide}" height="{high}" rx="9" '
            f'fill="#f6f8fa" stroke="{_INK}" stroke-width="1.5"/>'
        )
        name = node.host if len(node.host) <= 14 else node.host[:13] + "…"
        yield _text((x, y - 3), name, size=16, weight="bold")
        yield _text((x, y + 17), f"rank {node.rank} · position {node.position}", colour=_DIM)


def _cables(plan: Plan, places: tuple[Point, ...]) -> Iterator[str]:
    doubled = len({tuple(sorted(end.rank for end in cable.ends)) for cable in plan.cables}) < len(plan.cables)
    for number, cable in enumerate(plan.cables):
        a, b = (places[end.rank] for end in cable.ends)
        ux, uy = _direction(a, b)
        shift = (22.0 if number else -22.0) if doubled else 0.0  # two cables of one pair run side by side
        for index, plane in enumerate(plan.planes):
            off = shift + (index - (len(plan.planes) - 1) / 2) * 7
            (x1, y1), (x2, y2) = ((x - uy * off, y + ux * off) for x, y in (a, b))
            yield f'<path d="M{x1:.1f} {y1:.1f}L{x2:.1f} {y2:.1f}" stroke="{_COLOURS[plane]}" stroke-width="3"/>'
        yield from _cable_labels(plan, cable, (a, b), shift)


def _cable_labels(plan: Plan, cable: PlannedCable, ends: tuple[Point, Point], shift: float) -> Iterator[str]:
    (ax, ay), (bx, by) = ends
    ux, uy = _direction(*ends)
    middle = ((ax + bx) / 2, (ay + by) / 2)
    centre = _centre(plan)
    side = 1.0 if shift > 0 else -1.0
    if centre is not None and not shift:  # on a circle, text goes outside
        side = 1.0 if (middle[0] - centre[0]) * -uy + (middle[1] - centre[1]) * ux >= 0 else -1.0
    level = abs(uy) < 0.35  # nearly horizontal: text above or below the cable, else beside it
    anchor = "middle" if level else ("start" if -uy * side > 0 else "end")
    for end, (x, y), sign in ((cable.ends[0], ends[0], 1), (cable.ends[1], ends[1], -1)):
        reach = min(_BOX[0] / 2 / (abs(ux) or 1e-9), _BOX[1] / 2 / (abs(uy) or 1e-9)) + (24 if level else 26)
        out = shift + side * (16 if level else 12)
        yield _text(
            (x + sign * ux * reach - uy * out, y + sign * uy * reach + ux * out + 4),
            f"port {end.port}",
            size=11,
            colour=_DIM,
            anchor=anchor,
        )
    away = (30 if abs(uy) < 0.05 else 40) if level else 20  # further out where a slanting cable's port labels are
    x, y = middle[0] - uy * (shift + side * away), middle[1] + ux * (shift + side * away)
    for index, (plane, network) in enumerate(zip(plan.planes, cable.networks, strict=True)):
        row = y + 4 + (index - (len(plan.planes) - 1) / 2) * 15
        yield _text((x, row), network, size=11, colour=_COLOURS[plane], anchor=anchor)


def _forwarded(plan: Plan, places: tuple[Point, ...]) -> Iterator[str]:
    paths = [path for path in plan.paths if path.via and path.source < path.target]
    if _forwarded_pairs(plan) > _MOST_CURVES:
        return
    for path in paths:
        points = [places[path.source], *(_pulled(plan, places[rank], path) for rank in path.via), places[path.target]]
        yield (
            f'<path d="{_curve(points)}" stroke="{_COLOURS[path.plane]}" stroke-width="1.8" stroke-dasharray="7 5" '
            f'stroke-linejoin="round" fill="none" opacity="0.85"/>'
        )


def _pulled(plan: Plan, point: Point, path: Path) -> Point:
    """Where a path passes a relay: inside the circle, or above (plane 0) and below (plane 1) a chain."""
    centre = _centre(plan)
    if centre is None:
        return point[0], point[1] + (-88.0 if path.plane == 0 else 88.0)
    near = 0.66 if path.plane == 0 else 0.56
    return centre[0] + (point[0] - centre[0]) * near, centre[1] + (point[1] - centre[1]) * near


def _curve(points: list[Point]) -> str:
    first, *inner, last = points
    if len(inner) == 1:  # a quadratic curve whose middle is the relay's point
        x, y = (2 * inner[0][axis] - (first[axis] + last[axis]) / 2 for axis in (0, 1))
        return f"M{first[0]:.1f} {first[1]:.1f}Q{x:.1f} {y:.1f} {last[0]:.1f} {last[1]:.1f}"
    return "M" + "L".join(f"{x:.1f} {y:.1f}" for x, y in points)


def _legend(plan: Plan, top: float) -> Iterator[str]:
    x = 24.0
    for plane in plan.planes:
        yield f'<path d="M{x:.0f} {top + 20:.0f}h34" stroke="{_COLOURS[plane]}" stroke-width="3"/>'
        yield _text((x + 42, top + 24), f"plane {plane}", anchor="start")
        x += 120
    if 0 < _forwarded_pairs(plan) <= _MOST_CURVES:
        yield f'<path d="M{x:.0f} {top + 20:.0f}h34" stroke="{_DIM}" stroke-width="1.8" stroke-dasharray="7 5"/>'
        yield _text((x + 42, top + 24), "forwarded by the node it passes", anchor="start")
    every = len(plan.hosts) * (len(plan.hosts) - 1) // 2
    pairs = f"{every} pair{'s' if every > 1 else ''}, {_forwarded_pairs(plan)} over relays"
    counts = f"{pairs}; size cap {plan.limits.max_bytes} bytes"
    yield _text((24, top + 50), counts, anchor="start")
    yield _text(
        (24, top + 72),
        f"plan {plan.hash[:12]}; forwarding: {plan.forwarding}, {plan.proven}",
        anchor="start",
        colour=_DIM,
    )


def _forwarded_pairs(plan: Plan) -> int:
    return len({(path.source, path.target) for path in plan.paths if path.via and path.source < path.target})


def _centre(plan: Plan) -> Point | None:
    if plan.shape != "ring":
        return None
    radius = max(262.0, len(plan.ring) * _SPACING / (2 * math.pi))
    return _MARGIN + radius, _MARGIN - 50 + radius


def _direction(a: Point, b: Point) -> Point:
    length = math.hypot(b[0] - a[0], b[1] - a[1]) or 1.0
    return (b[0] - a[0]) / length, (b[1] - a[1]) / length


def _text(
    at: Point, text: str, *, size: int = 13, colour: str = _INK, anchor: str = "middle", weight: str = "normal"
) -> str:
    return (
        f'<text x="{at[0]:.1f}" y="{at[1]:.1f}" font-size="{size}" font-weight="{weight}" fill="{colour}" '
        f'text-anchor="{anchor}" stroke="#ffffff" stroke-width="3" paint-order="stroke">{escape(text)}</text>'
    )
