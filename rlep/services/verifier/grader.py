"""The factory that makes the verifier a profile names."""

from __future__ import annotations

from rlep.config.roles import VerifierConfig
from rlep.core.errors import ConfigError
from rlep.core.versions import check_installed
from rlep.services.verifier.base import BaseVerifier
from rlep.services.worker.jail import Limits

_GRACE_S = 30.0
"""After its deadline a process has this long to say so."""


def build_verifier(
    profile: str = "math",
    *,
    workers: int = 1,
    limits: Limits | None = None,
    correct_at: float = 1.0,
    answer_after: str | None = None,
) -> BaseVerifier:
    """The verifier a profile names.

    ``math``, ``math-bare``, ``strict-box``, ``dapo``; ``exact``; ``regex:PATTERN``, whose first group (or whole match)
    is the answer; ``reasoning-gym``, see ``GymVerifier``; ``code``, see ``CodeVerifier``; ``python:module:function``, the
    user's own, see ``FunctionVerifier``; ``judge:FILE``, see ``judge.py``. ``correct_at``: the least score of these two that is
    correct. ``answer_after``: only the text after the last of these marks counts. Raises ConfigError for any other.
    """
    verifier = _of_profile(profile, workers, limits, correct_at)
    if answer_after:
        verifier.read_after(answer_after)
    return verifier


def _of_profile(profile: str, workers: int, limits: Limits | None, correct_at: float) -> BaseVerifier:
    from rlep.services.verifier.code_verifier import NAME as CODE
    from rlep.services.verifier.code_verifier import CodeVerifier
    from rlep.services.verifier.gym import NAME, GymVerifier
    from rlep.services.verifier.judge import JUDGE
    from rlep.services.verifier.patterns import exact_match, pattern_match
    from rlep.services.verifier.user_function import FunctionVerifier
    from rlep.services.verifier.verifier import PROFILES, Verifier

    kind, _, argument = profile.partition(":")
    if correct_at != 1.0 and kind not in ("python", "judge"):
        raise ConfigError(
            f"a threshold of {correct_at:g} with profile {profile}: only python:module:function and judge:FILE take one"
        )
    if not 0.0 < correct_at <= 1.0:
        raise ConfigError(f"a threshold of {correct_at:g}: scores lie in [0, 1], take one above 0")
    for known in PROFILES:
        if profile == known:
            return Verifier(known, workers=workers, limits=limits)
    if profile == "exact":
        return exact_match()
    if profile == NAME:
        return GymVerifier(workers=workers, limits=limits)
    if profile == CODE:
        return CodeVerifier(workers=workers, limits=limits)
    if kind == "regex" and argument:
        return pattern_match(argument)
    if kind == "judge" and argument:
        check_installed("httpx")
        limits = limits if limits is not None and limits.network else network_limits(VerifierConfig())
        return FunctionVerifier(f"{JUDGE}{argument}", workers=workers, limits=limits, correct_at=correct_at)
    if kind == "python" and argument:
        return FunctionVerifier(argument, workers=workers, limits=limits, correct_at=correct_at)
    choices = ", ".join((*PROFILES, "exact", NAME, CODE, "regex:PATTERN", "python:module:function", "judge:FILE"))
    raise ConfigError(f"verifier profile {profile!r} is unknown; known are {choices}")


def configured_verifier(config: VerifierConfig, *, workers: int = 1) -> BaseVerifier:
    """Start the verifier of a configuration, to be closed. Raises ``ConfigError``."""
    return build_verifier(
        config.profile,
        workers=workers,
        limits=limits_of(config),
        correct_at=config.correct_at,
        answer_after=config.answer_after,
    )


def limits_of(config: VerifierConfig) -> Limits:
    """Return the limits of one response; a wall-clock limit below its CPU time would be the only one."""
    if config.network or config.profile.startswith("judge:"):
        return network_limits(config)
    return Limits(cpu_seconds=config.cpu_seconds, wall_seconds=max(Limits().wall_seconds, 4 * config.cpu_seconds))


def network_limits(config: VerifierConfig) -> Limits:
    """Return the limits of a function that uses the network: its process itself keeps the deadline."""
    return Limits(
        cpu_seconds=config.cpu_seconds,
        wall_seconds=config.deadline_s + _GRACE_S,
        memory_mb=4096,
        recycle_mb=1024,
        network=True,
        at_once=config.concurrency,
        deadline_s=config.deadline_s,
    )
