"""Answers as texts, as the authors ship them: tokenised anew, graded, and marked; and texts out of a pool."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from rlep import PoolClient
from rlep.config.roles import VerifierConfig
from rlep.core import types
from rlep.core.errors import PoolError
from rlep.core.types import Message, prompt_id_of
from rlep.data.prompt_files import read_rows, write_verl
from rlep.data.prompt_rows import PromptRow, Wanted
from rlep.services.pool.files.texts import UNKNOWN, TextAnswers, import_texts, texts_of
from rlep.services.verifier.base import BaseVerifier
from rlep.services.verifier.grader import configured_verifier
from tests.services.conftest import MakeTrajectory, any_binary
from tests.services.pool.pool_texts import Letters

OpenClient = Callable[..., PoolClient]
LETTERS = Letters()
binary = any_binary
SIX, SEVEN = prompt_id_of("3 + 3?", "6"), prompt_id_of("3 + 4?", "7")
QUESTIONS = [
    TextAnswers(SIX, "6", (r"\boxed{6}", r"so \boxed{6}", r"\boxed{7}")),
    TextAnswers(SEVEN, "7", (r"\boxed{7}",)),
]


@pytest.fixture
def pool(open_client: OpenClient) -> PoolClient:
    return open_client(tokenizer=LETTERS.digest)


def test_correct_answers_are_stored_and_marked_and_a_wrong_one_is_refused(
    pool: PoolClient, grader: BaseVerifier
) -> None:
    report = import_texts(pool, QUESTIONS, LETTERS, grader.grade_pairs, max_tokens=20, source="authors.parquet")
    assert (report.inserted, report.duplicates, dict(report.refused)) == (3, 0, {"wrong": 1})
    assert report.examples == [(f"{SIX}/2", "the verifier says wrong: found '7', the reference is '6'")]
    (content_id,) = pool.content_ids(SEVEN)
    stored = pool.get(content_id, SEVEN)
    assert stored is not None
    assert stored.tokens.tolist() == [*map(ord, r"\boxed{7}"), 0]  # each letter its code, then the EOS
    assert (stored.logprobs, stored.finish_reason) == (None, "stop")
    assert stored.metadata == {"retokenised": "true", "source": "authors.parquet"}
    assert (stored.provenance.policy_digest, stored.provenance.sampling) == ("imported", UNKNOWN)
    assert (stored.verdict.verifier, stored.verdict.extracted) == ("math", "7")
    assert dict(texts_of(pool, [SEVEN, SIX, "none"], LETTERS)) == {
        SEVEN: (r"\boxed{7}",),
        SIX: tuple(sorted((r"\boxed{6}", r"so \boxed{6}"), key=lambda text: LETTERS.content_id(SIX, text))),
    }


def test_texts_are_graded_with_the_columns_that_a_function_asks_for(
    pool: PoolClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(str(Path(__file__).parents[1] / "verifier"))
    questions = [
        QUESTIONS[0]._replace(asked=types.Asked("?", '{"level": 3}')),
        QUESTIONS[1]._replace(asked=types.Asked("?", '{"level": 4}')),
    ]
    with configured_verifier(VerifierConfig(profile="python:verifier_functions:named")) as named:
        import_texts(pool, questions, LETTERS, named.grade_pairs, max_tokens=40, source="authors.parquet")
    assert pool.prompt_ids() == [questions[0].prompt_id]


def test_a_text_whose_prompt_opens_thinking_must_close_it(pool: PoolClient, grader: BaseVerifier) -> None:
    question = QUESTIONS[1]._replace(opening="<think>", answers=(r"\boxed{7}", r"3+4</think>\boxed{7}"))
    report = import_texts(pool, [question], LETTERS, grader.grade_pairs, max_tokens=40, source="authors.parquet")
    assert (report.inserted, dict(report.refused)) == (1, {"no_answer": 1})


class Asked:
    """A verifier that remembers what it was asked."""

    def __init__(self, grader: BaseVerifier) -> None:
        self.pairs: list[tuple[str, str, bool]] = []
        self._grader = grader

    def grade_pairs(self, pairs):  # type: ignore[no-untyped-def]
        self.pairs += pairs
        return self._grader.grade_pairs(pairs)


def test_a_repeated_import_grades_only_what_is_not_there(pool: PoolClient, grader: BaseVerifier) -> None:
    import_texts(pool, QUESTIONS[:1], LETTERS, grader.grade_pairs, max_tokens=20, source="a")
    pool.remove(SIX, [LETTERS.content_id(SIX, r"so \boxed{6}")], quarantine=True)
    asked = Asked(grader)
    twice = [QUESTIONS[0], *QUESTIONS]  # files of DAPO-Math repeat each question
    report = import_texts(pool, twice, LETTERS, asked.grade_pairs, max_tokens=20, source="a")
    assert [pair[:3] for pair in asked.pairs] == [("6", r"\boxed{7}", False), ("7", r"\boxed{7}", False)]
    assert (report.inserted, report.duplicates) == (1, 3)  # the 7; the 6 twice and the wrong one's second
    assert report.refused == {"wrong": 1, "quarantined: it did not pass a later verification": 2}


@pytest.mark.parametrize(
    ("text", "group", "reason"),
    [
        ("x" * 20, "too long", "21 tokens; rollout.max_tokens is 20"),
        ("x" * ((4 << 20) + 1), "too long", "4194305 characters; at most 4194304"),
        ("", "empty", "no text"),
    ],
)
def test_an_answer_of_no_use_is_refused_before_it_is_graded(
    pool: PoolClient, grader: BaseVerifier, text: str, group: str, reason: str
) -> None:
    asked = Asked(grader)
    report = import_texts(pool, [TextAnswers(SIX, "6", (text,))], LETTERS, asked.grade_pairs, max_tokens=20, source="a")
    assert (report.inserted, dict(report.refused), report.examples) == (0, {group: 1}, [(f"{SIX}/0", reason)])
    assert asked.pairs == []


def test_a_pool_of_another_tokenizer_takes_no_texts(open_client: OpenClient, grader: BaseVerifier) -> None:
    with pytest.raises(PoolError, match="the tokenizer is letters; the pool's is another"):
        import_texts(
            open_client("foreign", tokenizer="another"),
            QUESTIONS,
            LETTERS,
            grader.grade_pairs,
            max_tokens=9,
            source="a",
        )


@pytest.mark.parametrize("suffix", ["parquet", "jsonl"])
def test_what_is_written_for_the_authors_is_read_back(
    pool: PoolClient, open_client: OpenClient, grader: BaseVerifier, tmp_path: Path, suffix: str
) -> None:
    import_texts(pool, QUESTIONS, LETTERS, grader.grade_pairs, max_tokens=20, source="a")
    prompts = {SIX: "3 + 3?", SEVEN: "3 + 4?"}
    rows = [
        PromptRow((Message("user", prompts[prompt_id]),), {SIX: "6", SEVEN: "7"}[prompt_id], "made", texts)
        for prompt_id, texts in texts_of(pool, [SIX, SEVEN], LETTERS).items()
    ]
    path = tmp_path / f"pool.{suffix}"
    assert write_verl(path, rows, split="train", candidates=True) == 2
    again = open_client(f"again-{suffix}", tokenizer=LETTERS.digest)
    questions = [
        TextAnswers(prompt_id_of(row.question, row.reference), row.reference, row.candidates)
        for row in read_rows(path, Wanted(candidates=True))
    ]
    report = import_texts(again, questions, LETTERS, grader.grade_pairs, max_tokens=20, source="b")
    assert (report.inserted, report.refused.total()) == (3, 0)
    assert again.digest() == pool.digest()


def test_episodes_are_not_written_as_texts(pool: PoolClient, grader: BaseVerifier, trajectory: MakeTrajectory) -> None:
    """Read back, what the environment said would be trained on as the policy's own words."""
    played = trajectory(prompt_id=SIX, tokenizer=LETTERS.digest)
    pool.add([replace(played, provenance=replace(played.provenance, environment_digest="m:E:12"))])
    with pytest.raises(PoolError, match=f"holds episodes, as of prompt {SIX}"):
        texts_of(pool, [SIX], LETTERS)
