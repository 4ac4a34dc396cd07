"""The task of studies/smollm2.toml: its solver finds every right response, and questions come in one file only."""

from __future__ import annotations

from pathlib import Path

import pytest

from rlep.config.settings import load_config
from rlep.data.prompt_files import read_rows
from rlep.data.prompt_rows import Wanted
from rlep.services.verifier.gym import GymVerifier
from studies.tasks.smollm2 import HELD_OUT, TRAIN, WARM_UP, expressions, main, responses

TASKS = Path(__file__).parents[3] / "studies" / "tasks"


def test_the_solver_finds_every_right_response() -> None:
    # 14 of 3, 4, 2 is (3 + 4) * 2 or 3 * 4 + 2, each in four orders.
    assert responses([3, 4, 2], 14) == tuple(
        f"<answer>{text}</answer>"
        for text in ("(3*4)+2", "(3+4)*2", "(4*3)+2", "(4+3)*2", "2*(3+4)", "2*(4+3)", "2+(3*4)", "2+(4*3)")
    )
    # 6 orders, 9 pairs of operators, the pair in front or behind.
    assert len({text for text, _ in expressions([3, 4, 2])}) == 6 * 9 * 2


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_the_files_have_different_questions_and_the_tasks_scorer_agrees_with_the_solver(tmp_path: Path) -> None:
    main(tmp_path)
    parts = {
        name: list(read_rows(tmp_path / f"{name}.parquet", Wanted(candidates=True)))
        for name in ("train", "held-out", "solver")
    }
    assert {name: len(rows) for name, rows in parts.items()} == {
        "train": TRAIN,
        "held-out": HELD_OUT,
        "solver": WARM_UP,
    }
    assert len({row.question for rows in parts.values() for row in rows}) == TRAIN + HELD_OUT + WARM_UP
    assert not any(row.candidates for row in (*parts["train"], *parts["held-out"]))
    right = [(row.reference, text, False) for row in parts["solver"] for text in row.candidates]
    with GymVerifier() as verifier:
        assert {verdict.status for verdict in verifier.grade_pairs(right)} == {"correct"}
        wrong = [(reference, text.replace("</", "+1</"), False) for reference, text, _ in right[:20]]
        assert {verdict.status for verdict in verifier.grade_pairs(wrong)} == {"wrong"}


def test_the_warm_up_ends_where_the_study_begins() -> None:
    study = load_config([TASKS / "smollm2.toml"])
    warm_up = load_config([TASKS / "smollm2.toml", TASKS / "smollm2-warm-up.toml"])
    assert study.model.path == warm_up.run.directory / "checkpoints" / f"step-{warm_up.run.steps:06d}" / "model"
    assert warm_up.run.steps * warm_up.rollout.prompts == WARM_UP
