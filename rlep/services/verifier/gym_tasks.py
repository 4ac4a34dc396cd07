"""The tasks of reasoning-gym as data sets: their names and settings, and entries, made and checked in worker processes."""

from __future__ import annotations

import difflib
import json
import re
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any

from rlep.core.errors import ConfigError, VerifierError
from rlep.core.progress import Advance
from rlep.core.seeds import seed_for
from rlep.services.verifier.grading_job import GradingJob
from rlep.services.verifier.gym import REFUSED, GymVerifier, package_version
from rlep.services.verifier.reply import Reply
from rlep.services.verifier.worker_pool import WorkerPool
from rlep.services.worker.jail import Limits

_MAKER = "rlep.services.verifier.gym_worker:make"
_LIMITS = Limits(cpu_seconds=60, wall_seconds=240, memory_mb=4096)
"""For one question; some search for a puzzle with a single solution."""
_OURS = ("seed", "size")
"""Fields of every task's configuration that have options of their own."""
_SEEDS = 1 << 31
"""Numpy takes 32 bits."""
_CHUNK = 64
_UNDOCUMENTED = {
    "arc_agi": "Grids that an unknown rule changes (ARC-AGI)",
    "boxnet": "Plans for robot arms that move boxes between cells",
    "calendar_arithmetic": "Questions on dates, weekdays and the days between them",
    "emoji_mystery": "Sentences hidden in an emoji",
    "list_functions": "Functions of lists, given by examples",
    "puzzle24": "Four numbers combined to 24",
    "rearc": "Grids that an unknown rule changes (re-ARC)",
}
"""Task → what it asks, where the package does not say."""


@dataclass(frozen=True, slots=True)
class Made:
    """Questions of one task."""

    entries: tuple[str, ...]
    """Entries as JSON, in the order of their index."""
    repeated: int
    """Entries left out because an earlier one asks the same."""
    disputed: int
    """Entries left out because their own reference is not ``correct``."""


def task_names() -> tuple[str, ...]:
    """Every task of the installed reasoning-gym, sorted, refused ones too. Raises ConfigError where it is not installed."""
    return tuple(sorted(_registry()))


def description_of(task: str) -> str:
    """A task's question: the first line of the package's own documentation of it, or ours where it has none."""
    made_by = _registry()[task][0]
    module = sys.modules[made_by.__module__].__doc__ or ""
    own = vars(made_by).get("__doc__") or ""
    lines = [text.strip().splitlines()[0] for text in (module, own) if text.strip()]
    said = next((line for line in lines if not line.startswith("http")), _UNDOCUMENTED.get(task, ""))
    return re.sub(r"\[(.*?)\]\(.*?\)", r"\1", said).strip(" -:.")


def make(task: str, *, size: int, seed: int, settings: Mapping[str, object], advance: Advance = lambda _: None) -> Made:
    """Entries 0…``size`` − 1 of a task, each a function of (task, settings, seed, index); ``advance(n)`` says n are done.

    Raises:
        ConfigError: reasoning-gym is not installed, or the task is unknown, refused, or refuses the settings.
        VerifierError: an entry that cannot be made.
    """
    _check(task, settings)
    # Tasks draw entry i from seed + i: neighbouring seeds would share almost all of their questions.
    start_seed = seed_for(seed, "reasoning-gym", task) % _SEEDS
    request = json.dumps({"task": task, "seed": start_seed, "config": settings})
    pool = WorkerPool(_MAKER, _LIMITS, 1)
    kept: dict[str, str] = {}
    repeated = disputed = 0
    try:
        with GymVerifier(limits=_LIMITS) as verifier:
            for start in range(0, size, _CHUNK):
                indices = range(start, min(start + _CHUNK, size))
                replies = pool.grade([GradingJob(request, str(index)) for index in indices])
                made = [_entry(task, settings, index, reply) for index, reply in zip(indices, replies, strict=True)]
                for gold, agrees in zip(made, _agree(verifier, made), strict=True):
                    question = json.loads(gold)["question"].strip()
                    repeated += question in kept
                    disputed += question not in kept and not agrees
                    if agrees:
                        kept.setdefault(question, gold)
                advance(len(indices))
    finally:
        pool.close()
    return Made(tuple(kept.values()), repeated, disputed)


def _entry(task: str, settings: Mapping[str, object], index: int, reply: Reply) -> str:
    if reply.status == "correct" and reply.extracted is not None:
        return reply.extracted
    if reply.status == "wrong":
        given = ", ".join(f"{key}={value}" for key, value in settings.items()) or "these settings"
        raise ConfigError(f"task {task} refuses --set {given}: {reply.extracted}")
    raise VerifierError(f"question {index} of task {task} cannot be made: {reply.failure or reply.status}")


def _agree(verifier: GymVerifier, entries: Sequence[str]) -> list[bool]:
    """Mark the entries whose own reference is ``correct``, ``[len(entries)]``."""
    pairs = [(gold, verifier.stated(gold)[0], False) for gold in entries]
    return [verdict.status == "correct" for verdict in verifier.grade_pairs(pairs)]


def _check(task: str, settings: Mapping[str, object]) -> None:
    """Raises ConfigError for a task that is unknown or refused, and for a setting that it does not have."""
    registry = _registry()
    if task not in registry:
        near = difflib.get_close_matches(task, registry, n=3)
        hint = f"did you mean {', '.join(near)}?" if near else "rlep tasks list shows all"
        raise ConfigError(f"unknown task {task}; {hint}")
    if task in REFUSED:
        raise ConfigError(f"task {task} is refused: {REFUSED[task]}")
    known = [field.name for field in fields(registry[task][1]) if field.name not in _OURS]
    for key in settings:
        if key in _OURS:
            raise ConfigError(f"--set {key}: use --{key}")
        if key not in known:
            near = difflib.get_close_matches(key, known, n=3) or known
            raise ConfigError(f"--set {key}: task {task} has no such key; it has {', '.join(near) or 'none'}")


def _registry() -> dict[str, Any]:
    """Task -> its classes of data set and configuration."""
    package_version()
    from reasoning_gym.factory import DATASETS

    return dict(DATASETS)
