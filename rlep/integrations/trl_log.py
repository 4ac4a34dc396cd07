"""Counts of replay in TRL's log: totals since its last line, where TRL itself would log means over rollouts."""

from __future__ import annotations

import weakref
from collections import Counter
from dataclasses import asdict
from typing import Any

from accelerate.utils import gather_object
from transformers import TrainerCallback

from rlep.integrations.counts import Counts

_KEPT = "rlep.replay"
"""Key of the trainer's state under which a checkpoint keeps the counts since the last line."""


class ReplayLog(TrainerCallback):  # type: ignore[misc]
    """Counts of one trainer; an object in each of its processes."""

    def __init__(self, trainer: Any) -> None:
        self._trainer = weakref.ref(trainer)
        self._new: Counter[str] | None = None
        """Of this process, since the last step."""
        self._totals: Counter[str] = _kept(trainer.state)

    def add(self, counts: Counts) -> None:
        """Count a rollout of this process."""
        values = asdict(counts)
        values["steps"] = (values.pop("age") or 0.0) * counts.live
        self._new = self._new or Counter()
        self._new.update(values)

    def on_train_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Go on from the checkpoint, or from nothing."""
        self._new, self._totals = None, _kept(state)

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Give TRL the totals of all processes; its mean over one number is that number."""
        self._total(state)
        self.on_epoch_end(args, state, control)

    def on_epoch_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Have a line written before an evaluation: a training that ends with one has no later line of its own."""
        control.should_log = control.should_log or (control.should_evaluate and bool(self._totals))

    def _total(self, state: Any) -> None:
        trainer = self._trainer()
        if self._new is None or trainer is None:  # a step on responses of an earlier one
            return
        for counts in gather_object([self._new]):
            self._totals.update(counts)
        self._new = None
        state.stateful_callbacks[_KEPT] = dict(self._totals)
        values: dict[str, float] = dict(self._totals)
        steps = values.pop("steps")
        if values["live"]:
            values["age"] = steps / values["live"]
        for name, value in values.items():
            trainer._metrics["train"][f"replay/{name}"] = [float(value)]

    def on_log(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Begin again after a line of the training; an evaluation's has no replays."""
        trainer = self._trainer()
        if trainer is not None and trainer.model.training:
            self._totals.clear()
            state.stateful_callbacks.pop(_KEPT, None)


def _kept(state: Any) -> Counter[str]:
    return Counter(state.stateful_callbacks.get(_KEPT, {}))
