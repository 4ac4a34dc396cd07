"""The quickstart's problems and files: right answers, no overlap, built once, repaired when torn."""

import json
import re
import threading
from pathlib import Path

import numpy as np
import pytest

from rlep.core.seeds import generator_for
from rlep.core.types import Int32Array
from rlep.data.prompts import load_prompts
from rlep.quickstart.base_model import BANDS, believed, demonstration, error_rate, teacher_values
from rlep.quickstart.problems import LARGEST, Problem, draw_problem, reserved_for_tasks
from rlep.quickstart.task import build_task, task_problems

ANN = Problem(8, 7, (6, -4), "Ann", "pens")


def test_the_worked_example() -> None:
    assert ANN.question == "Ann has 8 bags of 7 pens. Buys 6 more. Gives 4 away. How many?"
    assert ANN.solution == r"8*7=56.So 56+6=62.So 62-4=58.\boxed{58}"
    assert ANN.values == (56, 62, 58)
    assert ANN.key == (8, 7, (6, -4))


def test_every_partial_result_has_at_most_two_digits() -> None:
    generator = generator_for(0, "test")
    problems = [draw_problem(generator) for _ in range(2000)]
    for problem in problems:
        total = problem.m * problem.n
        for step, value in zip(problem.steps, problem.values[1:], strict=True):
            total += step
            assert total == value
            assert 1 <= abs(step) <= 9
        assert all(0 <= value <= LARGEST for value in problem.values)
        assert 2 <= problem.m <= 9
        assert 2 <= problem.n <= 9
    assert {len(problem.steps) for problem in problems} == {1, 2, 3}


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_training_and_heldout_problems_share_no_key_and_the_base_saw_neither(seed: int) -> None:
    train, heldout = task_problems(seed)
    keys = {problem.key for problem in train + heldout}
    assert (len(train), len(heldout), len(keys)) == (512, 200, 712)
    assert all(reserved_for_tasks(key) for key in keys)
    assert {problem.key for problem in task_problems(seed + 10)[0]} != {problem.key for problem in train}


def test_about_a_quarter_of_the_problems_is_reserved() -> None:
    generator = generator_for(1, "test")
    keys = {draw_problem(generator).key for _ in range(4000)}
    share = sum(map(reserved_for_tasks, keys)) / len(keys)
    assert abs(share - 0.25) < 0.035  # five sd of a quarter of about 3,900


def test_error_rates_are_shared_out_as_the_bands_say() -> None:
    facts = [f"fact {number}" for number in range(2000)]
    rates = [error_rate(fact) for fact in facts]
    for share, error in BANDS:
        assert abs(rates.count(error) / len(rates) - share) < 0.06  # five sd
    assert rates == [error_rate(fact) for fact in facts]


def test_the_teacher_errs_as_often_as_its_rate_says_and_always_upwards() -> None:
    generator = np.random.default_rng(0)
    for fact, value in [("8*7", 56), ("2*2", 4), ("+9", 0), ("-7", 92)]:
        said = [believed(fact, value, generator) for _ in range(2000)]
        assert abs(1 - said.count(value) / 2000 - error_rate(fact)) < 0.056  # five sd of a half
        assert min(said) == value
        assert max(said) <= LARGEST


def test_two_mistakes_never_make_a_right_answer() -> None:
    generator = generator_for(2, "test")
    for _ in range(3000):
        problem = draw_problem(generator)
        values = teacher_values(problem, generator)
        if values[-1] == problem.answer < LARGEST and min(problem.values) > 9:  # no clipping at 0 or 99
            assert values == list(problem.values)


def test_the_teacher_carries_on_from_its_own_mistakes() -> None:
    generator = np.random.default_rng(0)
    endings = [demonstration(ANN, generator) for _ in range(500)]
    boxed = [text for text in endings if "\\boxed" in text]
    assert 0.85 < len(boxed) / 500 < 0.95  # one in ten leaves the box out; sd 0.013
    for text in endings:
        values = re.findall(r"=(\d+)\.", text)
        starts = re.findall(r"So (\d+)[+-]", text)
        assert starts == values[: len(starts)]
    assert sum("So" in text for text in endings) > 350


def encode(messages: object) -> Int32Array:
    return np.zeros(17, dtype=np.int32)


def test_the_files_are_what_any_run_reads(tmp_path: Path) -> None:
    files = build_task(tmp_path / "task", seed=3)
    train, heldout = task_problems(3)
    loaded = load_prompts([files.train], encode=encode, max_tokens=17)
    assert str(loaded.report) == "512 questions from 512 rows (longest prompt 17 tokens)"
    assert [prompt.question for prompt in loaded.prompts] == [problem.question for problem in train]
    assert [prompt.reference for prompt in loaded.prompts] == [str(problem.answer) for problem in train]
    others = load_prompts([files.heldout], encode=encode, max_tokens=17)
    assert len(others) == len(heldout) == 200
    assert {prompt.id for prompt in loaded.prompts}.isdisjoint(prompt.id for prompt in others.prompts)
    assert {path.name for path in files.model_dir.iterdir()} >= {"config.json", "model.safetensors", "tokenizer.json"}


def snapshot(directory: Path) -> dict[str, tuple[bytes, int]]:
    return {
        path.relative_to(directory).as_posix(): (path.read_bytes(), path.stat().st_ino)
        for path in sorted(directory.rglob("*"))
        if path.is_file()
    }


def test_a_second_build_touches_nothing(tmp_path: Path) -> None:
    build_task(tmp_path, seed=0)
    before = snapshot(tmp_path)
    build_task(tmp_path, seed=0)
    assert snapshot(tmp_path) == before


@pytest.mark.parametrize("name", ["train.parquet", "model/model.safetensors", "manifest.json", "model/config.json"])
@pytest.mark.parametrize("damage", ["cut", "gone"])
def test_a_torn_build_is_repaired(tmp_path: Path, name: str, damage: str) -> None:
    build_task(tmp_path, seed=0)
    whole = {path: content for path, (content, _) in snapshot(tmp_path).items()}
    if damage == "cut":
        (tmp_path / name).write_bytes(whole[name][:100])
    else:
        (tmp_path / name).unlink()
    build_task(tmp_path, seed=0)
    assert {path: content for path, (content, _) in snapshot(tmp_path).items()} == whole


def test_another_seed_replaces_the_problems_and_keeps_the_base(tmp_path: Path) -> None:
    files = build_task(tmp_path, seed=0)
    train, weights = files.train.read_bytes(), (files.model_dir / "model.safetensors").read_bytes()
    build_task(tmp_path, seed=1)
    assert files.train.read_bytes() != train
    assert (files.model_dir / "model.safetensors").read_bytes() == weights
    assert json.loads((tmp_path / "manifest.json").read_text())["seed"] == 1


def test_two_builds_at_once_leave_one_whole_task(tmp_path: Path) -> None:
    threads = [threading.Thread(target=build_task, args=(tmp_path,)) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    files = snapshot(tmp_path)
    assert len(files) == len(list((tmp_path / "model").iterdir())) + 3
    build_task(tmp_path)
    assert snapshot(tmp_path) == files
