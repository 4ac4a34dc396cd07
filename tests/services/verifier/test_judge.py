"""The profile ``judge:FILE`` against a server on loopback that speaks OpenAI's form."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from rlep.config.roles import VerifierConfig
from rlep.core.errors import ConfigError, JudgeAway
from rlep.core.types import Asked
from rlep.services.verifier.grader import configured_verifier
from rlep.services.verifier.judge import TOKEN, filled, read_judge, score_in
from rlep.services.verifier.reward_call import UnknownName
from rlep.services.verifier.user_function import profile_version
from tests.services.verifier.reward_server import serving

PROMPT = "Question: {prompt}\\nReference: {reference} ({level})\\nResponse: {response}\\n{{other}}"
ASKED = Asked("2 + 2?", json.dumps({"level": 3}))


@pytest.fixture(autouse=True)
def surroundings(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:1")  # which no request to loopback takes
    monkeypatch.delenv(TOKEN, raising=False)


def judge_file(directory: Path, url: str = "http://127.0.0.1:1/v1", **more: object) -> Path:
    path = directory / "judge.toml"
    lines = [f'url = "{url}"', 'model = "judge-1"', *(f"{key} = {json.dumps(value)}" for key, value in more.items())]
    path.write_text("\n".join([*lines, *([] if "prompt" in more else [f'prompt = "{PROMPT}"'])]))
    return path


def said(text: str) -> tuple[int, str]:
    return 200, json.dumps({"choices": [{"message": {"role": "assistant", "content": text}}]})


def test_a_judge_scores_what_it_is_shown(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    bodies: list[dict[str, Any]] = []
    answers = {
        "good": "<think><score>0</score></think>Fine. <score>1</score>",
        "half": "<score>0</score>, no: <score> 0.5 </score>",
        "silent": "I cannot say.",
        "beyond": "<score>7</score>",
    }

    def answer(path: str, body: bytes, times: int) -> tuple[int, str]:
        bodies.append(json.loads(body))
        return said(
            next(text for name, text in answers.items() if f"Response: {name}" in bodies[-1]["messages"][0]["content"])
        )

    monkeypatch.setenv(TOKEN, "a-secret")
    with serving(answer) as server:
        file = judge_file(tmp_path, f"{server.url}/v1/", temperature=0.5)
        with configured_verifier(VerifierConfig(profile=f"judge:{file}")) as verifier:
            found = verifier.grade("4", list(answers), [False] * len(answers), ASKED)
    assert [(verdict.status, verdict.score) for verdict in found] == [
        ("correct", 1.0),
        ("wrong", 0.5),
        ("crashed", None),
        ("crashed", None),
    ]
    assert [verdict.reason.splitlines()[0] for verdict in found[2:]] == [
        "NoScore: the judge's answer ends with 'I cannot say.', in which score = "
        "'<score>\\\\s*([-+.\\\\d]+)\\\\s*</score>\\\\W*$' finds no number",
        "NoScore: the judge gave 7, which is not in range = [0, 1]",
    ]
    first = next(body for body in bodies if "Response: good" in body["messages"][0]["content"])
    text = "Question: 2 + 2?\nReference: 4 (3)\nResponse: good\n{other}"
    assert first == {
        "model": "judge-1",
        "messages": [{"role": "user", "content": text}],
        "temperature": 0.5,
        "max_tokens": 1024,
    }
    assert set(server.asked) == {"v1/chat/completions"}
    assert server.headers["Authorization"] == "Bearer a-secret"
    assert {(verdict.verifier, verdict.version) for verdict in found} == {(f"judge:{file}", read_judge(file).digest)}


def test_a_judge_is_shown_the_question_and_only_what_follows_the_mark(tmp_path: Path) -> None:
    shown: list[str] = []

    def answer(path: str, body: bytes, times: int) -> tuple[int, str]:
        shown.append(json.loads(body)["messages"][0]["content"])
        return said("<score>1</score>")

    with serving(answer) as server:
        profile = f"judge:{judge_file(tmp_path, f'{server.url}/v1')}"
        with configured_verifier(VerifierConfig(profile=profile, answer_after="</think>")) as verifier:
            asked = Asked("2 + 2?", json.dumps({"level": 3}))
            verdicts = verifier.grade("4", ["<think>5?</think>It is 4", "It is 4"], [False] * 2, asked)
    assert [verdict.status for verdict in verdicts] == ["correct", "no_answer"]
    assert shown == ["Question: 2 + 2?\nReference: 4 (3)\nResponse: It is 4\n{other}"]


def test_scores_of_another_range_and_form_are_read_and_further_fields_are_sent(tmp_path: Path) -> None:
    bodies: list[dict[str, Any]] = []

    def answer(path: str, body: bytes, times: int) -> tuple[int, str]:
        bodies.append(json.loads(body))
        return said("Rating: 4/10")

    with serving(answer) as server:
        file = judge_file(tmp_path, f"{server.url}/v1", score="Rating: (\\d+)", range=[0, 10])
        file.write_text(file.read_text() + "\n[extra]\nchat_template_kwargs = { enable_thinking = false }\n")
        with configured_verifier(VerifierConfig(profile=f"judge:{file}", correct_at=0.4)) as verifier:
            (verdict,) = verifier.grade("4", ["four"], [False], ASKED)
    assert (verdict.status, verdict.score) == ("correct", 0.4)
    assert bodies[0]["chat_template_kwargs"] == {"enable_thinking": False}


def test_a_judge_that_starts_again_is_waited_for_and_one_that_refuses_says_why(tmp_path: Path) -> None:
    def answer(path: str, body: bytes, times: int) -> tuple[int, str]:
        if times == 1:
            return 503, "loading"
        return (404, '{"message": "no model judge-1"}') if b"Response: bad" in body else said("<score>1</score>")

    with serving(answer) as server:
        config = VerifierConfig(profile=f"judge:{judge_file(tmp_path, server.url)}", concurrency=1)
        with configured_verifier(config) as verifier:
            found = verifier.grade("4", ["good", "bad"], [False] * 2, ASKED)
    assert [verdict.status for verdict in found] == ["correct", "crashed"]
    assert found[1].reason.splitlines()[0] == 'HTTPStatusError: 404 {"message": "no model judge-1"}'
    assert server.asked.total() == 3


def test_a_judge_that_is_away_gives_no_verdict(tmp_path: Path) -> None:
    config = VerifierConfig(profile=f"judge:{judge_file(tmp_path)}", deadline_s=10)
    with (
        configured_verifier(config) as verifier,
        pytest.raises(JudgeAway, match=r"could not be reached for 10 s \(verifier.deadline_s\): ConnectError"),
    ):
        verifier.grade("4", ["four"], [False], ASKED)


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ('model = "m"\nprompt = "{response}"', "has no url"),
        (
            'url = "http://h/v1"\nmodel = "m"\nprompt = "{response}"\ntemp = 1',
            "has an unknown key temp; known are url, model",
        ),
        ('url = "http://h/v1"\nmodel = 3\nprompt = "{response}"', "model = 3"),
        ('url = "http://[::1/v1"\nmodel = "m"\nprompt = "{response}"', "is not http://HOST:PORT/v1"),
        ('url = "http://h:port/v1"\nmodel = "m"\nprompt = "{response}"', "is not http://HOST:PORT/v1"),
        ('url = "h:8000/v1"\nmodel = "m"\nprompt = "{response}"', "is not http://HOST:PORT/v1"),
        ('url = "http://me:pw@h/v1"\nmodel = "m"\nprompt = "{response}"', "holds a name or password"),
        ('url = "http://h/v1"\nmodel = "m"\nprompt = "good?"', "does not hold {response}"),
        ('url = "http://h/v1"\nmodel = "m"\nprompt = "{response}"\nscore = "("', "is no regular expression"),
        ('url = "http://h/v1"\nmodel = "m"\nprompt = "{response}"\nscore = "x"', "has no group"),
        ('url = "http://h/v1"\nmodel = "m"\nprompt = "{{response}}"', "does not hold {response}"),
        ('url = "http://h/v1"\nmodel = "m"\nprompt = "{response}"\nrange = [1]', "range = [1] is not two numbers"),
        (
            'url = "http://h/v1"\nmodel = "m"\nprompt = "{response}"\nrange = [1, 0]',
            "range = [1, 0] is not two numbers",
        ),
        ('url = "http://h/v1"\nmodel = "m"\nprompt = "{response}"\nrange = ["0", 1]', "range = ['0', 1] is not two"),
        ("url = ", "is not TOML"),
    ],
)
def test_a_file_that_says_no_judge_is_refused_by_its_key(tmp_path: Path, text: str, fault: str) -> None:
    file = tmp_path / "judge.toml"
    file.write_text(text)
    with pytest.raises(ConfigError) as refused:
        configured_verifier(VerifierConfig(profile=f"judge:{file}"))
    assert fault in str(refused.value)
    assert str(file) in str(refused.value)


def test_a_file_of_another_encoding_is_refused_and_one_with_a_mark_of_its_order_read(tmp_path: Path) -> None:
    file = tmp_path / "judge.toml"
    text = 'url = "http://h/v1"\nmodel = "m"\nprompt = "Müssen: {response}"'
    file.write_bytes(text.encode("latin-1"))
    with pytest.raises(ConfigError, match="is not TOML: 'utf-8' codec can't decode byte 0xfc"):
        read_judge(file)
    file.write_text(text, encoding="utf-8-sig")
    assert read_judge(file).prompt == "Müssen: {response}"


def test_a_token_does_not_leave_the_machine_in_the_clear(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(TOKEN, "a-secret")
    with pytest.raises(ConfigError, match="in the clear: take https://") as refused:
        read_judge(judge_file(tmp_path, "http://judge.example/v1"))
    assert "a-secret" not in str(refused.value)
    assert read_judge(judge_file(tmp_path, "https://judge.example/v1")).url == "https://judge.example/v1"


def test_a_token_that_no_header_may_have_is_refused_and_not_shown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(TOKEN, "a-secret\n")
    with pytest.raises(
        ConfigError, match="the token in RLEP_JUDGE_TOKEN has a character that no header may have"
    ) as refused:
        read_judge(judge_file(tmp_path))
    assert "a-secret" not in str(refused.value)


def test_a_judge_that_is_served_elsewhere_is_the_same_and_another_prompt_another(tmp_path: Path) -> None:
    def version(url: str, prompt: str) -> str:
        return profile_version(f"judge:{judge_file(tmp_path, url, prompt=prompt)}")

    first = version("http://one/v1", "{response}")
    assert version("http://two/v1", "{response}") == first != version("http://one/v1", "{response}?")


def test_what_is_filled_in_is_not_filled_in_itself() -> None:
    prompt = '{response} {reference} {{x}} \\frac{1}{2} {"score": 1} {} {{ {{reference}}'
    values = {"response": "{reference} {{response}}", "reference": "4"}
    assert filled(prompt, values) == '{reference} {{response}} 4 {x} \\frac{1}{2} {"score": 1} {} {{ {reference}'
    with pytest.raises(
        UnknownName, match=r"^the judge's prompt holds \{refrence\}: the row has response, reference; braces"
    ) as no:
        filled("{refrence}", values)
    assert str(no.value).endswith("braces themselves are {{refrence}}")


def test_an_answer_that_is_still_thinking_has_no_score() -> None:
    with pytest.raises(ValueError, match="finds no number"):
        score_in("<think> <score>1</score>", "<score>(.)</score>")
