"""A verifier that decides in this process, without workers."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

from rlep.core.types import Status, Verdict
from rlep.services.verifier.base import BaseVerifier, Pair


class LocalVerifier(BaseVerifier):
    """A pure function of reference, text and whether the text was truncated."""

    def __init__(self, name: str, judge: Callable[[str, str, bool], tuple[Status, str | None]]) -> None:
        """``judge(reference, text, truncated)`` returns ``(status, extracted)``."""
        super().__init__(name)
        self._judge = judge

    def _verdicts(self, pairs: Sequence[Pair]) -> list[Verdict]:
        verdicts = []
        for reference, text, truncated in pairs:
            started = time.perf_counter()
            status, extracted = self._judge(reference, text, truncated)
            seconds = time.perf_counter() - started
            verdicts.append(Verdict(status, extracted, self.name, self.version, "fast", seconds))
        return verdicts
