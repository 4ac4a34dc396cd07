"""Tasks of reasoning-gym: every one grades its own reference, or is refused; made, written, read and graded again."""

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path
from typing import Any

import psutil
import pytest
from typer.testing import CliRunner

from rlep.cli import app
from rlep.config.roles import VerifierConfig
from rlep.core.errors import ConfigError, DataError
from rlep.core.types import Verdict
from rlep.data.prompt_files import read_rows
from rlep.services.verifier.base import VERSION
from rlep.services.verifier.grader import configured_verifier
from rlep.services.verifier.grading_job import GradingJob
from rlep.services.verifier.gym import REFUSED, GymVerifier, answer_of, is_readable
from rlep.services.verifier.gym_tasks import make, task_names
from rlep.services.verifier.reply import Reply
from rlep.services.verifier.worker_pool import WorkerPool
from rlep.services.worker.jail import Limits

ROOT = Path(__file__).parents[3]
WORKER = "rlep.services.verifier.gym_worker"
LIMITS = Limits(cpu_seconds=60, wall_seconds=120, memory_mb=4096)


@pytest.fixture(scope="module")
def verifier() -> Iterator[GymVerifier]:
    with GymVerifier() as made:
        yield made


def entry(task: str, seed: int = 0, **settings: object) -> dict[str, Any]:
    """The first entry of a task."""
    (gold,) = make(task, size=1, seed=seed, settings=settings).entries
    found: dict[str, Any] = json.loads(gold)
    return found


def graded(verifier: GymVerifier, gold: dict[str, Any], answer: str) -> Verdict:
    return verifier.grade(json.dumps(gold), [f"So it is\n<answer>{answer}</answer>"], [False])[0]


def in_worker(function: str, jobs: list[tuple[str, str]]) -> list[Reply]:
    pool = WorkerPool(f"{WORKER}:{function}", LIMITS, 1)
    try:
        return pool.grade([GradingJob(*job) for job in jobs])
    finally:
        pool.close()


WRONG = {"coin_flip": "0", "complex_arithmetic": "nan", "letter_jumble": "{} xyzzy"}
"""Wrong answers that the scorer of this one task accepts; ``{}`` is the reference."""


def wrong_answers(task: str, references: list[str], index: int) -> list[str]:
    others = [reference for reference in references if reference != references[index]]
    more = [WRONG[task].format(references[index])] if task in WRONG else []
    return ["xyzzy", "-987654321", others[0] if others else "zyxxy", *more]


def test_every_task_grades_its_references_and_three_wrong_answers_or_is_refused() -> None:
    names = task_names()
    assert len(names) == 106  # reasoning-gym 0.1.25
    requests = [
        (json.dumps({"task": name, "seed": 0, "config": {}}), str(index)) for name in names for index in range(3)
    ]
    made = in_worker("make", requests)
    disagree = set()
    jobs: list[tuple[str, str]] = []
    expected: list[tuple[str, bool]] = []
    for at, name in enumerate(names):
        texts = [reply.extracted for reply in made[3 * at : 3 * at + 3] if reply.status == "correct"]
        golds = [text for text in texts if text and isinstance(json.loads(text)["answer"], str)]
        if len(golds) < 3:
            disagree.add(name)
            continue
        references = [json.loads(gold)["answer"] for gold in golds]
        for index, gold in enumerate(golds):
            wrong = wrong_answers(name, references, index)
            jobs += [(gold, answer) for answer in (references[index], *wrong)]
            expected += [(name, True), *((name, False) for _ in wrong)]
    replies = in_worker("score", jobs)
    for (name, right), reply in zip(expected, replies, strict=True):
        if right != (reply.status == "correct"):
            disagree.add(name)
    assert disagree == set(REFUSED)


def test_partial_credit_is_a_score_and_never_correct(verifier: GymVerifier) -> None:
    gold = {"answer": "1 2 3", "metadata": {"source_dataset": "spiral_matrix"}}
    found = [graded(verifier, gold, answer) for answer in ("1 2 3", "[1, 2, 3]", "1 2 4")]
    assert [(verdict.status, verdict.score) for verdict in found] == [("correct", 1.0), ("wrong", 0.1), ("wrong", 0.0)]
    # Six letters of 1/6 each add up to 1 but for the rounding; the scorer adds them although a seventh follows.
    gold = {"answer": "abcdef", "metadata": {"source_dataset": "spell_backward"}}
    verdict = graded(verifier, gold, "abcdefg")
    assert verdict.status == "wrong"
    assert verdict.score is not None
    assert verdict.score < 1.0


def test_an_answer_is_never_run(verifier: GymVerifier) -> None:
    leave = "__import__('os')._exit(0)"
    graded(verifier, entry("binary_matrix"), leave)
    processes = {*psutil.Process().children(recursive=True)}
    for task in ("binary_matrix", "spiral_matrix", "string_insertion", "n_queens"):
        gold = {"answer": "A", "metadata": {"source_dataset": task, "valid_answers": ["A"]}}
        assert graded(verifier, gold, leave).status == "wrong"
    for task in ("countdown", "simple_integration", "intermediate_integration", "polynomial_multiplication"):
        assert graded(verifier, {"answer": "A", "metadata": {"source_dataset": task}}, leave).status == "unparsable"
    assert {*psutil.Process().children(recursive=True)} == processes


@pytest.mark.parametrize(
    ("task", "answer", "readable"),
    [
        ("countdown", "6*(98 - 54) - 34 / 66", True),
        ("countdown", "exec(1)", False),
        ("countdown", "x", False),
        ("countdown", "9.8", False),
        ("countdown", "9**8", False),
        ("countdown", "9//8", False),
        ("simple_integration", "-5*X**9/2 + sin(2*x)*exp(-x) + 0.5*C", True),
        ("simple_integration", "Integral(2*x, x)", False),
        ("simple_integration", "x.func(1)", False),
        ("simple_integration", "x . func", False),
        ("simple_integration", "'x'", False),
        ("simple_integration", "_", False),
        ("simple_integration", "[x][0]", False),
        ("simple_integration", "\uff45xec(1)", False),  # Python reads a full-width e as e
        ("chain_sum", "exec(1)", True),  # compared as text
        ("chain_sum", "1" * 20_001, False),
    ],
)
def test_sympys_parser_sees_only_mathematics(task: str, answer: str, readable: bool) -> None:
    assert is_readable(task, answer) is readable


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        ("<answer> 4 </answer>", "4"),
        ("<answer>1</answer> no: <answer>1 2\n3 4</answer>.", "1 2\n3 4"),
        ("<think><answer>5</answer></think> <answer>4</answer>", "4"),
        ("<think><answer>5</answer>", None),
        ("I write <answer> and then <answer>4</answer>", "4"),
        ("<answer>4</answer> or </answer>", "4"),
        ("</answer>4<answer>", None),
        ("<answer>" * 200_000, None),
        ("<answer>4", None),
        ("4", None),
    ],
)
def test_the_answer_is_in_the_last_pair_of_tags(text: str, answer: str | None) -> None:
    assert answer_of(text) == answer


def test_without_an_answer_nothing_is_asked(verifier: GymVerifier) -> None:
    gold = json.dumps({"answer": "4", "metadata": {"source_dataset": "chain_sum"}})
    found = verifier.grade(gold, ["4", "<answer></answer>", "<answer>4</answer>"], [False, False, True])
    assert [verdict.status for verdict in found] == ["no_answer", "no_answer", "correct"]
    assert {verdict.version for verdict in found} == {f"{VERSION}-{metadata.version('reasoning-gym')}"}


def test_settings_reach_the_questions_and_the_scorer(verifier: GymVerifier) -> None:
    gold = entry("chain_sum", min_terms=7, max_terms=7)
    assert gold["config"] == {"min_terms": 7, "max_terms": 7}
    assert gold["question"].count(" + ") + gold["question"].count(" - ") == 6
    # The scorer of decimal_arithmetic rounds to max_num_decimal_places: 0.12 and 0.13 are 0.1 at one place.
    rough = {"answer": "0.12", "metadata": {"source_dataset": "decimal_arithmetic"}, "config": {}}
    rough["config"] = {"min_num_decimal_places": 1, "max_num_decimal_places": 1}
    exact = {**rough, "config": {"min_num_decimal_places": 4, "max_num_decimal_places": 4}}
    assert [graded(verifier, gold, "0.13").status for gold in (rough, exact)] == ["correct", "wrong"]


def test_neighbouring_seeds_share_no_questions() -> None:
    one, two = (make("countdown", size=8, seed=seed, settings={}).entries for seed in (0, 1))
    assert not {json.loads(gold)["question"] for gold in one} & {json.loads(gold)["question"] for gold in two}


def test_equal_questions_are_kept_once() -> None:
    made = make("count_bits", size=12, seed=0, settings={"max_n": 2})
    assert 1 <= len(made.entries) <= 2  # the numbers 1 and 2
    assert len(made.entries) + made.repeated == 12
    assert made.disputed == 0


def rlep(*words: str, **environment: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "rlep", *words]
    return subprocess.run(
        command, capture_output=True, text=True, check=False, cwd=ROOT, env={**os.environ, **environment}
    )


def test_a_file_is_a_function_of_the_seed_and_every_reference_in_it_is_graded_correct(tmp_path: Path) -> None:
    # word_ladder draws from sets, whose order depends on the hash seed of the process.
    for name, seed, hashes in (("a", "5", "1"), ("b", "5", "2"), ("c", "6", "1")):
        out = str(tmp_path / f"{name}.parquet")
        done = rlep("tasks", "make", "word_ladder", "--size", "4", "--seed", seed, "--out", out, PYTHONHASHSEED=hashes)
        assert (done.returncode, done.stdout) == (0, f"{out}: 4 questions\n"), done.stderr
    first, again, other = (list(read_rows(tmp_path / f"{name}.parquet")) for name in "abc")
    assert first == again
    assert not {row.question for row in first} & {row.question for row in other}
    assert all(row.data_source == "word_ladder" for row in first)
    assert all(row.question.endswith("\n\nGive your final answer between <answer> and </answer>.") for row in first)
    rows = tmp_path / "rows.jsonl"
    answers = [json.loads(row.reference)["answer"] for row in first]
    rows.write_text(
        "".join(
            json.dumps({"gold": row.reference, "response": f"<answer>{answer}</answer>"}) + "\n"
            for row, answer in zip(first * 2, answers + ["none"] * 4, strict=True)
        )
    )
    done = rlep("grade", str(rows), "--profile", "reasoning-gym")
    assert done.returncode == 0, done.stderr
    found = [json.loads(line) for line in done.stdout.splitlines()]
    assert [row["status"] for row in found] == ["correct"] * 4 + ["wrong"] * 4
    assert [row["score"] for row in found[:4]] == [1.0] * 4


def test_rows_whose_gold_is_no_entry_are_named_and_the_others_graded(tmp_path: Path) -> None:
    good = {"answer": "4", "metadata": {"source_dataset": "chain_sum"}}
    refused = {"answer": "True", "metadata": {"source_dataset": "game_of_life_halting"}}
    rows = tmp_path / "rows.jsonl"
    golds = ["4", json.dumps(good), json.dumps(refused), json.dumps({**good, "config": 1})]
    rows.write_text("".join(json.dumps({"gold": gold, "response": "<answer>4</answer>"}) + "\n" for gold in golds))
    done = rlep("grade", str(rows), "--profile", "reasoning-gym")
    assert done.returncode == 1
    assert [json.loads(line).get("status") for line in done.stdout.splitlines()] == [None, "correct", None, None]
    assert "line 1: gold is no entry of reasoning-gym as JSON: question, answer, metadata with source_d" in done.stderr
    assert "line 3: task game_of_life_halting is refused: its scorer accepts every text" in done.stderr


def test_a_run_whose_reference_is_no_entry_ends(verifier: GymVerifier) -> None:
    with pytest.raises(DataError, match="gold is no entry of reasoning-gym"):
        verifier.grade("4", ["<answer>4</answer>"], [False])


@pytest.mark.parametrize(
    ("task", "settings", "sentence"),
    [
        ("chain_sun", {}, "unknown task chain_sun; did you mean chain_sum"),
        ("quux", {}, "unknown task quux; rlep tasks list shows all"),
        ("graph_color", {}, "task graph_color is refused: it gives no reference answer"),
        ("chain_sum", {"min_term": 2}, "--set min_term: task chain_sum has no such key; it has min_terms"),
        ("chain_sum", {"seed": 2}, "--set seed: use --seed"),
        ("chain_sum", {"min_terms": 0}, "task chain_sum refuses --set min_terms=0: min_terms must be positive"),
    ],
)
def test_mistakes_are_one_sentence(task: str, settings: dict[str, object], sentence: str) -> None:
    with pytest.raises(ConfigError) as refused:
        make(task, size=1, seed=0, settings=settings)
    assert str(refused.value).startswith(sentence)


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["--out", "tasks.csv"], "--out tasks.csv: a data set is a .parquet or .jsonl file"),
        (["--out", "none/tasks.parquet"], "--out none/tasks.parquet: there is no directory none"),
        (["--out", "tasks.jsonl", "--set", "min_terms"], "--set min_terms: expected KEY=VALUE"),
    ],
)
def test_a_wrong_option_is_refused_before_anything_is_made(words: list[str], sentence: str) -> None:
    result = CliRunner().invoke(app, ["tasks", "make", "chain_sum", "--size", "1", "--seed", "0", *words])
    assert (result.exit_code, result.stderr) == (2, f"error: {sentence}\n")


def test_the_list_has_every_task_and_says_why_some_are_refused() -> None:
    lines = CliRunner().invoke(app, ["tasks", "list"]).stdout.splitlines()
    assert [line.split()[0] for line in lines] == list(task_names())
    assert [line for line in lines if len(line.split()) < 3] == []  # each says what it asks
    assert {line.split()[0] for line in lines if "  refused: " in line} == set(REFUSED)


def test_without_the_package_the_command_to_run_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(_: str) -> str:
        raise metadata.PackageNotFoundError

    monkeypatch.setattr(metadata, "version", missing)
    sentence = "reasoning-gym is not installed: pip install 'reasoning-gym>=0.1.25,<0.2'"
    for call in (task_names, lambda: configured_verifier(VerifierConfig(profile="reasoning-gym"))):
        with pytest.raises(ConfigError, match=f"^{re.escape(sentence)}$"):
            call()
