"""Numbers, times, metrics and events in a reader's words."""

from __future__ import annotations

import math
import re
import time
from collections.abc import Mapping
from functools import lru_cache

from rlep.metrics.catalogue import Metric, metric_for

LABELS: Mapping[str, str] = {
    "rollout/accuracy": "Correct fresh responses",
    "selection/accuracy": "Correct among those trained on",
    "rollout/reward": "Reward, fresh",
    "replay/reward": "Reward, replays",
    "rollout/score": "Score, fresh",
    "rollout/length_mean": "Length, fresh",
    "replay/length_mean": "Length, replays",
    "rollout/truncated": "Cut at the token limit",
    "rollout/tokens_per_second": "Generated tokens per second",
    "group/informative": "Groups with a learning signal",
    "group/solved_by_replay": "Groups rescued by a replay",
    "replay/age": "Age of replays",
    "replay/trajectories": "Replays drawn",
    "prompts/solved": "Questions solved so far",
    "prompts/lost": "Questions solved before, not now",
    "loss/policy": "Policy loss",
    "loss/tokens/fresh": "Tokens in the loss, fresh",
    "loss/tokens/replay": "Tokens in the loss, replays",
    "logprob/fresh": "Log-prob, fresh",
    "logprob/replay": "Log-prob of replays",
    "logprob/replay_behaviour": "Log-prob of replays, their sampler's",
    "update/entropy/fresh": "Entropy, fresh",
    "update/entropy/replay": "Entropy, replays",
    "update/approx_kl/fresh": "KL to the step's policy, fresh",
    "update/approx_kl/replay": "KL to the step's policy, replays",
    "update/grad_norm": "Gradient norm",
    "update/learning_rate": "Learning rate",
    "update/flop_utilization": "GPU utilization",
    "ratio/mean/fresh": "Importance ratio, fresh",
    "ratio/mean/replay": "Importance ratio, replays",
    "advantage/mass/fresh": "Advantage mass, fresh",
    "advantage/mass/replay": "Advantage mass, replays",
    "pool/hit": "Questions that got a replay",
    "verifier/seconds": "Seconds a verdict",
    "generator/kv_use": "KV cache in use",
    "generator/preempted": "Requests preempted",
    "time/step": "Time of a step",
    "update/tokens_per_second": "Trained tokens per second",
}
"""Metric → a few words; others are called by ``label_of``."""
SEVERITY: Mapping[str, str] = {
    "run_failed": "error",
    "head_lost": "error",
    "grading_failed": "error",
    "actor_lost": "warning",
    "logs_lost": "warning",
    "update_skipped": "warning",
    "checkpoint_refused": "warning",
    "rollouts_skipped": "warning",
    "run_interrupted": "warning",
    "metrics_truncated": "warning",
    "settings_changed": "warning",
}
"""Event → how much it matters; others are information."""
_ID = re.compile(r"\b([0-9a-f]{8})[0-9a-f]{5,}\b")
_SIZES = ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e4, "k"))


def label_of(name: str) -> str:
    """A metric in words: ``time/update`` is ``Seconds: update``."""
    if name in LABELS:
        return LABELS[name]
    family, _, rest = name.partition("/")
    rest = rest.replace("/", ", ").replace("_", " ")
    if family == "time":
        return f"Seconds: {rest}"
    return f"{family.capitalize()}: {rest}" if rest else name


@lru_cache(4096)
def _known(name: str) -> Metric | None:
    """The catalogue's entry; None for a name that is not there, which it takes long to say."""
    try:
        return metric_for(name.partition("[")[0])
    except ValueError:
        return None


def unit_of(name: str) -> str:
    """A metric's unit, as the catalogue has it; empty for a name that is not there."""
    known = _known(name)
    return "" if known is None or known.unit == "as given" else known.unit


def help_of(name: str) -> str:
    """The catalogue's sentence on a metric; its own name for one of the user's."""
    known = _known(name)
    return name if known is None else f"{name}: {known.help}"


def is_own(name: str) -> bool:
    """True for a metric of the user's: a part of a reward or score, or a name that the catalogue lacks."""
    if "/part/" in name and not name.startswith("loss/"):
        return True
    return _known(name) is None


def number(value: float | None, unit: str = "") -> str:
    """A value as a person would write it: ``40.6 %``, ``3.2 s``, ``1.31M``; a dash for none."""
    if value is None or math.isnan(value):
        return "–"
    if math.isinf(value):
        return "∞" if value > 0 else "−∞"
    if abs(value) >= 1e18:
        return f"{value:.3g}"
    if unit == "share":
        return f"{_plain(100 * value, 1)} %"
    if unit == "s":
        return duration(value)
    for size, letter in _SIZES:
        if abs(value) >= size:
            return f"{_significant(value / size)}{letter}"
    return _significant(value)


def _plain(value: float, digits: int) -> str:
    text = f"{value:.{digits}f}"
    return text.rstrip("0").rstrip(".") if float(text) == int(float(text)) else text


def _significant(value: float) -> str:
    if value == int(value) and abs(value) < 1e6:
        return str(int(value))
    if abs(value) < 1e-3:
        return f"{value:.1e}".replace("e-0", "e-")
    if abs(value) >= 1000:
        return f"{value:,.0f}"
    return f"{value:.3g}"


def duration(seconds: float) -> str:
    """``7.8 µs``, ``9.4 ms``, ``0.42 s``, ``12.3 s``, ``4 min 5 s``, ``2 h 5 min``, ``3 d 4 h``."""
    for size, unit in ((1e-3, "µs"), (0.1, "ms")):
        if 0 < abs(seconds) < size:
            value = seconds * {"µs": 1e6, "ms": 1e3}[unit]
            return f"{value:.0f} {unit}" if abs(value) >= 10 else f"{value:.2g} {unit}"
    if abs(seconds) < 60:
        return f"{_significant(seconds)} s"
    whole = round(seconds)
    for size, unit, part, part_unit in ((86400, "d", 3600, "h"), (3600, "h", 60, "min"), (60, "min", 1, "s")):
        if whole >= size:
            rest = whole % size // part
            return f"{whole // size} {unit} {rest} {part_unit}" if rest else f"{whole // size} {unit}"
    return f"{_significant(seconds)} s"


def clock(seconds: float) -> str:
    """Seconds since the epoch as local date and time; a dash for 0."""
    if not seconds:
        return "–"
    return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(min(max(seconds, 0.0), 2**33)))


def ago(seconds: float) -> str:
    """Age of a time, by this machine's clock."""
    if not seconds:
        return "–"
    return f"{duration(round(max(0.0, time.time() - seconds)))} ago"


def short(name: str) -> str:
    """Ids of hexadecimal digits by their first eight; other words whole."""
    return _ID.sub(r"\1…", name)
