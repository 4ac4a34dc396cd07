"""Charts of what replay does: which groups it meets, how much of the gradient it is, how likely its tokens are."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from rlep.core.types import Float64Array
from rlep.report.accuracy_charts import run_colours, stacked_steps, step_axis
from rlep.report.theme import Theme, empty, per_cent
from rlep.view.record import CollectionFiles, MetricsRow, RunRecord

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import FigureBase


def groups(figure: FigureBase, theme: Theme, run: RunRecord | None) -> None:
    """Share of groups with 0…G fresh successes in every step; below it, the replays they were given."""
    title = "What the groups are made of" + (f" ({run.label})" if run else "")
    lines = _with_list(run, "group/fresh_successes")
    if not lines:
        empty(figure, theme, title, "no step yet")
        return
    replayed = _with_list(run, "group/replays")
    rows = figure.subplots(2, 1, sharex=True, height_ratios=[4, 1.3]) if replayed else [figure.subplots()]
    successes = shares(lines, "group/fresh_successes")
    colours = ramp(theme, len(successes))
    stacked_steps(rows[0], lines, successes, colours)
    rows[0].set_title(title)
    _share_axis(rows[0], "share of groups")
    _key(rows[0], "correct fresh responses", colours)
    if replayed:
        drawn = shares(replayed, "group/replays")
        shades = [theme.grid, *_blend(theme.background, theme.rlep, np.linspace(0.45, 1, max(len(drawn) - 1, 1)))]
        stacked_steps(rows[1], replayed, drawn, shades[: len(drawn)])
        _share_axis(rows[1], "share")
        rows[1].set_yticks([0, 1])
        _key(rows[1], "replays", shades[: len(drawn)])
    if replayed:
        rows[0].set_xlabel("")


def gradient(figure: FigureBase, theme: Theme, run: RunRecord | None) -> None:
    """Above: the replays' part of the advantage mass. Below: mean log-probs of fresh and replayed tokens."""
    title = "How much the replays weigh, and how likely they are"
    lines = [line for line in (run.lines if run else ()) if "advantage/mass/replay" in line.numbers]
    if not lines:
        empty(figure, theme, title, "no replay has reached the loss yet")
        return
    upper, lower = figure.subplots(2, 1, sharex=True)
    steps = [line.step for line in lines]
    mass = replay_share(lines)
    upper.fill_between(steps, mass, color=theme.rlep, alpha=0.25, linewidth=0)
    upper.plot(steps, mass, color=theme.rlep, linewidth=1.8, label="advantage mass")
    tokens = [
        line.numbers.get("loss/tokens/replay", np.nan)
        / (line.numbers.get("loss/tokens/replay", np.nan) + line.numbers.get("loss/tokens/fresh", np.nan))
        for line in lines
    ]
    upper.plot(steps, tokens, color=theme.faint, linewidth=1.4, linestyle=(0, (4, 2)), label="tokens")
    upper.set_title(title)
    upper.set_ylim(0, 1.3 * upper.get_ylim()[1])  # room for the legend
    per_cent(upper, "replays' share")
    upper.legend(ncols=2, loc="upper right")
    _logprobs(lower, theme, lines)
    step_axis(lower, "training step")


def retention(figure: FigureBase, theme: Theme, runs: Sequence[RunRecord]) -> None:
    """Above: questions solved so far. Below: of each step's questions, those that were solved before and are not now."""
    shown = [(run, lines) for run in runs if (lines := [one for one in run.lines if "prompts/solved" in one.numbers])]
    upper, lower = figure.subplots(2, 1, sharex=True)
    for (run, lines), colour in zip(shown, run_colours([run for run, _ in shown], theme), strict=True):
        steps = [line.step for line in lines]
        upper.plot(steps, [line.numbers["prompts/solved"] for line in lines], color=colour, label=run.label)
        lower.plot(steps, lost_share(lines), color=colour, linewidth=1.2)
    upper.set_title("Questions solved, and lost again")
    upper.set_ylabel("solved so far")
    upper.set_ylim(bottom=0)
    upper.legend(loc="lower right")
    per_cent(lower, "lost")
    lower.set_ylim(bottom=0)
    step_axis(lower, "training step")


def lost_share(lines: Sequence[MetricsRow], window: int = 16) -> list[float]:
    """Lost questions over all questions of the last ``window`` steps, at each step."""
    found = []
    for end in range(1, len(lines) + 1):
        last = [line.numbers for line in lines[max(0, end - window) : end]]
        asked = sum(numbers.get("rollout/prompts", 0.0) for numbers in last)
        found.append(sum(numbers["prompts/lost"] for numbers in last) / asked if asked else float("nan"))
    return found


def replay_share(lines: Sequence[MetricsRow]) -> list[float]:
    """The replays' part of the advantage mass of each step; NaN where there is none at all."""
    found: list[float] = []
    for line in lines:
        replay, fresh = line.numbers.get("advantage/mass/replay", 0.0), line.numbers.get("advantage/mass/fresh", 0.0)
        found.append(replay / (replay + fresh) if replay + fresh > 0 else float("nan"))
    return found


def coverage(figure: FigureBase, theme: Theme, collection: CollectionFiles | None) -> None:
    """Questions by how many verified responses the pool holds for them."""
    title = "What the pool covers"
    if collection is None or not collection.buckets:
        empty(figure, theme, title, coverage_text(collection))
        return
    axes = figure.subplots()
    for i, bucket in enumerate(collection.buckets):
        eligible = bucket.fewest >= collection.minimum
        colour = theme.solved if eligible else theme.middle if bucket.fewest else theme.failed
        axes.bar(i, bucket.questions, color=colour, width=0.86)
        count = f"{bucket.questions:,}"
        axes.text(i, bucket.questions, count, ha="center", va="bottom", fontsize=8, color=theme.faint)
    labels = [bucket.label.replace("-", "–") for bucket in collection.buckets]
    axes.set_xticks(range(len(labels)), labels)
    axes.set_ylim(0, 1.35 * axes.get_ylim()[1])  # room for the words
    axes.set_title(title)
    axes.set_xlabel(f"verified responses stored for a question ({collection.minimum} or more: eligible for replay)")
    axes.set_ylabel("questions")
    axes.grid(visible=False, axis="x")
    words = coverage_text(collection)
    axes.text(0.98, 0.97, words, transform=axes.transAxes, ha="right", va="top", fontsize=9, linespacing=1.6)


def coverage_text(collection: CollectionFiles | None) -> str:
    """The coverage in words."""
    if collection is None:
        return "no collection.json in these runs"
    parts = [f"{collection.questions:,} questions"]
    for count, words in ((collection.covered, "with an answer"), (collection.eligible, "eligible for replay")):
        if count is not None:
            parts.append(f"{count / collection.questions:.0%} {words}")
    if collection.admitted is not None:
        parts.append(f"{collection.admitted:,} responses stored")
    return "\n".join(parts)


def shares(lines: Sequence[MetricsRow], name: str) -> Float64Array:
    """``[bands, steps]``: each entry of a histogram metric over its sum; shorter histograms end with zeros."""
    width = max(len(line.lists[name]) for line in lines)
    counts = np.array([[*line.lists[name], *[0.0] * (width - len(line.lists[name]))] for line in lines], dtype=float)
    return np.asarray((counts / np.maximum(counts.sum(axis=1, keepdims=True), 1.0)).T)


def ramp(theme: Theme, count: int) -> list[str]:
    """``count`` colours from failed over middle to solved."""
    half = np.linspace(0, 1, max(count, 2))
    return [
        _mixed(theme.failed, theme.middle, 0.0 if t == 0 else 0.25 + 1.5 * t)
        if t < 0.5
        else _mixed(theme.middle, theme.solved, 2 * t - 1)
        for t in half[:count]
    ]


def _with_list(run: RunRecord | None, name: str) -> list[MetricsRow]:
    return [line for line in (run.lines if run else ()) if sum(line.lists.get(name, ())) > 0]


def _logprobs(axes: Axes, theme: Theme, lines: Sequence[MetricsRow]) -> None:
    shown = (
        ("logprob/fresh", "fresh", theme.baseline, "-"),
        ("logprob/replay", "replays, this policy", theme.rlep, "-"),
        ("logprob/replay_behaviour", "replays, their sampler", theme.rlep, ":"),
    )
    for name, label, colour, style in shown:
        points = [(line.step, line.numbers[name]) for line in lines if name in line.numbers]
        if points:
            axes.plot(*zip(*points, strict=True), color=colour, linestyle=style, linewidth=1.8, label=label)
    axes.set_ylabel("log-prob (nats/token)")
    if axes.lines:
        axes.margins(y=0.25)
        axes.legend(ncols=3, loc="lower right")


def _share_axis(axes: Axes, label: str) -> None:
    per_cent(axes, label)
    axes.set_ylim(0, 1)


def _key(axes: Axes, label: str, colours: Sequence[str]) -> None:
    """A strip of colours 0…n at the right of a stack, bottom to top as in the stack."""
    strip = axes.inset_axes((1.03, 0.0, 0.03, 1.0))
    for i, colour in enumerate(colours):
        strip.bar(0, 1, bottom=i, width=1, color=colour, linewidth=0)
    strip.set_xlim(-0.5, 0.5)
    strip.set_ylim(0, len(colours))
    strip.set_xticks([])
    every = 1 if len(colours) <= 9 else 4
    ticks = [i for i in range(len(colours)) if i % every == 0]
    strip.set_yticks([i + 0.5 for i in ticks], [str(i) for i in ticks])
    strip.yaxis.tick_right()
    strip.yaxis.set_label_position("right")
    strip.set_ylabel(label, fontsize=8)
    strip.grid(visible=False)
    strip.spines[:].set_visible(False)


def _blend(start: str, end: str, parts: Sequence[float] | Float64Array) -> list[str]:
    return [_mixed(start, end, float(part)) for part in parts]


def _mixed(start: str, end: str, part: float) -> str:
    pairs = [(int(start[i : i + 2], 16), int(end[i : i + 2], 16)) for i in (1, 3, 5)]
    return "#" + "".join(f"{round(a + (b - a) * min(max(part, 0.0), 1.0)):02x}" for a, b in pairs)
