"""Answers as texts, the form in which the authors ship their pool (``reward_model.candidates`` of a prompt file).

A text does not say which tokens it was sampled as: what is imported is tokenised anew, marked so, and graded.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple, Protocol

from rlep.core.errors import PoolError, RecordRefused
from rlep.core.progress import Advance
from rlep.core.types import (
    NOT_ASKED,
    QUARANTINED,
    Asked,
    Int32Array,
    Message,
    Provenance,
    Sampling,
    Trajectory,
    Verdict,
    content_id_of,
    prompt_id_of,
    question_text,
)
from rlep.services.pool.files.imported import Imported
from rlep.services.pool.storage.scan import trajectory_of

if TYPE_CHECKING:
    from rlep.services.pool.rpc.client import PoolClient

MAX_TEXT = 4 << 20
"""Characters; a longer response is refused before it is tokenised."""
RETOKENISED = "retokenised"
"""Key of the metadata that marks a response whose tokens were made from a text."""
UNKNOWN = Sampling(temperature=0.0, top_p=0.0, top_k=0, max_tokens=0)
"""Of a response whose sampling is unknown; no sampler has these."""

UNTOKENIZED = "it has text that the tokenizer does not know"
_TEXTS = 512


class Texts(Protocol):
    """The model's tokenizer."""

    @property
    def digest(self) -> str:
        """Names the vocabulary."""

    @property
    def unknown_id(self) -> int | None:
        """The id for text that the vocabulary lacks, if there is one."""

    def encode_response(self, text: str) -> Int32Array:
        """Token ids of a whole response, EOS included, ``[T]``."""

    def decode(self, tokens: Int32Array) -> str:
        """The text of response tokens ``[T]``."""


GradePairs = Callable[[Sequence[tuple[str, str, bool, Asked]]], list[Verdict]]
"""``BaseVerifier.grade_pairs``: one verdict per (reference, text, truncated, question), in order."""


class TextAnswers(NamedTuple):
    """A question with responses as texts."""

    prompt_id: str
    reference: str
    answers: tuple[str, ...]
    opening: str = ""
    """The mark with which its prompt opens the responses' thinking, e.g. ``<think>``: graded text begins with it."""
    asked: Asked = NOT_ASKED


class _Candidate(NamedTuple):
    question: TextAnswers
    place: str
    tokens: Int32Array


def import_texts(
    pool: PoolClient,
    questions: Iterable[TextAnswers],
    tokenizer: Texts,
    grade_pairs: GradePairs,
    *,
    max_tokens: int,
    source: str,
    advance: Advance = lambda _: None,
) -> Imported:
    """Tokenise and grade responses, and store those that are correct, marked as re-tokenised and from ``source``.

    What the pool holds already is not graded again, so that an import that was interrupted is simply repeated.
    ``max_tokens``: longest response taken, EOS included. ``advance`` is told of each question done.
    """
    if tokenizer.digest != (digest := pool.stats().tokenizer_digest):
        raise PoolError(f"the tokenizer is {tokenizer.digest}; the pool's is {digest}")
    report = Imported()
    for some in _batches(questions):
        candidates = list(_candidates(some, tokenizer, max_tokens, report))
        fresh = _not_held(pool, candidates, report)
        pairs = [
            (one.question.reference, one.question.opening + tokenizer.decode(one.tokens), False, one.question.asked)
            for one in fresh
        ]
        accepted: list[Trajectory] = []
        for one, verdict in zip(fresh, grade_pairs(pairs), strict=True):
            if verdict.status == "correct":
                accepted.append(_trajectory(one, verdict, tokenizer.digest, source))
            else:
                found = f": found {verdict.extracted!r:.60}, the reference is {one.question.reference!r:.60}"
                report.refuse(one.place, f"the verifier says {verdict.status}{found}", group=verdict.status)
        added = pool.add(accepted)
        report.inserted += added.inserted
        report.duplicates += added.duplicates
        for content_id, reason in added.refused:
            report.refuse(content_id, reason)
        advance(len(some))
    return report


def trajectory_from_text(
    tokenizer: Texts,
    question: str | Sequence[Message | Mapping[str, str]],
    reference: str,
    text: str,
    verdict: Verdict,
    *,
    source: str = "text",
) -> Trajectory:
    """The trajectory of a response given as text, as an import of texts makes it: without log-probs, and marked so.

    ``question`` is a text or chat messages (``{"role": …, "content": …}``) as the data files have it: with ``reference`` it
    gives the prompt id. ``source`` is kept in the metadata. Raises ``RecordRefused`` for a text that is empty, overlong, or
    has parts that the tokenizer does not know.
    """
    if len(text) > MAX_TEXT or not text.strip():
        raise RecordRefused(f"a response of {len(text)} characters; wanted are 1 to {MAX_TEXT}")
    prompt_id = prompt_id_of(question_text(question), reference)
    answer = TextAnswers(prompt_id, reference, (text,))
    one = _Candidate(answer, f"{prompt_id}/0", tokenizer.encode_response(text))
    if tokenizer.unknown_id is not None and tokenizer.unknown_id in one.tokens:
        raise RecordRefused(f"{UNTOKENIZED}: {text[:80]!r}")
    return _trajectory(one, verdict, tokenizer.digest, source)


def texts_of(pool: PoolClient, prompt_ids: Sequence[str], tokenizer: Texts) -> dict[str, tuple[str, ...]]:
    """Prompt id → its responses as texts, for each of these prompts that has any, in their order.

    Raises ``PoolError`` for episodes.
    """
    texts: dict[str, list[str]] = {}
    for held in pool.records(prompt_ids):
        one = trajectory_of(held)
        if one.provenance.environment_digest:
            raise PoolError(
                f"pool {pool.name} holds episodes, as of prompt {held.prompt_id}: their texts do not say what the policy wrote"
            )
        texts.setdefault(held.prompt_id, []).append(tokenizer.decode(one.tokens))
    return {prompt_id: tuple(texts[prompt_id]) for prompt_id in prompt_ids if prompt_id in texts}


def _batches(questions: Iterable[TextAnswers]) -> Iterator[list[TextAnswers]]:
    """Questions with some hundred responses together."""
    batch: list[TextAnswers] = []
    answers = 0
    for question in questions:
        batch.append(question)
        answers += len(question.answers)
        if answers >= _TEXTS or len(batch) >= _TEXTS:
            yield batch
            batch, answers = [], 0
    if batch:
        yield batch


def _candidates(
    questions: Sequence[TextAnswers], tokenizer: Texts, max_tokens: int, report: Imported
) -> Iterator[_Candidate]:
    for question in questions:
        for number, text in enumerate(question.answers):
            place = f"{question.prompt_id}/{number}"
            if len(text) > MAX_TEXT:
                report.refuse(place, f"{len(text)} characters; at most {MAX_TEXT}", group="too long")
                continue
            tokens = tokenizer.encode_response(text)
            if len(tokens) > max_tokens:
                report.refuse(place, f"{len(tokens)} tokens; rollout.max_tokens is {max_tokens}", group="too long")
            # The EOS alone.
            elif len(tokens) < 2:
                report.refuse(place, "no text", group="empty")
            elif tokenizer.unknown_id is not None and tokenizer.unknown_id in tokens:
                report.refuse(place, UNTOKENIZED)
            else:
                yield _Candidate(question, place, tokens)


def _not_held(pool: PoolClient, candidates: Sequence[_Candidate], report: Imported) -> list[_Candidate]:
    """Those that the pool does not hold, each once; quarantined ones are refused here."""
    prompts = list(dict.fromkeys(one.question.prompt_id for one in candidates))
    held = {content_id for ids in pool.contents(prompts).values() for content_id in ids}
    aside = {content_id for ids in pool.contents(prompts, quarantined=True).values() for content_id in ids}
    fresh = []
    for one in candidates:
        content_id = content_id_of(one.question.prompt_id, one.tokens)
        if content_id in aside:
            report.refuse(one.place, f"{QUARANTINED}: it did not pass a later verification")
        elif content_id in held:
            report.duplicates += 1
        else:
            # The authors' files repeat questions: a second copy is not graded again.
            held.add(content_id)
            fresh.append(one)
    return fresh


def _trajectory(one: _Candidate, verdict: Verdict, tokenizer_digest: str, source: str) -> Trajectory:
    return Trajectory(
        prompt_id=one.question.prompt_id,
        tokens=one.tokens,
        logprobs=None,
        finish_reason="stop",
        verdict=verdict,
        provenance=Provenance("imported", 0, tokenizer_digest, UNKNOWN, "unknown", "unknown"),
        created_at=time.time(),
        sample_id=f"import/{one.place}",
        metadata={RETOKENISED: "true", "source": source},
    )
