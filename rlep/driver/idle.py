"""Steps in a row that bring nothing: every tenth prints a line, and their limit ends the run with the settings to change."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from rlep.config.schema import Config
from rlep.core.errors import MixingError, UpdateError
from rlep.core.plural import counted
from rlep.metrics.catalogue import MetricValue

SAID_EVERY = 10
"""One such step in ten prints a line."""


@dataclass(frozen=True, slots=True)
class IdleSteps:
    """Counts over the last steps of a run, kept in its checkpoints."""

    replays: int = 0
    """Steps in a row that wanted replays, of which none reached the loss."""
    updates: int = 0
    """Steps in a row without an update that had a gradient."""

    def add(self, config: Config, metrics: Mapping[str, MetricValue], *, wanted: bool) -> IdleSteps:
        """Count a step in; ``wanted``: some of its groups accepted replays.

        Raises:
            MixingError: ``replay.idle_steps`` is reached.
            UpdateError: ``update.idle_steps`` is reached.
        """
        replays = self.replays + 1 if wanted and not metrics.get("loss/tokens/replay") else 0
        updates = 0 if metrics.get("update/grad_norm_max") else self.updates + 1
        if 0 < config.replay.idle_steps <= replays:
            raise MixingError(
                f"replay.count = {config.replay.count}, but no replay reached the loss in {replays} steps: see pool/hit, "
                "group/replays and live/questions in metrics.jsonl. Who gets one is up to replay.minimum and replay.method; "
                "replay.idle_steps = 0 goes on without any"
            )
        if 0 < config.update.idle_steps <= updates:
            raise UpdateError(_nothing_learned(f"the last {counted(updates, 'step')}", config, metrics))
        return IdleSteps(replays, updates)

    def notes(self, config: Config, metrics: Mapping[str, MetricValue]) -> list[str]:
        """Return a sentence for each count that has reached another ``SAID_EVERY`` steps."""
        said = []
        if self.replays and self.replays % SAID_EVERY == 0:
            limit = f"; replay.idle_steps = {config.replay.idle_steps} ends the run" if config.replay.idle_steps else ""
            said.append(f"no replay has reached the loss in {self.replays} steps{_stored(metrics)}{limit}")
        if self.updates and self.updates % SAID_EVERY == 0:
            limit = f"; update.idle_steps = {config.update.idle_steps} ends the run" if config.update.idle_steps else ""
            said.append(f"no update has had a gradient in {self.updates} steps: {_why(config, metrics)}{limit}")
        return said

    def check_end(self, config: Config, steps: int) -> None:
        """Raise ``UpdateError`` where no update of all ``steps`` of a run had a gradient."""
        if config.update.idle_steps and 0 < steps <= self.updates:
            raise UpdateError(_nothing_learned(f"any of its {counted(steps, 'step')}", config, {}))


def _nothing_learned(when: str, config: Config, metrics: Mapping[str, MetricValue]) -> str:
    return (
        f"the run has learned nothing in {when}: {_why(config, metrics)}. See rollout/accuracy, verifier/status, "
        "selection/discarded and update/skipped in metrics.jsonl. Questions that the model solves sometimes, a larger "
        "rollout.fresh, or the right verifier.profile give a gradient; update.idle_steps = 0 goes on without one"
    )


def _why(config: Config, metrics: Mapping[str, MetricValue]) -> str:
    """Name the settings that can leave an update without gradient."""
    if config.rollout.dynamic_sampling and not metrics.get("update/count"):
        return (
            f"dynamic sampling found fewer than update.prompts = {config.update.prompts} groups whose verdicts differ"
        )
    if config.loss.reward_coef == 0:
        other = f"loss.teacher = {config.loss.teacher}" if config.loss.teacher else "the base model"
        return f"rewards have no weight (loss.reward_coef = 0), and the policy says what {other} says"
    if metrics.get("update/skipped"):
        return "updates were skipped, with no token to train on or a gradient that is not finite"
    return "all responses to a question had the same reward" + ("" if metrics else ", or no token to train on")


def _stored(metrics: Mapping[str, MetricValue]) -> str:
    """Describe the source that a run with live replay draws from."""
    if "live/responses" not in metrics:
        return ""
    if not metrics["live/responses"]:
        return ", since no response of this run was correct yet"
    return f": {metrics['live/questions']} prompts have replay.minimum of their own"
