"""Curves as SVG that the server draws: no script, no style that the page's policy would have to allow."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

WIDTH, HEIGHT, LEFT, BELOW = 640, 200, 64, 24
MOST_POINTS = 1000


@dataclass(frozen=True, slots=True)
class Curve:
    """One series."""

    label: str
    points: tuple[tuple[float, float], ...]
    """(x, y), x increasing."""


@dataclass(frozen=True, slots=True)
class Polyline:
    """One series in the coordinates of the picture."""

    label: str
    path: str
    last: float


@dataclass(frozen=True, slots=True)
class Picture:
    """What the template draws."""

    title: str
    curves: tuple[Polyline, ...]
    ticks: tuple[tuple[float, str], ...]
    """(height, label) of the horizontal lines."""
    ends: tuple[str, str]
    """Labels of the first and last x."""


def picture(title: str, curves: Sequence[Curve]) -> Picture | None:
    """Series over common axes; None without points."""
    curves = [Curve(one.label, thinned(one.points)) for one in curves if one.points]
    if not curves:
        return None
    xs = [x for one in curves for x, _ in one.points]
    ys = [y for one in curves for _, y in one.points]
    x0, x1, y0, y1 = min(xs), max(xs), min(ys), max(ys)
    wide, high = (x1 - x0) or 1.0, (y1 - y0) or 1.0

    def at(x: float, y: float) -> str:
        across = LEFT + (x - x0) / wide * (WIDTH - LEFT - 8)
        return f"{across:.1f},{_height((y - y0) / high):.1f}"

    drawn = [Polyline(one.label, " ".join(at(x, y) for x, y in one.points), one.points[-1][1]) for one in curves]
    shares = (0.0, 0.5, 1.0)
    labels = _distinct([y0 + share * high for share in shares])
    ticks = tuple((round(_height(share), 1), label) for share, label in zip(shares, labels, strict=True))
    return Picture(title, tuple(drawn), ticks, (f"{x0:g}", f"{x1:g}"))


def thinned(points: Sequence[tuple[float, float]], most: int = MOST_POINTS) -> tuple[tuple[float, float], ...]:
    """At most ``most`` points: of each stretch the lowest and the highest, so that no peak is lost."""
    if len(points) <= most:
        return tuple(points)
    size = -(-len(points) // (most // 2))
    kept = []
    for start in range(0, len(points), size):
        part = points[start : start + size]
        kept += sorted({min(part, key=lambda one: one[1]), max(part, key=lambda one: one[1])})
    return tuple(kept)


def _distinct(values: Sequence[float]) -> list[str]:
    """Labels of as few digits, from three, as tell them apart."""
    labels = [f"{value:.3g}" for value in values]
    for digits in range(4, 9):
        if len({*labels}) == len(labels):
            break
        labels = [f"{value:.{digits}g}" for value in values]
    return labels


def _height(share: float) -> float:
    return 8 + (1 - share) * (HEIGHT - BELOW - 8)
