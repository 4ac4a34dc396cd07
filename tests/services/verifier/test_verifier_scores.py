"""What the user's function may return beside a bool: scores and named parts, by real worker processes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from rlep.cli.grade import grade
from rlep.config.roles import VerifierConfig
from rlep.core.errors import ConfigError
from rlep.core.types import Verdict
from rlep.services.verifier.grade_rows import grade_rows
from rlep.services.verifier.grader import configured_verifier
from rlep.services.verifier.user_function import FunctionVerifier, source_version

pytestmark = pytest.mark.usefixtures("functions_on_path")
FUNCTION = "verifier_functions:returns"
SIXTEEN = {f"part{number}": float(number) for number in range(16)}
SCORES: dict[str, tuple[str, str | None, float | None, dict[str, float]]] = {
    "true": ("correct", None, None, {}),
    "false": ("wrong", "seen", None, {}),
    "full": ("correct", None, 1.0, {}),
    "most": ("wrong", "most of it", 0.75, {}),
    "none": ("wrong", None, 0.0, {}),
    "parts": ("wrong", None, 0.5, {"format": 1.0, "steps": 7.0, "length-penalty": -0.25}),
    "sixteen": ("correct", "many", 1.0, SIXTEEN),
    "whole number": ("correct", None, 1.0, {}),
    "no whole number": ("wrong", None, 0.0, {}),
    "fraction": ("wrong", "seen", 0.75, {}),
    "decimal": ("wrong", None, 0.75, {}),
    "numpy float": ("wrong", None, 0.75, {}),
    "numpy int": ("correct", None, 1.0, {}),
    "numpy true": ("correct", None, None, {}),
    "numpy false": ("wrong", "seen", None, {}),
    "numpy array": ("wrong", None, 0.75, {}),
    "numpy part": ("wrong", None, 0.5, {"format": 1.0}),
    "texts": ("correct", "4", 1.0, {"acc": 1.0}),
    "texts beside": ("wrong", "seen", 0.5, {}),
    "sum above": ("correct", None, 1.0, {}),
    "sum below": ("correct", None, 1.0, {}),
    "long": ("correct", "4" * 4000, None, {}),
}
BAD = [
    "nan", "infinite", "above", "below", "another number", "seventeen", "no score", "bad name", "no name", "bad part",
    "list part", "text score", "text", "nothing", "list", "array", "three", "complex", "signalling", "huge", "coroutine",
]  # fmt: skip


@pytest.fixture(scope="module")
def returned(functions_on_path: None) -> dict[str, Verdict]:
    """What becomes of everything that the function ``returns`` may return, by its name."""
    names = [*SCORES, *BAD]
    with FunctionVerifier(f"python:{FUNCTION}") as verifier:
        return dict(zip(names, verifier.grade("x", names, [False] * len(names)), strict=True))


@pytest.mark.parametrize("name", SCORES)
def test_a_score_and_its_parts_come_with_the_verdict(returned: dict[str, Verdict], name: str) -> None:
    found = returned[name]
    assert (found.status, found.extracted, found.score, dict(found.parts)) == SCORES[name]


@pytest.mark.parametrize("name", BAD)
def test_a_score_that_means_nothing_is_crashed(returned: dict[str, Verdict], name: str) -> None:
    found = returned[name]
    assert (found.status, found.score, dict(found.parts), found.credit) == ("crashed", None, {}, 0.0)


def test_what_crashed_says_why(returned: dict[str, Verdict]) -> None:
    assert returned["nothing"].reason == (
        "BadScore: it returned None (NoneType), which is neither a bool, a number nor a mapping"
    )
    assert returned["another number"].reason == (
        "OutOfRange: score 2 does not lie in [0, 1]; scale it, or declare its range as the function's attribute score_range, "
        "e.g. (-1.0, 2.0)"
    )
    assert returned["coroutine"].reason == (
        "TypeError: returns returned a coroutine: await it in returns, declared with async def"
    )
    assert [one.reason for name, one in returned.items() if name in SCORES] == [""] * len(SCORES)


def test_a_declared_range_of_scores_is_moved_to_0_to_1() -> None:
    with FunctionVerifier("python:verifier_functions:ranged") as verifier:
        found = verifier.grade("x", ["-1", "0", "1", "3", "3.5", "-1.1"], [False] * 6)
    assert [one.score for one in found] == [0.0, 0.25, 0.5, 1.0, None, None]
    assert [one.status for one in found] == ["wrong", "wrong", "wrong", "correct", "crashed", "crashed"]
    with FunctionVerifier("python:verifier_functions:bound") as verifier:
        assert [one.score for one in verifier.grade("x", ["1"], [False])] == [0.5]
    with (
        FunctionVerifier("python:verifier_functions:turned") as verifier,
        pytest.raises(ConfigError, match="is no range"),
    ):
        verifier.check()


def test_from_the_threshold_on_a_score_is_correct_and_the_version_names_it() -> None:
    texts = ["most", "parts", "full", "true", "false", "nan", "full"]
    with configured_verifier(VerifierConfig(profile=f"python:{FUNCTION}", correct_at=0.75)) as verifier:
        found = verifier.grade("x", texts, [False] * 6 + [True])
    assert [one.status for one in found] == ["correct", "wrong", "correct", "correct", "wrong", "crashed", "no_answer"]
    assert [one.credit for one in found] == [0.75, 0.5, 1.0, 1.0, 0.0, 0.0, 0.0]
    assert {one.version for one in found} == {f"{source_version(FUNCTION)}-correct-at-0.75"}


def test_the_users_function_sees_what_follows_the_mark_and_nothing_of_a_response_without_it() -> None:
    with configured_verifier(VerifierConfig(profile=f"python:{FUNCTION}", answer_after="</think>")) as verifier:
        found = verifier.grade("x", ["true</think>false", "false</think>full", "true"], [False] * 3)
    assert [verdict.status for verdict in found] == ["wrong", "correct", "no_answer"]


def test_each_kind_of_bad_score_is_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    with FunctionVerifier(f"python:{FUNCTION}") as verifier:
        found = verifier.grade("x", ["above", "nan", "nothing", "most"], [False] * 4)
    assert [one.status for one in found] == ["crashed", "crashed", "crashed", "wrong"]
    messages = [record.getMessage() for record in caplog.records if record.name.startswith("rlep.services.verifier")]
    assert messages == [
        f"grading ({FUNCTION}) failed, the answer is crashed: OutOfRange: score 1.001 does not lie in [0, 1]; scale it, or "
        "declare its range as the function's attribute score_range, e.g. (-1.0, 2.0)",
        f"grading ({FUNCTION}) failed, the answer is crashed: BadScore: score nan is not finite",
    ]


def test_rows_have_scores_and_lose_those_of_an_earlier_grading_but_not_the_users_own() -> None:
    rows = [{"gold": "x", "response": name, "score": 9} for name in ("parts", "false")]
    with FunctionVerifier(f"python:{FUNCTION}") as verifier:
        first = [json.loads(row.text) for row in grade_rows(map(json.dumps, rows), verifier)]
        again = [json.loads(row.text) for row in grade_rows([json.dumps(first[0] | {"response": "true"})], verifier)]
    assert (first[0]["score"], first[0]["parts"]) == (0.5, {"format": 1.0, "steps": 7.0, "length-penalty": -0.25})
    assert (first[1]["score"], "parts" in first[1]) == (9, False)
    assert (again[0]["status"], {"score", "parts"} & again[0].keys()) == ("correct", set())


@pytest.mark.parametrize(("profile", "correct_at"), [("math", 0.5), ("python:m:f", 0.0), ("python:m:f", 1.5)])
def test_a_threshold_that_no_score_can_meet_is_refused(tmp_path: Path, profile: str, correct_at: float) -> None:
    (tmp_path / "rows.jsonl").write_text("")
    with pytest.raises(ConfigError, match=rf"^verifier\.correct_at = {correct_at}"):
        grade(tmp_path / "rows.jsonl", profile, correct_at=correct_at)


def test_the_network_is_refused_to_what_does_not_use_it(tmp_path: Path) -> None:
    (tmp_path / "rows.jsonl").write_text("")
    with pytest.raises(ConfigError, match=r"^verifier\.network = true with verifier\.profile = math: only"):
        grade(tmp_path / "rows.jsonl", network=True)
