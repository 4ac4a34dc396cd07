"""The user's own function as a verifier, in the same killable processes as the symbolic engine."""

from __future__ import annotations

import hashlib
import os
import sys
from collections.abc import Sequence
from importlib.machinery import ModuleSpec
from pathlib import Path

from rlep.core.errors import ConfigError
from rlep.core.types import Verdict
from rlep.services.verifier.base import BaseVerifier, Pair
from rlep.services.verifier.frames import GradingJob
from rlep.services.verifier.jail import Limits
from rlep.services.verifier.judge import JUDGE, read_judge
from rlep.services.verifier.reward_call import terms_of
from rlep.services.verifier.worker_pool import WorkerPool
from rlep.services.verifier.worker_process import Reply


class FunctionVerifier(BaseVerifier):
    """Calls functions with what they ask for by name; each answers with a bool, a score, or ``(either, extracted)``.

    A score is a number in [0, 1], or in the function's ``score_range``, or a mapping of named parts with the score under
    ``score``; ``correct`` where it is at least ``correct_at``, else ``wrong``. Of several functions it is the weighted mean.
    Anything else is ``crashed``, as is an exception. A function may be slow, may crash or loop for ever: it has the limits of
    every worker, no network, no threads and no child processes. Truncated responses are ``no_answer`` and not shown to it.
    """

    asks = True

    def __init__(
        self, function: str, *, workers: int = 1, limits: Limits | None = None, correct_at: float = 1.0
    ) -> None:
        """``function``: ``terms_of`` reads it, and the modules are importable here; or ``judge FILE``. Raises ConfigError."""
        judged = function.startswith(JUDGE)
        name = f"judge:{function.removeprefix(JUDGE)}" if judged else f"python:{function}"
        version = profile_version(name)
        if correct_at != 1.0:
            version += f"-correct-at-{correct_at}"
        self._correct_at = correct_at
        super().__init__(name, version, WorkerPool(function, limits or Limits(), workers))

    def _verdicts(self, pairs: Sequence[Pair]) -> list[Verdict]:
        assert self._pool is not None
        jobs = [GradingJob(pair.reference, pair.text, *pair.asked) for pair in pairs if not pair.truncated]
        replies = iter(self._pool.grade(jobs))
        verdicts = []
        for pair in pairs:
            if pair.truncated:
                verdicts.append(Verdict("no_answer", None, self.name, self.version, "fast"))
            else:
                verdicts.append(self._verdict(next(replies)))
        return verdicts

    def _verdict(self, reply: Reply) -> Verdict:
        status = reply.status
        if reply.score is not None:
            status = "correct" if reply.score >= self._correct_at else "wrong"
        return Verdict(
            status,
            reply.extracted,
            self.name,
            self.version,
            "full",
            reply.seconds,
            reply.score,
            reply.parts,
            reply.failure,
        )


def profile_version(profile: str) -> str:
    """Eight hex digits for ``python:…`` or ``judge:…`` that change whenever a verdict may. Raises ConfigError."""
    kind, _, argument = profile.partition(":")
    return read_judge(Path(argument)).digest if kind == "judge" else source_version(argument)


def source_version(functions: str) -> str:
    """Eight hex digits of the hash of the modules' files and the weights; ConfigError where there is none.

    No module is run. From here on modules of the working directory are found too, after all others: in a run's actors they are.
    """
    try:
        terms = terms_of(functions)
    except ValueError as error:
        raise ConfigError(f"verifier function {error}") from None
    if not {"", os.getcwd()} & {*sys.path}:
        sys.path.append(os.getcwd())
    digest = hashlib.blake2b(digest_size=4)
    for term in terms:
        digest.update(_source(term.function))
        if len(terms) > 1:
            digest.update(f"{term.function}*{term.weight}".encode())
    return digest.hexdigest()


def _source(function: str) -> bytes:
    """The file of a function's module."""
    module = function.partition(":")[0]
    names = module.split(".")
    spec: ModuleSpec | None = None
    for depth in range(1, len(names) + 1):  # find_spec would run the packages that the module is in
        path = spec.submodule_search_locations if spec is not None else None
        spec = _found(".".join(names[:depth]), path) if depth == 1 or path is not None else None
    if spec is None or spec.origin is None or not Path(spec.origin).is_file():
        raise ConfigError(
            f"verifier function {function!r}: no module {module} here or on the path; set PYTHONPATH or install it"
        )
    return Path(spec.origin).read_bytes()


def _found(module: str, path: Sequence[str] | None) -> ModuleSpec | None:
    """Ask the finders of modules, as an import does; ``path``: of the package that it is in."""
    specs = (finder.find_spec(module, path) for finder in sys.meta_path)
    return next((spec for spec in specs if spec is not None), None)
