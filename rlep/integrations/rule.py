"""The keys of ``[replay]`` that choose replays, for a trainer that assembles and weighs its groups by itself."""

from __future__ import annotations

from typing import Any

from rlep.config.replay import ReplayConfig
from rlep.config.section import assigned
from rlep.config.settings import parse_config
from rlep.core.errors import ConfigError
from rlep.methods.replay_method import TERMS, ReplayMethod, load_method, settings_of

CHOICE = (
    *("method", "options", "count", "schedule", "source", "selection", "per_question", "max_age", "age_decay"),
    *("minimum", "start_step", "only_below", "other_template"),
)
"""Keys that another trainer takes."""
UNKNOWN_TO_TRAINERS = {
    "least-used": "counts how often each response was drawn, which no checkpoint of this trainer holds",
    "most-probable": "scores all stored responses under the current policy, which only rlep's own trainer does",
    "least-probable": "scores all stored responses under the current policy, which only rlep's own trainer does",
}
"""Selections that need more than the pool, and why."""
_LONGEST_RUN = 10**9
"""Steps: how many there are is the trainer's to say, and no schedule or first step is refused here for them."""


def replay_rule(count: int, **keys: Any) -> ReplayConfig:
    """The section ``[replay]`` of M = ``count`` and other keys of it.

    The defaults are those of method ``live`` with ``source = "both"``: what the pool holds and what the run adds. Raises
    ``ConfigError`` for a key or a method that a trainer other than rlep's own cannot follow.
    """
    if others := sorted(keys.keys() - CHOICE):
        raise ConfigError(
            f"replay.{others[0]}: groups and their loss are the trainer's own, so that of [replay] it takes {', '.join(CHOICE)}"
        )
    method = keys.setdefault("method", "live")
    if method == "live":
        keys.setdefault("source", "both")
    settings = settings_of(method)
    plain = settings_of("rlep")
    terms = [assigned(key, settings[key]) for key in TERMS if settings[key] != plain[key]]
    if terms:
        raise ConfigError(f'replay.method = "{method}": {", ".join(terms)} is no part of the trainer\'s loss')
    chosen = {key: value for key, value in settings.items() if key in CHOICE} | keys | {"count": count}
    if why := UNKNOWN_TO_TRAINERS.get(chosen["selection"]):
        raise ConfigError(f'replay.selection = "{chosen["selection"]}" {why}; set another, e.g. "newest"')
    rule = parse_config({"replay": chosen, "run": {"steps": _LONGEST_RUN}}).replay
    if not rule.count:
        raise ConfigError("replay.count = 0: nothing would be replayed; leave rlep out, or set it to 1 or more")
    return rule


def replay_method(rule: ReplayConfig, seed: int) -> ReplayMethod:
    """The object of ``rule.method``. Raises ``ConfigError`` where it decides about what is not in its hands here."""
    kind, name = load_method(rule.method), f'replay.method = "{rule.method}"'
    if kind.questions is not ReplayMethod.questions:
        raise ConfigError(f"{name} chooses the questions of a step, which are the trainer's; choose another method")
    if kind.learn is not ReplayMethod.learn:
        raise ConfigError(
            f"{name} learns from each step, which no checkpoint of this trainer holds; choose another method"
        )
    return kind(seed=seed, options=rule.options)
