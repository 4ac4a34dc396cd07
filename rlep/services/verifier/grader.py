"""The protocol every verifier meets, and the factory that makes one."""

from __future__ import annotations

from collections.abc import Sequence
from types import TracebackType
from typing import Protocol, Self

from rlep.errors import ConfigError
from rlep.services.verifier.jail import Limits
from rlep.services.verifier.stats import GradingStats
from rlep.types import Verdict

Pair = tuple[str, str, bool]
"""``(reference, text, truncated)``."""


class Grader(Protocol):
    """Reads responses against a reference and says what it found. Thread-safe; verdicts keep the order."""

    @property
    def name(self) -> str:
        """Which verifier, e.g. ``math``; stored with each verdict."""

    @property
    def version(self) -> str:
        """Changes whenever a verdict may; stored with each verdict."""

    def grade(self, reference: str, texts: Sequence[str], truncated: Sequence[bool]) -> list[Verdict]:
        """One verdict per text, ``[len(texts)]``."""

    def grade_pairs(self, pairs: Sequence[Pair]) -> list[Verdict]:
        """One verdict per pair, ``[len(pairs)]``."""

    def stats(self) -> GradingStats:
        """Counters and latencies since the start."""

    def close(self) -> None:
        """End every process this verifier started. Idempotent."""

    def __enter__(self) -> Self: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...


def build_verifier(profile: str = "math", *, workers: int = 1, limits: Limits | None = None) -> Grader:
    """The verifier a profile names.

    ``math``, ``strict-box``, ``dapo``; ``exact``; ``regex:PATTERN``, whose first group (or whole match) is the answer;
    ``python:module:function``, the user's own ``function(reference, response) -> bool | (bool, str)``.
    Raises ConfigError for any other.
    """
    from rlep.services.verifier.patterns import exact_match, pattern_match
    from rlep.services.verifier.user_function import FunctionVerifier
    from rlep.services.verifier.verifier import PROFILES, Verifier

    kind, _, argument = profile.partition(":")
    for known in PROFILES:
        if profile == known:
            return Verifier(known, workers=workers, limits=limits)
    if profile == "exact":
        return exact_match()
    if kind == "regex" and argument:
        return pattern_match(argument)
    if kind == "python" and argument:
        return FunctionVerifier(argument, workers=workers, limits=limits)
    choices = ", ".join((*PROFILES, "exact", "regex:PATTERN", "python:module:function"))
    raise ConfigError(f"verifier profile {profile!r} is unknown; known are {choices}")
