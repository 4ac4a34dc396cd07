"""Charts as SVG that the server draws: lines with bands, stacks over steps, bars.

No script and no style is needed that the pages' policy would have to allow. The script of the pages adds a crosshair, whose
values are in ``Drawing.hover``, and asks for the page again with another range where a reader drags over a chart.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from rlep.core.printable import marked
from rlep.view.words import number

WIDTH, HEIGHT, LEFT, RIGHT, TOP, BELOW = 720, 320, 66, 14, 12, 46
MOST_POINTS = 640
MOST_HOVERED = 240
COLUMNS = 48
"""Most columns of a stack over steps: more are noise at this size."""
LETTER = 7.5
"""Width of a character of a label."""
COLOURS = 8
"""Different colours of lines, ``c0`` to ``c7`` of the style sheet."""

Points = Sequence[tuple[float, float]]
_Place = Callable[[float], float]
"""Number → place along an axis, in units of the drawing."""


@dataclass(frozen=True, slots=True)
class Curve:
    """One series."""

    label: str
    points: Points
    """(x, y), x increasing."""
    band: Sequence[tuple[float, float, float]] = ()
    """(x, low, high) of an interval around it."""
    dashed: bool = False
    colour: int | None = None
    """Of the style sheet; its place among the curves otherwise."""


@dataclass(frozen=True, slots=True)
class Axis:
    """The words below or beside an axis, and its unit: ``share`` is shown in per cent, ``s`` as times."""

    label: str
    unit: str = ""


STEP = Axis("step")


@dataclass(frozen=True, slots=True)
class ChartLook:
    """A reader's wishes for the charts."""

    smooth: float = 0.0
    """Weight of the past in an exponential moving average, as in TensorBoard; 0: none."""
    log: bool = False
    low: float | None = None
    high: float | None = None
    """Ends of the x axis; None: where the points end."""


@dataclass(frozen=True, slots=True)
class Mark:
    """A line or an area in the coordinates of the drawing."""

    kind: str
    """``line``, ``raw`` (behind a smoothed line), ``band``, or ``area``."""
    path: str
    style: str = ""
    fill: str = ""
    dots: Sequence[tuple[float, float]] = ()


@dataclass(frozen=True, slots=True)
class Key:
    """A line of the legend."""

    label: str
    style: str = ""
    fill: str = ""
    last: str = ""
    """The newest value."""


@dataclass(frozen=True, slots=True)
class Drawing:
    """A chart in the coordinates of its template."""

    title: str
    marks: Sequence[Mark]
    x_ticks: Sequence[tuple[float, str]]
    y_ticks: Sequence[tuple[float, str]]
    x_label: str
    y_label: str
    keys: Sequence[Key]
    caption: str = ""
    hover: str = ""
    """JSON: for each curve its label, class and [x, y, text of x, text of y] of its points."""
    low: float = 0.0
    high: float = 1.0
    """Ends of the x axis, for the range that a reader drags."""
    rings: Sequence[tuple[float, float]] = ()
    """Points with a ring around them."""


def _scale(low: float, high: float, begin: float, end: float, *, log: bool = False) -> _Place:
    """Numbers from ``low`` to ``high`` to places along an axis."""
    first, last = (math.log10(low), math.log10(high)) if log else (low, high)
    factor = (end - begin) / ((last - first) or 1.0)
    if log:
        return lambda value: round(begin + (math.log10(value) - first) * factor, 1)
    return lambda value: round(begin + (value - first) * factor, 1)


def line_chart(
    title: str,
    curves: Sequence[Curve],
    x: Axis,
    y: Axis,
    *,
    look: ChartLook | None = None,
    caption: str = "",
    rings: Points = (),
) -> Drawing | None:
    """Series over common axes, with rings around some points of theirs; None without points."""
    look = look or ChartLook()
    drawn = [(at if curve.colour is None else curve.colour, curve) for at, curve in enumerate(curves)]
    inside = [(colour, curve, _inside(curve.points, look)) for colour, curve in drawn]
    inside = [(colour, curve, points) for colour, curve, points in inside if points]
    if not inside:
        return None
    xs = [at for _, _, points in inside for at, _ in points]
    ys = [value for _, _, points in inside for _, value in points]
    ys += [edge for _, curve, _ in inside for at, low, high in curve.band if _within(at, look) for edge in (low, high)]
    if look.log:
        ys = [value for value in ys if value > 0] or [1.0]
    across = _scale(min(xs), max(xs), LEFT, WIDTH - RIGHT)
    y_low, y_high, values = ticks(min(ys), max(ys), log=look.log)
    up = _scale(y_low, y_high, HEIGHT - BELOW, TOP, log=look.log)
    marks, keys, hover = [], [], []
    for colour, curve, points in inside:
        style = f"c{colour % COLOURS}{' dashed' if curve.dashed else ''}"
        marks += _band(curve, look, across, up, style)
        shown = [(at, value) for at, value in points if value > 0 or not look.log]
        smooth = thinned(smoothed(shown, look.smooth))  # of every value: not of the peaks alone
        if look.smooth:
            marks.append(Mark("raw", _path(thinned(shown), across, up), style))
        dots = [(across(at), up(value)) for at, value in smooth] if len(smooth) <= 40 else []
        marks.append(Mark("line", _path(smooth, across, up), style, dots=dots))
        keys.append(Key(curve.label, style, last=number(points[-1][1], y.unit)))
        hover.append(_hover(curve.label, style, smooth, (across, up), (x.unit, y.unit)))
    x_ticks = [(across(value), text) for value, text in _labelled(ticks(min(xs), max(xs), inside=True)[2], x.unit)]
    return Drawing(
        title, marks, x_ticks, [(up(value), text) for value, text in _labelled(values, y.unit)],
        x.label, y.label, keys, caption, json.dumps(hover), min(xs), max(xs), [(across(at), up(value)) for at, value in rings],
    )  # fmt: skip


def stack_chart(
    title: str, xs: Sequence[float], bands: Sequence[tuple[Key, Sequence[float]]], y: Axis, caption: str = ""
) -> Drawing | None:
    """Bands on top of each other over steps, the mean of equally many steps in each of at most ``COLUMNS`` columns."""
    if not xs or not bands:
        return None
    edges, heights = columns(xs, [values for _, values in bands])
    tops = [sum(column) for column in zip(*heights, strict=True)]
    high = 1.0 if y.unit == "share" else max(tops)
    x = STEP
    y_low, y_high, values = ticks(0.0, high)
    across = _scale(edges[0], edges[-1], LEFT, WIDTH - RIGHT)
    up = _scale(y_low, y_high, HEIGHT - BELOW, TOP)
    marks, hover, floor = [], [], [0.0] * len(tops)
    for (key, _), row in zip(bands, heights, strict=True):
        roof = [low + height for low, height in zip(floor, row, strict=True)]
        over = [(edge, top) for at, top in enumerate(roof) for edge in edges[at : at + 2]]
        under = [(edge, top) for at, top in enumerate(floor) for edge in edges[at : at + 2]]
        path = _path([*over, *reversed(under)], across, up)
        marks.append(Mark("area", path, key.style, key.fill))
        middles = [(edges[at] + edges[at + 1]) / 2 for at in range(len(row))]
        texts = [
            [across(at), up(top), number(round(at)), number(height, y.unit)]
            for at, top, height in zip(middles, roof, row, strict=True)
        ]
        hover.append({"label": marked(key.label), "style": key.style, "points": texts})
        floor = roof
    return Drawing(
        title, marks,
        [(across(value), text) for value, text in _labelled(ticks(edges[0], edges[-1], inside=True)[2], x.unit)],
        [(up(value), text) for value, text in _labelled(values, y.unit)],
        x.label, y.label, [key for key, _ in bands], caption, json.dumps(hover), edges[0], edges[-1],
    )  # fmt: skip


def bar_chart(
    title: str, bars: Sequence[tuple[str, float, str]], x: Axis, y: Axis, caption: str = ""
) -> Drawing | None:
    """A bar for each (label, value, style)."""
    if not bars:
        return None
    _, high, values = ticks(0.0, max(value for _, value, _ in bars) or 1.0)
    up = _scale(0.0, high, HEIGHT - BELOW, TOP)
    wide = (WIDTH - LEFT - RIGHT) / len(bars)
    marks, labels, points = [], [], []
    for at, (label, value, style) in enumerate(bars):
        begin, end = round(LEFT + (at + 0.08) * wide, 1), round(LEFT + (at + 0.92) * wide, 1)
        bottom, top, middle = up(0.0), up(value), round(LEFT + (at + 0.5) * wide, 1)
        marks.append(Mark("area", f"{begin},{bottom} {begin},{top} {end},{top} {end},{bottom}", style))
        labels.append((middle, label))
        points.append([middle, top, marked(label), number(value, y.unit)])
    every = math.ceil(LETTER * max(len(label) for label, _, _ in bars) / wide)
    hover = json.dumps([{"label": marked(y.label), "style": "c0", "points": points}])
    y_ticks = [(up(value), text) for value, text in _labelled(values, y.unit)]
    return Drawing(title, marks, labels[::every], y_ticks, x.label, y.label, (), caption, hover)


def thinned(points: Points, most: int = MOST_POINTS) -> tuple[tuple[float, float], ...]:
    """At most ``most`` points: of each stretch the lowest and the highest, so that no peak is lost; and the last point."""
    if len(points) <= most:
        return tuple(points)
    size = -(-len(points) // ((most - 1) // 2))
    kept: list[tuple[float, float]] = []
    for start in range(0, len(points), size):
        part = points[start : start + size]
        kept += sorted({min(part, key=lambda point: point[1]), max(part, key=lambda point: point[1])})
    return tuple(kept if kept[-1] == points[-1] else [*kept, points[-1]])


def smoothed(points: Points, weight: float) -> list[tuple[float, float]]:
    """Exponential moving average without the bias of its start, as TensorBoard has it."""
    held, scale, found = 0.0, 0.0, []
    for at, value in points:
        held = weight * held + (1 - weight) * value
        scale = weight * scale + (1 - weight)
        found.append((at, held / scale))
    return found


def columns(xs: Sequence[float], rows: Sequence[Sequence[float]]) -> tuple[list[float], list[list[float]]]:
    """Edges ``[columns + 1]`` and mean heights ``[rows][columns]`` of equally many steps per column, the last may have fewer."""
    wide = -(-len(xs) // COLUMNS)
    starts = range(0, len(xs), wide)
    edges = [*(xs[start] - 0.5 for start in starts), xs[-1] + 0.5]
    means = [
        [math.fsum(row[start : start + wide]) / len(row[start : start + wide]) for start in starts] for row in rows
    ]
    return edges, means


def ticks(low: float, high: float, *, log: bool = False, inside: bool = False) -> tuple[float, float, list[float]]:
    """Ends of an axis and about five round numbers on it; ``inside``: none beyond ``low`` and ``high``."""
    if log:
        first, last = math.floor(math.log10(low)), math.ceil(math.log10(high))
        last = max(last, first + 1)
        every = max(1, (last - first) // 6)
        return 10.0**first, 10.0**last, [10.0**power for power in range(first, last + 1, every)]
    if high <= low:
        low, high = (low, low + 1.0) if inside else (min(low, 0.0), max(low, 0.0) or (1.0 if low == 0 else 0.0))
    step = _round_step(high / 5 - low / 5)
    first, last = math.floor(low / step + 1e-9), math.ceil(high / step - 1e-9)
    values = [at * step for at in range(first, last + 1)]
    if inside:
        whole = [value for value in values if low <= value <= high]
        return low, high, whole if len(whole) > 1 else [low, high]
    return values[0], values[-1], values


def ramp(count: int) -> list[str]:
    """``count`` colours from none solved (red) over sand to all solved (teal)."""
    ends = ((200, 85, 61), (233, 209, 150), (42, 127, 120))
    found = []
    for at in range(count):
        place = 2 * at / max(count - 1, 1)
        left, right, part = (*ends[:2], place) if place < 1 else (*ends[1:], place - 1)
        found.append("#" + "".join(f"{round(a + (b - a) * part):02x}" for a, b in zip(left, right, strict=True)))
    return found


def _round_step(wanted: float) -> float:
    size = 10.0 ** math.floor(math.log10(wanted)) if wanted > 1e-300 else 1e-300
    return next((times * size for times in (1.0, 2.0, 5.0) if times * size >= wanted * (1 - 1e-9)), 10 * size)


def _labelled(values: Sequence[float], unit: str) -> list[tuple[float, str]]:
    """Each value with a label of as few digits as tell all of them apart."""
    values = [0.0 if abs(value) < 1e-12 else value for value in values]
    shown: Callable[[float], str] = lambda value: number(value, unit)  # noqa: E731
    labels = [shown(value) for value in values]
    for digits in range(4, 12):
        if len({*labels}) == len(labels):
            break
        labels = [f"{100 * value:.{digits}g} %" if unit == "share" else f"{value:.{digits}g}" for value in values]
    return list(zip(values, labels, strict=True))


def _within(at: float, look: ChartLook) -> bool:
    return (look.low is None or at >= look.low) and (look.high is None or at <= look.high)


def _inside(points: Points, look: ChartLook) -> Points:
    if look.low is None and look.high is None:
        return points
    return [point for point in points if _within(point[0], look)]


def _path(points: Points, across: _Place, up: _Place) -> str:
    return " ".join(f"{across(x)},{up(y)}" for x, y in points)


def _band(curve: Curve, look: ChartLook, across: _Place, up: _Place, style: str) -> list[Mark]:
    band = [(at, low, high) for at, low, high in curve.band if _within(at, look) and (low > 0 or not look.log)]
    if len(band) < 2:
        return []
    edge = [*((at, high) for at, _, high in band), *((at, low) for at, low, _ in reversed(band))]
    return [Mark("band", _path(edge, across, up), style)]


def _hover(
    label: str, style: str, points: Points, scales: tuple[_Place, _Place], units: tuple[str, str]
) -> dict[str, object]:
    (across, up), (x_unit, y_unit) = scales, units
    texts = [
        [across(at), up(value), number(at, x_unit), number(value, y_unit)]
        for at, value in thinned(points, MOST_HOVERED)
    ]
    return {"label": marked(label), "style": style, "points": texts}
