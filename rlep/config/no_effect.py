"""Settings that would be accepted and then do nothing, or not what they say. Each is refused with the keys that meet."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from rlep.core.errors import ConfigError

if TYPE_CHECKING:
    from rlep.config.schema import Config


def check_loss(config: Config) -> None:
    """Raise ``ConfigError`` for a KL without a gradient, and for importance weights that the sampling makes wrong."""
    loss, rollout, replay = config.loss, config.rollout, config.replay
    if loss.kl_coef and loss.kl_estimator == "k1":
        raise ConfigError(
            f'loss.kl_estimator = "k1" with loss.kl_coef = {loss.kl_coef:g}: in the loss its gradient is zero in expectation, so '
            'it holds the policy nowhere; set "k3" (GRPO) or "k2" (the gradient of the KL itself)'
        )
    if (rollout.temperature, rollout.top_p, rollout.top_k) == (1.0, 1.0, 0):
        return
    weighing = [] if loss.tis_cap is None else [f"loss.tis_cap = {loss.tis_cap:g}"]
    if replay.count and replay.source != "offline":  # a pool's records say themselves how they were sampled
        weighing += [] if replay.is_cap is None else [f"replay.is_cap = {replay.is_cap:g} with live replays"]
        weighing += ['replay.old_logprobs = "behaviour" with live replays'] * (replay.old_logprobs == "behaviour")
    if weighing:
        raise ConfigError(
            f"{weighing[0]} needs rollout.temperature = 1, top_p = 1 and top_k = 0: the sampler's log-probs are those of the "
            "unchanged distribution, so importance weights of a changed one would be wrong"
        )


def check_best(config: Config) -> None:
    """Raise ``ConfigError`` where ``checkpoint.best`` is of evaluations, and no checkpoint but the last one has any."""
    saves, evaluates, steps = config.checkpoint.every, config.evaluation.every, config.run.steps
    if not (config.checkpoint.best or "").startswith("evaluation/") or saves >= steps:
        return
    both = math.lcm(saves, evaluates)  # 0 where only the ends are evaluated
    if not both or both >= steps:
        meet = f"first meet at step {both}" if both else "meet at the last step alone"
        raise ConfigError(
            f"checkpoint.best = {config.checkpoint.best!r}: no checkpoint before the last of run.steps = {steps} has an "
            f"evaluation, because checkpoint.every = {saves} and evaluation.every = {evaluates} {meet}; set them to the same"
        )
