"""The factory that makes the verifier a profile names."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import cast, get_args

from rlep.config.roles import FUNCTIONS, MathProfile, VerifierConfig
from rlep.core.builds import installed
from rlep.core.versions import check_installed
from rlep.services.verifier.base import VERSION, BaseVerifier
from rlep.services.verifier.gym import package_version
from rlep.services.verifier.judge import read_judge
from rlep.services.verifier.reward_call import terms_of
from rlep.services.worker.jail import Limits
from rlep.services.worker.process import START_SECONDS
from rlep.services.worker.source import code_versions

_SYMBOLIC = ("math-verify", "latex2sympy2-extended", "sympy")
"""Packages that the mathematical profiles compare answers with."""
_GRACE_S = 30.0
"""After its deadline a process has this long to say so."""


def grader_of(config: VerifierConfig) -> str:
    """Name what decides the verdicts of a configuration, with the versions of its code, without starting it.

    Raises ``ConfigError`` where there is no such code.
    """
    kind, _, argument = config.profile.partition(":")
    parts = {config.profile: VERSION}
    if kind == "judge":
        parts = {config.profile: read_judge(Path(argument)).digest}
    elif kind == "python":
        parts = {config.profile: ""}
        for term in terms_of(argument):
            parts |= code_versions(term.function, "verifier function")
    elif kind == "reasoning-gym":
        parts |= {kind: f"{VERSION} with {package_version()}"}
    elif kind == "code":
        parts |= {"Python": ".".join(map(str, sys.version_info[:2]))}
    elif kind in get_args(MathProfile) and kind != "dapo":
        parts |= {name: found for name in _SYMBOLIC if (found := installed(name)) is not None}
    return ", ".join(f"{name} {version}".rstrip() for name, version in parts.items())


def configured_verifier(config: VerifierConfig, *, workers: int = 1) -> BaseVerifier:
    """Start the verifier of a configuration, to be closed. Raises ``ConfigError``."""
    verifier = _of_profile(config, workers)
    if config.answer_after:
        verifier.read_after(config.answer_after)
    return verifier


def _of_profile(config: VerifierConfig, workers: int) -> BaseVerifier:
    from rlep.services.verifier.code_verifier import NAME as CODE
    from rlep.services.verifier.code_verifier import CodeVerifier
    from rlep.services.verifier.gym import NAME, GymVerifier
    from rlep.services.verifier.patterns import exact_match, pattern_match
    from rlep.services.verifier.user_function import FunctionVerifier
    from rlep.services.verifier.verifier import Verifier

    profile, limits = config.profile, limits_of(config)
    kind, _, argument = profile.partition(":")
    if kind == "judge":
        check_installed("httpx")
    if profile.startswith(FUNCTIONS):
        return FunctionVerifier(profile, workers=workers, limits=limits, correct_at=config.correct_at)
    if kind == "regex":
        return pattern_match(argument)
    if profile == "exact":
        return exact_match()
    if profile == NAME:
        return GymVerifier(workers=workers, limits=limits)
    if profile == CODE:
        return CodeVerifier(workers=workers, limits=limits)
    return Verifier(cast("MathProfile", profile), workers=workers, limits=limits)


def limits_of(config: VerifierConfig) -> Limits:
    """Return the limits of one response; a wall-clock limit below its CPU time would be the only one."""
    if config.network or config.profile.startswith("judge:"):
        return network_limits(config)
    return Limits(
        cpu_seconds=config.cpu_seconds,
        first_seconds=_first_seconds(config),
        wall_seconds=max(Limits().wall_seconds, 4 * config.cpu_seconds),
        variables=config.variables,
    )


def _first_seconds(config: VerifierConfig) -> float:
    """CPU time of a process's first job: code of others may import and build as it is called, as it may where it is imported."""
    return START_SECONDS if config.profile.startswith(("python:", "reasoning-gym")) else 0.0


def network_limits(config: VerifierConfig) -> Limits:
    """Return the limits of a function that uses the network: its process itself keeps the deadline."""
    return Limits(
        cpu_seconds=config.cpu_seconds,
        first_seconds=_first_seconds(config),
        wall_seconds=config.deadline_s + _GRACE_S,
        memory_mb=4096,
        recycle_mb=1024,
        network=True,
        at_once=config.concurrency,
        deadline_s=config.deadline_s,
        variables=config.variables,
    )
