"""Verifiers that decide in this process, and the grading of files by them."""

import io
import json
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from rlep.cli import app
from rlep.cli.grade import grade
from rlep.config.roles import VerifierConfig
from rlep.core.errors import ConfigError, DataError
from rlep.services.verifier import dapo
from rlep.services.verifier import grade_rows as grade_rows_module
from rlep.services.verifier.grade_rows import bounded_lines, grade_rows
from rlep.services.verifier.grader import configured_verifier
from rlep.services.verifier.quantity import Quantity, canonical_unit, disagree, read
from rlep.services.verifier.verifier import Verifier


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        ("so\nAnswer: 42", "42"),
        ("Answer: 41\nAnswer: $42$", "42"),
        ("the answer: 1,234", "1234"),
        ("Answer: x = 7", "7"),
        ("Answer: \\boxed{7} dollars", "7"),
        ("Answer: \\frac12", "\\frac{1}{2}"),
        ("Answer: 42." + " " * 300, None),
        ("\\boxed{42}", None),
        ("Answer: $ dollars", None),  # nothing is left of it
    ],
)
def test_the_dapo_profile_reads_the_last_answer_near_the_end(text: str, answer: str | None) -> None:
    assert dapo.answer_of(text) == answer


def test_the_dapo_profile_compares_strings() -> None:
    with Verifier("dapo") as verifier:
        texts = ["Answer: 34", "Answer: 34.0", "34", "Answer: 35"]
        verdicts = verifier.grade("34", texts, [False] * 4)
    assert [verdict.status for verdict in verdicts] == ["correct", "wrong", "no_answer", "wrong"]


def test_the_dapo_profile_says_the_same_of_an_answer_whatever_stands_before_it() -> None:
    with Verifier("dapo") as verifier:
        pairs = [("\\dots", "Answer: $", False), ("\\dots", "no more", False)]
        forward = [verdict.status for verdict in verifier.grade_pairs(pairs)]
        backward = [verdict.status for verdict in verifier.grade_pairs(pairs[::-1])]
    assert forward == backward == ["no_answer", "no_answer"]


def test_exact_match_forgives_case_and_white_space_only() -> None:
    with configured_verifier(VerifierConfig(profile="exact")) as verifier:
        verdicts = verifier.grade(
            "New York", [" new  york\n", "New York City", "", "New York"], [False, False, False, True]
        )
    assert [verdict.status for verdict in verdicts] == ["correct", "wrong", "no_answer", "no_answer"]


def test_a_pattern_takes_its_last_match() -> None:
    with configured_verifier(VerifierConfig(profile="regex:^label: (\\w+)$")) as verifier:
        texts = ["label: spam\nlabel: ham", "label: spam", "no label"]
        verdicts = verifier.grade("Ham", texts, [False] * 3)
        cut = verifier.grade("Ham", ["label: ham"], [True])
    assert [verdict.status for verdict in verdicts] == ["correct", "wrong", "no_answer"]
    assert verdicts[0].extracted == "ham"
    assert cut[0].status == "no_answer"


def test_a_pattern_that_does_not_compile_is_refused() -> None:
    with pytest.raises(ConfigError, match="no regular expression"):
        configured_verifier(VerifierConfig(profile="regex:("))


def test_rows_come_back_in_order_with_their_verdicts() -> None:
    lines = [
        json.dumps({"gold": "34", "response": "Answer: 34", "id": 7}),
        "not json",
        "",
        "[1, 2]",
        json.dumps({"gold": "34", "status": "correct", "path": "fast"}),
        json.dumps({"gold": 34, "response": "Answer: 34", "error": "old"}),
        json.dumps({"gold": "4\ud800", "response": "Answer: \x00"}),
        "[" * 100_000,
    ]
    with configured_verifier(VerifierConfig(profile="dapo")) as verifier:
        graded = list(grade_rows(lines, verifier, batch=2))
    rows = [json.loads(row.text) for row in graded]
    assert [row.line for row in graded if row.error] == [2, 4, 5, 8]
    assert [row.get("status") for row in rows] == ["correct", None, None, None, "correct", "wrong", None]
    assert [row.status for row in graded] == [row.get("status") for row in rows]
    assert rows[0]["id"] == 7
    assert rows[0]["extracted"] == "34"
    assert rows[0]["path"] == "fast"
    assert rows[1]["line"] == "not json"
    assert "JSON" in rows[1]["error"]
    assert rows[3] == {"gold": "34", "error": "no text under response"}
    assert "error" not in rows[4]


def test_unreadable_rows_are_named_and_end_with_1(tmp_path: Path) -> None:
    file, out = tmp_path / "rows.jsonl", tmp_path / "graded.jsonl"
    good = json.dumps({"gold": "34", "response": "Answer: 34"})
    file.write_text(f'{good}\n{{"gold": "34", "reponse": "Answer: 34"}}\n[1]\n{good}\n')
    result = CliRunner().invoke(app, ["grade", str(file), "--profile", "dapo", "--out", str(out)])
    assert result.exit_code == 1
    assert result.stderr.splitlines()[-3:] == [
        f"error: {file}: 2 rows were not graded",
        "  line 2: no text under response",
        "  line 3: not a JSON object but list",
    ]
    assert [json.loads(line).get("status") for line in out.read_text().splitlines()] == [
        "correct",
        None,
        None,
        "correct",
    ]


def test_a_byte_order_mark_and_standard_input_cost_no_row(tmp_path: Path) -> None:
    file = tmp_path / "rows.jsonl"
    row = json.dumps({"gold": "34", "response": "Answer: 34"})
    file.write_text(f"{row}\n{row}\n", encoding="utf-8-sig")
    for name, given in ((str(file), None), ("-", file.read_text()), ("/dev/stdin", file.read_text())):
        done = subprocess.run(
            [sys.executable, "-m", "rlep", "grade", name, "--profile", "dapo"],
            input=given,
            check=False,
            text=True,
            capture_output=True,
        )
        assert [json.loads(line)["status"] for line in done.stdout.splitlines()] == ["correct", "correct"]
        assert (done.returncode, done.stderr) == (0, "2 graded: 2 correct\n")


def test_a_function_that_decides_on_nothing_ends_with_its_traceback(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)  # where the module is found without PYTHONPATH
    (tmp_path / "rewards_here.py").write_text("def fails(reference, response):\n    return 1 / int(response)\n")
    for responses, code in ((["0", "0"], 1), (["0", "1"], 0)):
        rows = [{"gold": "1", "response": one} for one in responses] + [
            {"gold": "1", "response": "0", "truncated": True}
        ]
        Path("rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
        script = str(Path(sys.executable).with_name("rlep"))
        command = [script, "grade", "rows.jsonl", "--profile", "python:rewards_here:fails"]
        done = subprocess.run(command, text=True, capture_output=True, check=False)
        assert done.returncode == code, done.stderr
        assert len(done.stdout.splitlines()) == 3
        error = (
            "error: python:rewards_here:fails decided on none of 2 responses (2 crashed); the first: ZeroDivisionError"
        )
        assert (error in done.stderr) == (code == 1)
        assert 'rewards_here.py", line 2, in fails' in done.stderr
        assert '"reason": "ZeroDivisionError: division by zero' in done.stdout


def test_a_score_out_of_its_range_ends_the_grading_of_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "rewards_out.py").write_text("def signed(response):\n    return int(response)\n")
    rows = [{"gold": "1", "response": response} for response in ("1", "x", "-1", "0")]
    Path("rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    script = str(Path(sys.executable).with_name("rlep"))
    command = [script, "grade", "rows.jsonl", "--profile", "python:rewards_out:signed"]
    done = subprocess.run(command, text=True, capture_output=True, check=False)
    assert [json.loads(line)["status"] for line in done.stdout.splitlines()] == [
        "correct",
        "crashed",
        "crashed",
        "wrong",
    ]
    error = (
        "error: python:rewards_out:signed: OutOfRange: score -1 does not lie in [0, 1]; scale it, or declare its range"
    )
    assert (done.returncode, error in done.stderr) == (1, True)


def test_the_graded_file_is_never_written_over(tmp_path: Path) -> None:
    file = tmp_path / "rows.jsonl"
    row = json.dumps({"gold": "34", "response": "Answer: 34"})
    file.write_text(row + "\n")
    (tmp_path / "same.jsonl").symlink_to(file)
    for out in (file, tmp_path / "same.jsonl"):
        with pytest.raises(DataError, match="is the file that is graded"):
            grade(file, "dapo", out=out)
    assert file.read_text() == row + "\n"
    older = tmp_path / "older.jsonl"
    older.write_text("kept")
    with pytest.raises(ConfigError):
        grade(file, "maths", out=older)
    assert older.read_text() == "kept"
    with pytest.raises(DataError, match=r"no/rows.jsonl cannot be written: No such file or directory"):
        grade(file, "dapo", out=tmp_path / "no" / "rows.jsonl")
    grade(file, "dapo", out=older)
    assert json.loads(older.read_text())["status"] == "correct"


def test_truncated_rows_need_a_complete_marker() -> None:
    row = {"gold": "x", "response": "Answer: x", "finish_reason": "length"}
    with configured_verifier(VerifierConfig(profile="exact")) as verifier:
        (graded,) = grade_rows([json.dumps(row)], verifier)
    assert json.loads(graded.text)["status"] == "no_answer"


@pytest.mark.parametrize(
    ("prompt", "status"),
    [("2 + 5?<think>\n", "no_answer"), ("2 + 5?", "correct"), ("<think> 2 + 5?", "correct"), (None, "correct")],
)
def test_a_rows_prompt_says_whether_the_response_begins_in_thinking(prompt: str | None, status: str) -> None:
    row = {"gold": "7", "response": r"try \boxed{7} hmm, no, wait", "prompt": prompt, "truncated": True}
    with configured_verifier(VerifierConfig(profile="strict-box")) as verifier:
        (graded,) = grade_rows([json.dumps(row)], verifier)
    found = json.loads(graded.text)
    assert (found["status"], found["response"]) == (status, row["response"])


@pytest.mark.parametrize(
    ("latex", "quantity"),
    [
        ("5\\text{ cm}", Quantity("5", "cm")),
        ("5\\text{ cm}^2", Quantity("5", "cm^2")),
        ("5 square feet", Quantity("5", "ft^2")),
        ("5 m", Quantity("5", "m")),
        ("5m", Quantity("5m")),
        ("3t", Quantity("3t")),
        ("\\$5.50", Quantity("5.50", "dollar")),
        ("90^\\circ", Quantity("90", "deg")),
        ("1010_{2}", Quantity("1010", None, 2)),
        ("129_8", Quantity("129_8")),
        ("x_1", Quantity("x_1")),
        ("7\\text{ apples}", Quantity("7", "apple")),
        ("7\\text{ or }8", Quantity("7\\text{ or }8")),
        ("42\\text{ if true}", Quantity("42\\text{ if true}")),
    ],
)
def test_units_and_bases_are_taken_off(latex: str, quantity: Quantity) -> None:
    assert read(latex) == quantity


def test_missing_units_and_bases_are_forgiven_where_the_contract_says_so() -> None:
    assert not disagree(Quantity("5", "cm"), Quantity("5"))
    assert not disagree(Quantity("5"), Quantity("5", "cm"))
    assert disagree(Quantity("5", "cm"), Quantity("5", "m"))
    assert not disagree(Quantity("11", None, 2), Quantity("11"))
    assert disagree(Quantity("11"), Quantity("11", None, 2))
    assert not disagree(Quantity("11"), Quantity("11", None, 10))


def test_units_have_one_name() -> None:
    assert canonical_unit("centimetres", None) == "cm"
    assert canonical_unit("miles per hour", None) == "mph"
    assert canonical_unit("cubic inches", None) == "in^3"
    assert canonical_unit("is odd", None) is None


def test_the_parent_never_imports_the_symbolic_engine() -> None:
    modules = ["grader", "verifier", "grade_rows", "user_function", "patterns", "notation", "words"]
    imports = "".join(f"import rlep.services.verifier.{module}\n" for module in modules)
    script = (
        imports + "import sys\nsys.exit(any(name in sys.modules for name in ('sympy', 'math_verify', 'ray', 'torch')))"
    )
    assert subprocess.run([sys.executable, "-c", script], check=False).returncode == 0


AFTER = {
    "exact": [
        ("<think>8</think>7", "correct"),
        ("7", "no_answer"),
        ("</think>8</think>7", "correct"),
        ("7</think>", "no_answer"),
    ],
    r"regex:(\d+)": [("<think>7</think> 8", "wrong"), ("<think>7", "no_answer"), ("8</think>7", "correct")],
    "dapo": [("Answer: 7", "no_answer"), ("Answer: 8</think>Answer: 7", "correct"), ("Answer: 7</think>", "no_answer")],
}


@pytest.mark.parametrize("profile", AFTER)
def test_only_what_follows_the_last_mark_is_graded_and_the_version_names_it(profile: str) -> None:
    texts, statuses = zip(*AFTER[profile], strict=True)
    with (
        configured_verifier(VerifierConfig(profile=profile, answer_after="</think>")) as verifier,
        configured_verifier(VerifierConfig(profile=profile)) as plain,
    ):
        verdicts = verifier.grade("7", texts, [False] * len(texts))
        assert [verdict.status for verdict in verdicts] == [*statuses]
        assert {verdict.version for verdict in verdicts} == {f"{plain.version}-after-</think>"} == {verifier.version}
        verifier.check()  # its self-test stands behind the mark
        stated = verifier.respond("Answer: 7" if profile == "dapo" else "7")
        assert verifier.grade("7", [stated], [False])[0].status == "correct"


def test_rows_are_graded_after_a_mark_of_ones_own(tmp_path: Path) -> None:
    rows = [{"gold": "7", "response": text} for text in ("8 ANSWER 7", "7")]
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    arguments = ["grade", str(tmp_path / "rows.jsonl"), "--profile", "exact", "--answer-after", "ANSWER"]
    done = CliRunner().invoke(app, arguments)
    assert [json.loads(line)["status"] for line in done.stdout.splitlines()] == ["correct", "no_answer"]


def test_a_row_that_is_too_long_is_not_graded_and_stops_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(grade_rows_module, "LONGEST_LINE", 100)
    row = json.dumps({"gold": "34", "response": "Answer: 34"})
    file = io.StringIO("\n".join([row, "x" * 250, "y" * 99, row]))
    with configured_verifier(VerifierConfig(profile="dapo")) as verifier:
        graded = list(grade_rows(bounded_lines(file), verifier))
    assert [(one.line, one.status) for one in graded] == [(1, "correct"), (2, None), (3, None), (4, "correct")]
    assert graded[1].error == "longer than 100 characters"
    assert graded[2].error.startswith("not JSON")
