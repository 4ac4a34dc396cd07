"""``replay.method = "priority"`` and ``"recall"``: choices that remember what was drawn, and who was solved when."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rlep.core.errors import ConfigError
from rlep.core.jsonl import read_lines
from rlep.core.types import SequenceBatch, Trajectory
from rlep.driver.replays import choose_method
from rlep.methods.priority import Priority
from rlep.methods.recall import Recall
from rlep.methods.replay_method import Visit
from studies.frequency import Frequency
from tests.unit.driver.driver_fakes import Killed
from tests.unit.driver.driver_values import answer_of, config_of, prompt_set, prompts_of, untimed
from tests.unit.driver.live_scene import TRAIN, Stored, batches, live_config, trained

[PROMPT] = prompts_of(1)


def born(number: int, birth: int) -> Trajectory:
    return replace(answer_of(PROMPT, number), metadata={"birth": str(birth)})


def names(chosen: Any) -> list[int]:
    """The number of each answer, which is its first token less 500."""
    return [int(member.tokens[0]) - 500 for member in chosen]


def drawn(method: Priority, stored: list[Trajectory], steps: range, count: int = 1) -> list[list[int]]:
    found = []
    for step in steps:
        found.append(names(method.choose(step, PROMPT.id, stored, count)))
        method.learn(step, [])
    return found


def test_a_use_costs_decay_steps_of_age() -> None:
    # births 9, 6 and 5, decay 2: priorities 9 6 5 → 7 6 5 → 5 6 5 → 5 4 5 …, 1 of 9 and 5 goes by its content id
    stored = [born(0, 9), born(1, 6), born(2, 5)]
    method = Priority(options={"cooldown": 0, "most_uses": 0})
    tied = sorted((stored[0], stored[2]), key=lambda member: member.content_id)
    assert drawn(method, stored, range(10, 16)) == [[0], [0], [1], *([name] for name in names(tied)), [1]]


def test_a_response_rests_and_is_used_up() -> None:
    method = Priority(options={"cooldown": 2, "most_uses": 2, "decay": 0})
    assert drawn(method, [born(0, 3), born(1, 1)], range(4, 14)) == [[0], [1], [], [0], [1], [], [], [], [], []]
    # Both at once: they rest together.
    again = Priority(options={"cooldown": 1, "most_uses": 2, "decay": 0})
    assert drawn(again, [born(0, 3), born(1, 1)], range(4, 9), count=2) == [[0, 1], [], [0, 1], [], []]


def test_uses_of_a_lost_step_do_not_count_and_those_of_a_response_that_left_are_dropped() -> None:
    method, stored = Priority(options={"cooldown": 0, "most_uses": 1}), [born(0, 3), born(1, 1)]
    kept = method.state()
    assert names(method.choose(4, PROMPT.id, stored, 1)) == [0]
    method.restore(kept)  # the step was lost
    assert names(method.choose(4, PROMPT.id, stored, 1)) == [0]
    method.learn(4, [])
    assert method.state() == {"uses": {PROMPT.id: {stored[0].content_id: [1, 4]}}}
    assert names(method.choose(5, PROMPT.id, stored[1:], 1)) == [1]
    method.learn(5, [])
    assert method.state() == {"uses": {PROMPT.id: {stored[1].content_id: [1, 5]}}}


def test_a_draw_by_frequency_has_the_weights_of_what_was_sampled() -> None:
    # Sampled three times and once: of one draw a step, the first is 3/4; the standard deviation of 1000 is 14.
    stored = [born(0, 1), born(1, 1)]
    method = Frequency(seed=5)
    for sampled in ([stored[0]] * 3, [stored[1]]):
        assert method.accepts(sampled)
    assert method.state() == {"counts": {}}  # the step is not complete
    method.learn(0, [])
    counts = {stored[0].content_id: 3, stored[1].content_id: 1}
    assert method.state() == {"counts": {PROMPT.id: counts}}
    found = [names(method.choose(step, PROMPT.id, stored, 1)) for step in range(1000)]
    assert abs(found.count([0]) - 750) < 45
    uniform = Frequency(seed=5, options={"power": 0})
    uniform.restore(method.state())
    alike = [names(uniform.choose(step, PROMPT.id, stored, 1)) for step in range(1000)]
    assert abs(alike.count([0]) - 500) < 48  # a standard deviation is 16
    assert found[:50] == [names(method.choose(step, PROMPT.id, stored[::-1], 1)) for step in range(50)]
    assert sorted(names(method.choose(0, PROMPT.id, stored, 4))) == [0, 1]
    method.accepts(stored)
    method.restore(method.state())  # the step was lost
    method.learn(1, [])
    assert method.state() == {"counts": {PROMPT.id: counts}}


async def test_a_method_with_copies_replays_what_a_fresh_response_repeats(tmp_path: Path) -> None:
    repeated = []
    for name in ("live", "python:studies.frequency:Frequency"):
        config = live_config(run={"steps": 8}, replay={"method": name, "per_question": 3, "count": 1})
        made = await trained(tmp_path / name[:4], config, {})
        repeated.append(sum(_copies(batch) for batch in made.scene.learner.batches))
    assert repeated[0] == 0
    assert repeated[1] > 0


def _copies(batch: SequenceBatch) -> int:
    """Replays of a batch that are a fresh response of their group."""
    texts = [part.tobytes() for part in np.split(batch.tokens, batch.offsets[1:-1])]
    rows = list(zip(batch.groups.tolist(), texts, batch.replayed.tolist(), strict=True))
    fresh = {(group, text) for group, text, replayed in rows if not replayed}
    return sum(replayed and (group, text) in fresh for group, text, replayed in rows)


def test_questions_come_back_when_they_are_due_longest_unsolved_first() -> None:
    method = Recall(options={"share": 0.5, "after": 3})
    visit = {"a": 1, "b": 1, "c": 0, "d": 1}
    method.learn(0, [Visit(name, 9, correct, 4) for name, correct in visit.items()])  # c was never solved
    method.learn(1, [Visit("a", 9, 0, 4), Visit("b", 9, 4, 4), Visit("c", 9, 0, 4)])
    batch = ["e", "f", "g", "h"]
    assert method.questions(2, batch, {}) == batch
    assert method.questions(3, batch, {}) == ["e", "f", "d", "g"]  # d was visited three steps ago
    assert method.questions(4, batch, {}) == ["e", "f", "a", "d"]  # a and d were solved in step 0, b in step 1
    assert method.questions(4, ["a", "f", "g", "h"], {}) == ["a", "f", "d", "b"]  # a is there already
    assert method.questions(4, ["e", "f", "a", "h"], {}) == ["e", "f", "a", "d"]
    assert method.learn(4, [Visit("a", 9, 0, 4), Visit("d", 9, 1, 4)]) == {"live/reviewed": 2}
    assert method.questions(5, batch, {}) == ["e", "f", "b", "g"]  # a was not solved, and waits three steps
    assert method.questions(7, batch, {}) == ["e", "f", "a", "b"]
    assert method.with_replays(7, batch) == ()
    continued = Recall(options={"share": 0.5, "after": 3})
    continued.restore(method.state())
    assert [continued.questions(step, batch, {}) for step in range(9)] == [
        method.questions(step, batch, {}) for step in range(9)
    ]


@pytest.mark.parametrize(
    ("method", "options", "metric"),
    [
        ("priority", {"cooldown": 1, "most_uses": 3}, "replay/trajectories"),
        ("recall", {"share": 0.5, "after": 2}, "live/reviewed"),
        ("python:studies.frequency:Frequency", {}, "replay/trajectories"),
    ],
)
async def test_a_run_killed_and_continued_is_the_undisturbed_run(
    tmp_path: Path, method: str, options: dict[str, float], metric: str
) -> None:
    replay = {"method": method, "options": options, "per_question": 3, "count": 1}
    config = live_config(run={"steps": 10}, replay=replay, checkpoint={"every": 2, "keep": 2})
    whole = await trained(tmp_path / "whole", config, {})
    lines = [line["metrics"] for line in read_lines(tmp_path / "whole" / "metrics.jsonl")]
    assert sum(line[metric] for line in lines) > 5
    if method == "recall":
        assert not any(batch.replayed.any() for batch in whole.scene.learner.batches)
    happened = len(whole.scene.world.happened)
    assert happened > 250
    for kill_at in range(60, happened, 47):
        stored: Stored = {}
        with pytest.raises(Killed):
            await trained(tmp_path / str(kill_at), config, stored, kill_at)
        again = await trained(tmp_path / str(kill_at), config, stored)
        assert untimed(tmp_path / str(kill_at)) == untimed(tmp_path / "whole"), kill_at
        assert again.scene.learner.state == whole.scene.learner.state, kill_at
        assert batches(again) == batches(whole)[len(batches(whole)) - len(batches(again)) :], kill_at


async def test_questions_that_the_data_lost_do_not_come_back(tmp_path: Path) -> None:
    replay = {"method": "recall", "options": {"share": 1, "after": 1}, "count": 1}
    sections: dict[str, Any] = {"rollout": {"prompts": 4}, "update": {"prompts": 2}, "replay": replay}
    config, stored = live_config(run={"steps": 4}, **sections), Stored()
    reviewed = (await trained(tmp_path, config, stored)).live.stored()
    fewer = prompt_set(4, prefix="other")
    assert reviewed.keys() & {prompt.id for prompt in TRAIN.prompts}
    other: dict[str, Any] = {"checkpoint": {"accept": ["data"]}, "data": {"train": "other.parquet"}}
    again = await trained(tmp_path, live_config(run={"steps": 7}, **sections, **other), stored, train=fewer)
    assert again.scene.learner.updates > 0
    assert len(read_lines(tmp_path / "metrics.jsonl")) == 7


@pytest.mark.parametrize(
    ("replay", "message"),
    [
        ({"method": "priority", "options": {"cooldown": -1}}, "decay, most_uses and cooldown must not be negative"),
        ({"method": "recall", "options": {"share": 0}}, "share must be above 0 and at most 1, after at least 1"),
        ({"method": "recall", "options": {"after": 0}}, "share must be above 0 and at most 1, after at least 1"),
    ],
)
def test_options_have_bounds(replay: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        choose_method(config_of(replay=replay))
