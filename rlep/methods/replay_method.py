"""A replay method: the questions of a step, the stored responses that come back, and the terms by which they enter the loss.

``replay.method`` names one: a file of this folder, or ``python:module:Class`` for your own.
"""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from rlep.core.errors import ConfigError
from rlep.core.types import Trajectory

METHODS = {
    "rlep": "rlep.methods.rlep:Rlep",
    "live": "rlep.methods.live:Live",
    "exgrpo": "rlep.methods.exgrpo:ExGrpo",
    "luffy": "rlep.methods.luffy:Luffy",
}
"""Name → ``module:Class``."""
PYTHON = "python:"
TERMS = {"old_logprobs": "recompute", "shaping": 0.0, "weight": 1.0}
"""Keys of ``[replay]`` that weigh replayed tokens in the loss, at the paper's values."""


@dataclass(frozen=True, slots=True)
class Visit:
    """Cost and success of one prompt's rollout, whether or not its group is trained on."""

    prompt_id: str
    tokens: int
    """Prompt and response tokens of its fresh responses."""
    successes: int
    responses: int


class ReplayMethod:
    """RLEP's decisions: every question of the batch, a draw by ``replay.selection``, replays in every group.

    A method overrides what it does otherwise. There is one object for a run, in the driver's process. A decision may depend
    on its arguments, on ``seed``, and on what ``learn`` was told; then a continued run decides the same.
    """

    replays: ClassVar[Mapping[str, Any]] = {}
    """Keys of ``[replay]`` that choose replays, e.g. ``source``, ``count``, ``group``: defaults that configurations override."""
    terms: ClassVar[Mapping[str, Any]] = {}
    """Keys of ``[replay]`` that weigh replayed tokens in the loss: ``old_logprobs``, ``correction``, ``shaping``, ``weight``."""

    def __init__(self, *, seed: int = 0, fresh: int = 1, options: Mapping[str, float] | None = None) -> None:
        """``seed`` of the run; ``fresh``: G, responses to a prompt; ``options``: other values of the class's numbers.

        Raises ``ConfigError`` for an option that the class does not have.
        """
        self.seed, self.fresh = seed, fresh
        known = [name for name in dir(type(self)) if type(getattr(type(self), name)) in (int, float)]
        for name, value in (options or {}).items():
            if name not in known:
                raise ConfigError(
                    f"replay.options.{name}: {type(self).__name__} has {', '.join(known) or 'no options'}; leave it out"
                )
            setattr(self, name, value)

    def questions(self, step: int, batch: Sequence[str], stored: Mapping[str, int]) -> Sequence[str]:
        """Return the ids of the prompts that step ``step`` trains on, as many as ``batch``, which are the data's next ones.

        ``stored``: prompt id → live responses that may be replayed; those with fewer than ``replay.minimum`` are left out.
        """
        return batch

    def with_replays(self, step: int, prompt_ids: Sequence[str]) -> Sequence[str]:
        """Return those of a step's prompts whose stored responses are drawn."""
        return prompt_ids

    def choose(self, step: int, prompt_id: str, stored: Sequence[Trajectory], count: int) -> Sequence[Trajectory]:
        """Return at most ``count`` of all ``stored`` responses of a prompt; overridden, it replaces ``replay.selection``."""
        return stored[:count]

    def accepts(self, fresh: Sequence[Trajectory]) -> bool:
        """Decide from the verified fresh responses of a prompt whether its replays join them."""
        return True

    def learn(self, step: int, visits: Sequence[Visit]) -> Mapping[str, float]:
        """Take in a complete step's rollouts; returns metrics by names of the catalogue."""
        return {}

    def state(self) -> dict[str, Any]:
        """Return what ``learn`` has kept, as JSON values: it goes into checkpoints."""
        return {}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Go on from a checkpoint's ``state``; empty at the beginning of a run."""


def load_method(name: str) -> type[ReplayMethod]:
    """Return the class that ``replay.method`` names. Raises ``ConfigError`` saying what is wrong with the name."""
    place = name.removeprefix(PYTHON) if name.startswith(PYTHON) else METHODS.get(name)
    if place is None or place.count(":") != 1:
        raise ConfigError(f"replay.method = {name!r}: choose {', '.join(METHODS)}, or python:module:Class")
    module, _, attribute = place.partition(":")
    if not {"", os.getcwd()} & {*sys.path}:  # modules of the working directory are found after all others
        sys.path.append(os.getcwd())
    try:
        found = getattr(importlib.import_module(module), attribute)
    except (ImportError, AttributeError) as error:
        raise ConfigError(
            f"replay.method = {name!r}: {error}; a module is looked for here and on the path: set PYTHONPATH or install it"
        ) from None
    if not (isinstance(found, type) and issubclass(found, ReplayMethod)):
        raise ConfigError(
            f"replay.method = {name!r}: {attribute} is no subclass of rlep.methods.replay_method.ReplayMethod"
        )
    return found


def settings_of(name: str) -> dict[str, Any]:
    """Return the keys of ``[replay]`` that a method sets: the paper's, and its own over them."""
    paper = {"source": "offline", "group": "add", "selection": "uniform"}
    method = load_method(name)
    return paper | TERMS | dict(method.replays) | dict(method.terms)
