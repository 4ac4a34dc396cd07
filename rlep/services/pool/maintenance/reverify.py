"""Grading a pool again: which responses the present verifier still finds correct, and setting aside those it does not."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from rlep.core.errors import PoolError
from rlep.core.progress import Advance
from rlep.core.types import NOT_ASKED, UNDECIDED, Asked, Trajectory, Verdict
from rlep.services.pool.files.texts import GradePairs, Texts
from rlep.services.pool.storage.scan import trajectory_of

if TYPE_CHECKING:
    from rlep.services.pool.rpc.client import PoolClient

_BATCH, _BATCH_TOKENS = 256, 1 << 20


@dataclass(frozen=True, slots=True)
class Difference:
    """A response whose verdict changed."""

    prompt_id: str
    content_id: str
    before: Verdict
    after: Verdict
    quarantined: bool


@dataclass(slots=True)
class Reverified:
    """Findings of grading a pool again."""

    graded: int = 0
    statuses: Counter[str] = field(default_factory=Counter)
    """Verdict → responses."""
    failed: int = 0
    """Answers with another verdict than they came in with: not correct any more, or in a pool of wrong ones not wrong."""
    undecided: int = 0
    """Of ``UNDECIDED``."""
    reread: int = 0
    """The same verdict, but another text was taken for the answer, or the score is another."""
    quarantined: int = 0
    unknown: int = 0
    """Answers to questions that have no reference here: not graded."""
    unknown_questions: int = 0


def reverify(
    pool: PoolClient,
    references: Mapping[str, str],
    tokenizer: Texts,
    grade_pairs: GradePairs,
    *,
    quarantine: bool,
    report: Callable[[Difference], None],
    openings: Mapping[str, str] | None = None,
    asked: Mapping[str, Asked] | None = None,
    advance: Advance = lambda _: None,
) -> Reverified:
    """Grade every response of a pool against ``references`` (prompt id → reference), some hundred at a time.

    ``openings`` (prompt id → mark) are what prompts open themselves, e.g. ``<think>``: the text that is graded begins with it.
    ``asked`` (prompt id → question) is what a reward function may ask for.

    ``report`` is told of every difference. With ``quarantine`` what has another verdict now is set aside, never to come
    back by ``add``. May be repeated. Raises ``PoolError`` for a sealed pool, another tokenizer, or episodes.
    """
    stats = pool.stats()
    if quarantine and stats.sealed:
        raise PoolError(f"pool {pool.name} is sealed: nothing can be set aside in it; only look (--dry-run)")
    if tokenizer.digest != stats.tokenizer_digest:
        raise PoolError(f"the tokenizer is {tokenizer.digest}; pool {pool.name} has {stats.tokenizer_digest}")
    prompts = pool.prompt_ids()
    known = [prompt_id for prompt_id in prompts if prompt_id in references]
    result = Reverified(unknown_questions=len(prompts) - len(known))
    others = [prompt_id for prompt_id in prompts if prompt_id not in references]
    result.unknown = sum(map(len, pool.contents(others).values()))
    advance(result.unknown)
    for batch in _batches(pool, known):
        _check_no_episodes(pool, batch)
        texts = [(openings or {}).get(one.prompt_id, "") + tokenizer.decode(one.tokens) for one in batch]
        pairs = [
            (
                references[one.prompt_id],
                text,
                one.finish_reason == "length",
                (asked or {}).get(one.prompt_id, NOT_ASKED),
            )
            for one, text in zip(batch, texts, strict=True)
        ]
        for one, verdict in zip(batch, grade_pairs(pairs), strict=True):
            result.graded += 1
            result.statuses[verdict.status] += 1
            same = verdict.status == one.verdict.status
            if same and (verdict.extracted, verdict.credit) == (one.verdict.extracted, one.verdict.credit):
                continue
            # A verifier that ran out of time or memory says nothing about the response.
            undecided = verdict.status in UNDECIDED
            result.reread += same
            result.undecided += undecided
            result.failed += not (same or undecided)
            aside = quarantine and not (same or undecided)
            if aside:
                result.quarantined += pool.remove(one.prompt_id, [one.content_id], quarantine=True)
            report(Difference(one.prompt_id, one.content_id, one.verdict, verdict, aside))
        advance(len(batch))
    return result


def _check_no_episodes(pool: PoolClient, batch: Sequence[Trajectory]) -> None:
    if episodes := [one for one in batch if one.provenance.environment_digest]:
        raise PoolError(
            f"pool {pool.name} holds episodes, as of prompt {episodes[0].prompt_id}: what an environment said of them is not "
            "found again in their text"
        )


def _batches(pool: PoolClient, prompts: list[str]) -> Iterator[list[Trajectory]]:
    batch: list[Trajectory] = []
    tokens = 0
    for held in pool.records(prompts):
        trajectory = trajectory_of(held)
        batch.append(trajectory)
        tokens += len(trajectory.tokens)
        if len(batch) >= _BATCH or tokens >= _BATCH_TOKENS:
            yield batch
            batch, tokens = [], 0
    if batch:
        yield batch
