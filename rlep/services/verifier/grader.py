"""The factory that makes the verifier a profile names."""

from __future__ import annotations

from rlep.core.errors import ConfigError
from rlep.services.verifier.base import BaseVerifier
from rlep.services.verifier.jail import Limits


def build_verifier(profile: str = "math", *, workers: int = 1, limits: Limits | None = None) -> BaseVerifier:
    """The verifier a profile names.

    ``math``, ``math-bare``, ``strict-box``, ``dapo``; ``exact``; ``regex:PATTERN``, whose first group (or whole match)
    is the answer; ``python:module:function``, the user's own ``function(reference, response) -> bool | (bool, str)``.
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
