"""What verifiers share that decide in this process, without workers."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Self

from rlep.services.verifier.stats import GradingStats, StatsRecorder
from rlep.types import Status, Verdict

VERSION = "1"


class LocalVerifier:
    """A verifier that is a pure function of reference, text and whether the text was truncated."""

    def __init__(self, name: str, judge: Callable[[str, str, bool], tuple[Status, str | None]]) -> None:
        """``judge(reference, text, truncated)`` returns ``(status, extracted)``."""
        self._name = name
        self._judge = judge
        self._recorder = StatsRecorder()

    @property
    def name(self) -> str:
        """Which verifier this is."""
        return self._name

    @property
    def version(self) -> str:
        """Changes whenever a verdict may."""
        return VERSION

    def grade(self, reference: str, texts: Sequence[str], truncated: Sequence[bool]) -> list[Verdict]:
        """One verdict per text, in order."""
        return self.grade_pairs([(reference, text, cut) for text, cut in zip(texts, truncated, strict=True)])

    def grade_pairs(self, pairs: Sequence[tuple[str, str, bool]]) -> list[Verdict]:
        """One verdict per ``(reference, text, truncated)``, in order."""
        verdicts = []
        for reference, text, truncated in pairs:
            started = time.perf_counter()
            status, extracted = self._judge(reference, text, truncated)
            seconds = time.perf_counter() - started
            verdicts.append(Verdict(status, extracted, self._name, VERSION, "fast", seconds))
        self._recorder.add(verdicts)
        return verdicts

    def stats(self) -> GradingStats:
        """Counters and latencies since this verifier was made."""
        return self._recorder.snapshot(0)

    def close(self) -> None:
        """Nothing to end."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
