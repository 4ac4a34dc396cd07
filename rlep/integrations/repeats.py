"""A warning where a training has no use for replay: no question comes back within its steps."""

from __future__ import annotations

import logging
from collections.abc import Iterable

from rlep.config.replay import ReplayConfig

_log = logging.getLogger(__name__)


def warn_unless_repeated(rollouts: Iterable[Iterable[str]], steps: int, rule: ReplayConfig, pool: str) -> None:
    """Warn where no question is in two rollouts, and the rule draws from what the run stores.

    Args:
        rollouts: the questions of each rollout, read until one comes back.
        steps: of the training.
        rule: of the replays.
        pool: name of their pool.
    """
    if rule.source == "offline" or _repeated(rollouts):
        return
    others = "" if rule.source == "live" else f" but what other runs stored in pool {pool}"
    _log.warning(
        "no question comes twice in these %d steps: nothing will be replayed%s. Train longer than one pass over the data set, or "
        "take a smaller one",
        steps,
        others,
    )


def _repeated(rollouts: Iterable[Iterable[str]]) -> bool:
    before: set[str] = set()
    for rollout in rollouts:
        questions = {*rollout}
        if before & questions:
            return True
        before |= questions
    return False
