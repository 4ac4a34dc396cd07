"""Exact match for answers that are not mathematics: the whole response, or what a regular expression picks from it."""

from __future__ import annotations

import re
import time
import unicodedata
from collections.abc import Callable, Sequence

from rlep.core.errors import ConfigError
from rlep.core.types import Status, Verdict
from rlep.services.verifier.base import BaseVerifier, Pair

_MAX_TEXT = 20_000
"""A pattern sees this many characters at the end of a response."""


class LocalVerifier(BaseVerifier):
    """A pure function of reference, text and whether the text was truncated."""

    def __init__(self, name: str, judge: Callable[[str, str, bool], tuple[Status, str | None]]) -> None:
        """``judge(reference, text, truncated)`` returns ``(status, extracted)``."""
        super().__init__(name)
        self._judge = judge

    def _verdicts(self, pairs: Sequence[Pair]) -> list[Verdict]:
        verdicts = []
        for reference, text, truncated, _ in pairs:
            started = time.perf_counter()
            status, extracted = self._judge(reference, text, truncated)
            seconds = time.perf_counter() - started
            verdicts.append(Verdict(status, extracted, self.name, self.version, "fast", seconds))
        return verdicts


def exact_match() -> LocalVerifier:
    """The whole response equals the reference; a truncated one is ``no_answer``."""
    return LocalVerifier("exact", lambda reference, text, cut: _compare(reference, None if cut else text.strip()))


def pattern_match(pattern: str) -> LocalVerifier:
    """The last match in the response (its group 1, if there is one) equals the reference.

    Raises ConfigError for a pattern that does not compile. The pattern is trusted: a careless one can be slow.
    """
    try:
        compiled = re.compile(pattern, re.MULTILINE)
    except re.error as error:
        raise ConfigError(f"verifier pattern {pattern!r} is no regular expression: {error}") from error
    name = f"regex:{pattern}"
    return LocalVerifier(name, lambda reference, text, cut: _compare(reference, _pick(compiled, text, cut)))


def _pick(pattern: re.Pattern[str], text: str, truncated: bool) -> str | None:
    """The answer; of a truncated text only a match that does not touch its end."""
    tail = text[-_MAX_TEXT:]
    last = None
    for match in pattern.finditer(tail):
        last = match
    if last is None or (truncated and last.end() == len(tail)):
        return None
    return last.group(1 if pattern.groups else 0)


def _compare(reference: str, answer: str | None) -> tuple[Status, str | None]:
    if not answer:
        return "no_answer", None
    return ("correct" if _plain(answer) == _plain(reference) else "wrong"), answer


def _plain(text: str) -> str:
    """NFKC, case-folded, white space collapsed; nothing else is forgiven."""
    return " ".join(unicodedata.normalize("NFKC", text).casefold().split())
