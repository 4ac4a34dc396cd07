"""A study's phase trained by TRL: what it computes is what its ledger counts, and the study reads what it writes."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from rlep.config.settings import load_config
from rlep.integrations.trl import TrlReplay
from rlep.quickstart.base_model import build_model, save_base
from rlep.study.study_plan import PhasePlan
from rlep.study.study_results import read_arm
from studies.tasks.countdown import VOCABULARY, question
from studies.with_trl import Ledger, train
from tests.services.integrations.conftest import OpenPool
from tests.services.integrations.trl_scene import correct, fill, solutions, tokenizer, trainer_of

ROWS, SHORTEST, LONGEST = 4 * 6, 11 + 1, 11 + 20
"""Of a rollout, prompts of 11 tokens included. It takes between 1,440 and 3,720: each token is generated and scored, and three
times trained."""
MARKS = (1000.0, 5.0 * ROWS * LONGEST + 1)
"""Reached by the first rollout; and by the second or the third."""


@pytest.mark.parametrize("replays", [0, 2])
def test_the_ledger_has_each_row_once_and_generates_no_replay(pool_of: OpenPool, tmp_path: Path, replays: int) -> None:
    """Two rollouts of two optimizer steps, with four prompts of four rows each."""
    seen = list[tuple[int, int]]()

    def lengths(prompts: Sequence[Any], completion_ids: Sequence[Sequence[int]], **given: Any) -> list[float]:
        asked = tokenizer().apply_chat_template([*prompts], add_generation_prompt=True, return_dict=True)["input_ids"]
        seen.extend((len(ids), len(tokens)) for ids, tokens in zip(asked, completion_ids, strict=True))
        return correct(**given)

    hooks: dict[str, Any] = {"rewards": lengths}
    if replays:
        pool = pool_of()
        fill(pool, solutions(replays))
        replay = TrlReplay(pool, count=replays, source="offline", minimum=1)
        hooks = {"rewards": replay.reward(lengths), "rollout_func": replay.rollout}
    trainer = trainer_of(tmp_path, steps_per_generation=2, **hooks)
    ledger = Ledger()
    ledger.count(trainer)
    trainer.train()
    every = sum(map(sum, seen))
    assert len(seen) == 32
    assert (ledger.scored, ledger.trained) == (every, every)
    # the last places of a group of four are the stored ones; each of their prompts is not asked either
    drawn = sum(sum(row) for at, row in enumerate(seen) if at % 4 >= 4 - replays)
    assert ledger.generated == every - drawn
    assert ledger.compute == ledger.generated + 4 * every
    assert (drawn > 0) == (replays > 0)


def countdown(directory: Path, size: int) -> Path:
    """Questions with four numbers, and reasoning-gym's entries as far as its scorer reads them."""
    path = directory / f"{size}.jsonl"
    with path.open("w") as file:
        for number in range(size):
            numbers, target = [1, 2, 3, number + 1], 10
            metadata = {"source_dataset": "countdown", "numbers": numbers, "target": target}
            reference = json.dumps({"question": "", "answer": "", "metadata": metadata})
            row = {"prompt": question(numbers, target), "answer": reference, "data_source": "countdown"}
            file.write(json.dumps(row) + "\n")
    return path


@pytest.mark.slow
def test_a_study_reads_a_phase_that_trl_trained(tmp_path: Path) -> None:
    """An untrained model solves none; it is evaluated at the base and after the rollouts that reach the points."""
    save_base(tmp_path / "model", build_model(len(VOCABULARY)), VOCABULARY)
    tasks = Path(__file__).parents[3] / "studies" / "tasks"
    given: dict[str, Any] = {
        "model.path": f"{tmp_path / 'model'}",
        "data.train": f"{countdown(tmp_path, 8)}",
        "data.evaluation": [f"{countdown(tmp_path, 3)}"],
        "pool.directory": f"{tmp_path / 'pool'}",
        "run.directory": f"{tmp_path / 'run'}",
    }
    numbers = {
        "run.steps": 3,
        "rollout.prompts": 4,
        "rollout.fresh": 4,
        "rollout.max_tokens": 20,
        "update.prompts": 2,
        "reward.overlong_buffer": 0,
        "replay.count": 2,
        "replay.minimum": 1,
        "evaluation.samples": 2,
        "evaluation.final_samples": 3,
        "evaluation.compute": [*MARKS],
    }
    overrides = [f"{key}={json.dumps(value)}" for key, value in (given | numbers).items()]
    config = load_config([tasks / "countdown-3.toml"], [*overrides, 'replay.source="live"'])
    train(config)
    arm = read_arm([PhasePlan("train", config.run.directory, (), (), config)], 1e9, MARKS)
    lines = [json.loads(line) for line in (config.run.directory / "metrics.jsonl").read_text().splitlines()]
    computed = [tuple(line["metrics"][f"compute/{name}_tokens"] for name in vars(Ledger())) for line in lines]
    for at, (generated, scored, trained) in enumerate(computed, 1):
        assert (
            at * ROWS * SHORTEST <= generated == scored == trained <= at * ROWS * LONGEST
        )  # nothing is there to replay
    assert [(point.compute, point.samples.count) for point in arm.points] == [(0.0, 2), (MARKS[0], 2), (MARKS[1], 3)]
    assert [point.step for point in arm.points][:2] == [0, 1]
    assert [point.samples.accuracy.tolist() for point in arm.points] == [[0.0] * 3] * 3
