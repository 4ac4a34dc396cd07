"""Replay methods of a user's own, as ``replay.method`` of tests."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from rlep.methods.exgrpo import ExGrpo


class Retired(ExGrpo):
    """Replays for all questions of the batch but the solved ones, once half of a step's responses were correct."""

    start_accuracy = 0.5
    terms = {}
    replays = {"source": "live", "minimum": 1}

    def questions(self, step: int, batch: Sequence[str], stored: Mapping[str, int]) -> Sequence[str]:
        return batch

    def with_replays(self, step: int, prompt_ids: Sequence[str]) -> Sequence[str]:
        return [prompt_id for prompt_id in prompt_ids if self._started and not self._retired(prompt_id)]


class Bucket(ExGrpo):
    """Questions by their successes, from the first success on, with RLEP's terms."""

    start_accuracy = 0.0
    terms = {}
    replays = {"source": "live", "minimum": 1, "group": "replace"}


class Shared(ExGrpo):
    """As ``Bucket``, with replays that are added, and nobody retired."""

    start_accuracy, retire_after = 0.2, 0
    terms = {}
    replays = {"source": "live", "minimum": 1}
