"""What reward functions ask for by name, async ones, and several with weights, by real worker processes."""

from __future__ import annotations

import json
from collections.abc import Sequence

import pytest

from rlep.config.roles import VerifierConfig
from rlep.core.errors import ConfigError
from rlep.services.verifier.grade_rows import grade_rows
from rlep.services.verifier.grader import configured_verifier
from rlep.services.verifier.grading_job import GradingJob
from rlep.services.verifier.reply import Reply
from rlep.services.verifier.reward_call import Term, terms_of
from rlep.services.verifier.user_function import source_version
from rlep.services.verifier.worker_pool import WorkerPool
from rlep.services.worker.jail import Limits

pytestmark = pytest.mark.usefixtures("functions_on_path")
HERE = "verifier_functions"


def replies_of(function: str, jobs: Sequence[GradingJob]) -> list[Reply]:
    pool = WorkerPool(function, Limits(), 1)
    try:
        return pool.grade(jobs)
    finally:
        pool.close()


def job(reference: str, response: str, prompt: str = "2 + 2?", /, **columns: object) -> GradingJob:
    return GradingJob(reference, response, prompt, json.dumps(columns) if columns else "")


def test_a_function_gets_what_it_names_columns_among_them() -> None:
    found = replies_of(f"{HERE}:named", [job("4", "four", level=3), job("4", "four", level=2, missing="here")])
    assert [(one.status, one.extracted) for one in found] == [
        ("correct", "2 + 2?|four|3|default"),
        ("wrong", "2 + 2?|four|2|here"),
    ]


def test_a_name_that_is_no_column_is_crashed_and_says_which_there_are() -> None:
    (without, other) = replies_of(f"{HERE}:named", [job("4", "four"), job("4", "four", answer="4", source="x")])
    asks = "UnknownName: named asks for level: that is neither prompt, response or reference nor a column of the row, which has"
    assert [one.status for one in (without, other)] == ["crashed"] * 2
    assert [one.failure for one in (without, other)] == [f"{asks} none", f"{asks} answer, source"]


def test_the_rest_are_the_columns_but_for_those_with_names_of_their_own() -> None:
    (found,) = replies_of(f"{HERE}:rest", [job("4", "four", level=3, prompt="no", source="x", reference="no")])
    assert found.extracted == "level=3 source=x"


def test_functions_written_for_verl_and_trl_are_called_as_they_are_there() -> None:
    (verl,) = replies_of(f"{HERE}:of_verl", [job("4", "4", data_source="gsm8k", extra_info={"i": 7})])
    assert (verl.score, verl.parts) == (1.0, {"gsm8k": 1.0, "info": 7.0})
    columns = {"answer": "4 #", "prompt": "2 + 2?"}
    trl = replies_of(f"{HERE}:of_trl", [job("4", "2 + 2? 4 #", **columns), job("4", "2 + 2? 4", **columns)])
    assert [one.score for one in trl] == [1.0, 0.0]
    messages = [{"role": "system", "content": "s"}, {"role": "user", "content": "say it"}]
    talks = replies_of(f"{HERE}:of_messages", [job("4", "say it", prompt=messages), job("4", "no", prompt=messages)])
    assert [one.score for one in talks] == [1.0, 0.0]
    asked = replies_of(f"{HERE}:of_messages", [job("4", "2 + 2?", question="2 + 2?"), job("4", "no")])
    assert [one.score for one in asked] == [1.0, 0.0]


@pytest.mark.parametrize("function", ["of_texts", "of_equal_texts", "of_other_texts"])
def test_a_function_that_takes_messages_for_a_text_is_crashed_and_told_so(function: str) -> None:
    """It would find nothing in them: every response would be wrong."""
    right = job("4", "4", answer="4", prompt="2 + 2?")
    (text, messages) = replies_of(f"{HERE}:{function}", [right, job("4", "4", answer="4", question="2 + 2?")])
    assert text.score == 1.0
    assert messages.status == "crashed"
    assert "TypeError: '4' is looked for in chat messages, which completions and prompts are here" in messages.failure
    assert 'the text of a completion is completion[-1]["content"]' in messages.failure


def test_what_is_no_list_of_one_is_crashed_where_a_function_has_names_of_trl() -> None:
    (found,) = replies_of(f"{HERE}:only_some", [job("4", "not mine", prompt="2 + 2?")])
    assert found.failure == "BadScore: it returned None: no function applies to this response"


def test_async_functions_wait_in_the_limits_of_every_worker() -> None:
    found = replies_of(f"{HERE}:waits", [job("", name) for name in ("most", "true", "raise", "none")])
    assert [(one.status, one.score) for one in found] == [
        ("wrong", 0.75),
        ("correct", None),
        ("crashed", None),
        ("wrong", 0.0),
    ]
    lines = found[2].failure.splitlines()
    assert (lines[0], lines[-1].strip(), len(lines)) == ("ValueError: no", 'raise ValueError("no")', 4)
    (undeclared,) = replies_of(f"{HERE}:undeclared", [job("", "most")])
    assert (
        undeclared.failure
        == "TypeError: undeclared returned a coroutine: await it in undeclared, declared with async def"
    )
    assert [one.status for one in replies_of(f"{HERE}:later", [job("4", "4"), job("4", "5")])] == ["correct", "wrong"]


def test_several_functions_have_weights_and_are_parts_of_the_score() -> None:
    profile = f"python:{HERE}:right, 0.25*{HERE}:brief"
    with configured_verifier(VerifierConfig(profile=profile, correct_at=0.8)) as verifier:
        found = verifier.grade("ab", ["ab", "abcdefgh", "x"], [False] * 3)
    # right weighs 1 and brief 0.25: of "ab" (1 + 0.25 · 0.8) / 1.25, of "abcdefgh" (1 + 0.25 · 0.2) / 1.25.
    assert [one.score for one in found] == pytest.approx([0.96, 0.84, 0.18])
    assert [one.status for one in found] == ["correct", "correct", "wrong"]
    assert found[1].parts == {"right": 1.0, "brief": 0.2, "brief.length": 8.0}


def test_a_function_that_does_not_apply_has_no_weight() -> None:
    task = f"{HERE}:right,3*{HERE}:only_some"
    pairs = [("right", "right"), ("not", "not mine"), ("right", "right or not")]
    found = replies_of(task, [job(*pair, prompt="2 + 2?") for pair in pairs])
    assert [(one.score, one.parts) for one in found] == [
        (1.0, {"right": 1.0, "only_some": 1.0}),
        (1.0, {"right": 1.0}),
        (0.25, {"right": 1.0, "only_some": 0.0}),
    ]


def test_the_version_of_several_functions_has_their_weights() -> None:
    versions = [source_version(f"{HERE}:right,{weight}*{HERE}:brief") for weight in ("0.5", "0.50", "1")]
    assert versions[0] == versions[1] != versions[2]
    assert source_version(f"{HERE}:right,{HERE}:brief") == versions[2]


@pytest.mark.parametrize(
    ("functions", "fault"),
    [
        ("m", "'m' is not of the form module:function"),
        ("m:f,", "'' is not of the form"),
        ("m:f,x*m:g", "the weight 'x' is not a number above 0"),
        ("m:f,0*m:g", "the weight '0' is not a number above 0"),
        ("m:f,-1*m:g", "the weight '-1' is not a number above 0"),
        ("m:f,inf*m:g", "the weight 'inf' is not a number above 0"),
        ("m:f,n:f", "two functions are called f"),
    ],
)
def test_functions_that_cannot_be_read_are_refused(functions: str, fault: str) -> None:
    with pytest.raises(ConfigError, match=fault.replace("(", r"\(")):
        source_version(functions)


def test_functions_are_read_with_their_weights() -> None:
    assert terms_of("a.b:f, 0.5*c:g") == (Term("a.b:f", 1.0), Term("c:g", 0.5))


def test_rows_that_are_graded_have_their_columns_and_their_prompt() -> None:
    rows = [{"gold": "4", "response": "four", "prompt": "2 + 2?", "level": level} for level in (3, 2)]
    with configured_verifier(VerifierConfig(profile=f"python:{HERE}:named")) as verifier:
        graded = [json.loads(row.text) for row in grade_rows(map(json.dumps, rows), verifier)]
    assert [(row["status"], row["extracted"]) for row in graded] == [
        ("correct", "2 + 2?|four|3|default"),
        ("wrong", "2 + 2?|four|2|default"),
    ]
