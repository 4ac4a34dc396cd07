"""Live replay over the fakes: what a step sees of the run's own successes, and that no kill can change it."""

from __future__ import annotations

import asyncio
import errno
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rlep.config.schema import Config
from rlep.core.errors import CheckpointError, MixingError, PoolError
from rlep.core.jsonl import read_lines
from rlep.core.types import Trajectory
from rlep.driver import checkpoint
from rlep.driver.live_replay import FILE, MARK, LiveReplay
from rlep.driver.step import mix_group
from tests.unit.driver.driver_fakes import (
    Killed,
    World,
    filled_pool,
    scene_of,
)
from tests.unit.driver.driver_values import TIS, answer_of, config_of, untimed
from tests.unit.driver.live_scene import (
    HELD_OUT,
    STEPS,
    TRAIN,
    FakeLivePool,
    Stored,
    batches,
    live_config,
    trained,
)

OWN = "python:tests.unit.driver.replay_methods"
VARIANTS: dict[str, dict[str, dict[str, Any]]] = {
    "uniform": {},
    "newest": {"replay": {"selection": "newest", "max_age": 2}},
    "probable": {"replay": {"selection": "most-probable", "per_question": 4, "old_logprobs": "behaviour"}},
    "capped": {"replay": TIS, "checkpoint": {"every": 2, "keep": 2}},
    "retired": {"replay": {"method": f"{OWN}:Retired", "selection": "least-used"}},
    "both": {"replay": {"source": "both", "selection": "diverse"}},
    "streamed": {"update": {"stream": True}},
    "refilled": {"rollout": {"dynamic_sampling": True}},
    "replacing": {"replay": {"group": "replace"}},
    "bucket": {"replay": {"method": f"{OWN}:Bucket"}},
    "aged": {"replay": {"age_decay": 1.5}},
}


def variant(name: str) -> Config:
    tree = {key: dict(value) for key, value in VARIANTS[name].items()}
    base = {"source": "live", "minimum": 1, "per_question": 2}
    tree["replay"] = base | tree.get("replay", {})
    return live_config(**tree)


@pytest.mark.parametrize(("turn", "name"), list(enumerate(VARIANTS)))
async def test_a_run_killed_anywhere_and_continued_is_the_undisturbed_run(tmp_path: Path, turn: int, name: str) -> None:
    config = variant(name)
    expected_pool: Stored = {}
    whole = await trained(tmp_path / "whole", config, expected_pool)
    assert sum(batch.replayed.sum() for batch in whole.scene.learner.batches) > 10
    happened = len(whole.scene.world.happened)
    names = [entry.split()[0] for entry in whole.scene.world.happened]
    close = [at for at, entry in enumerate(names) if entry in ("insert", "inserted", "remove", "contents", "save")]
    close = sorted({*close, *(at + 1 for at in close if at + 1 < happened)})
    for kill_at in sorted({*range(turn, happened, 71), *close[turn::11]}):  # the variants take turns at the points
        directory = tmp_path / str(kill_at)
        stored: Stored = {}
        with pytest.raises(Killed):
            await trained(directory, config, stored, kill_at)
        again = await trained(directory, config, stored)
        assert untimed(directory) == untimed(tmp_path / "whole"), kill_at
        assert again.scene.learner.state == whole.scene.learner.state, kill_at
        made = batches(again)
        assert made == batches(whole)[len(batches(whole)) - len(made) :], kill_at
        assert {one: sorted(ids) for one, ids in stored.items() if ids} == {
            one: sorted(ids) for one, ids in expected_pool.items() if ids
        }, kill_at


async def test_a_kill_while_a_run_is_restored_changes_nothing(tmp_path: Path) -> None:
    config, expected = live_config(), dict[str, dict[str, Trajectory]]()
    whole = await trained(tmp_path / "whole", config, expected)
    inserted = [at for at, entry in enumerate(whole.scene.world.happened) if entry == "inserted"]
    for at in range(1, 12, 2):
        directory, stored = tmp_path / str(at), dict[str, dict[str, Trajectory]]()
        with pytest.raises(Killed):
            await trained(directory, config, stored, inserted[3] + 1)
        with pytest.raises(Killed):
            await trained(directory, config, stored, at)
        again = await trained(directory, config, stored)
        assert untimed(directory) == untimed(tmp_path / "whole")
        assert again.scene.learner.state == whole.scene.learner.state


async def test_a_step_sees_the_newest_of_earlier_steps_and_stores_the_learners_logprobs(tmp_path: Path) -> None:
    config = live_config(replay={"source": "live", "minimum": 1, "per_question": 2, "selection": "newest", "count": 1})
    stored: Stored = {}
    lived = await trained(tmp_path, config, stored)
    births: dict[str, dict[str, int]] = {}
    drawn = [line["metrics"] for line in read_lines(tmp_path / "metrics.jsonl")]
    assert drawn[0]["replay/trajectories"] == 0  # nothing is born before step 0
    for step, metrics in enumerate(drawn):
        if metrics["replay/trajectories"]:
            assert 1 <= metrics["replay/age"] <= step
            assert metrics["replay/live"] == metrics["replay/trajectories"]
        assert metrics["live/responses"] <= 2 * len(TRAIN)
    for members in stored.values():
        for member in members.values():
            births.setdefault(member.prompt_id, {})[member.content_id] = member.provenance.policy_version
            assert member.correct
            assert (np.asarray(member.logprobs) != -0.5).all()  # not those of the generator
    assert len(births) == len(TRAIN)
    assert lived.pool.removed > 0  # what left V was trimmed
    # (keep + 1) · every = 2 steps: nothing lies in the pool that neither V nor the last two checkpoints need
    with np.load(tmp_path / "checkpoints" / f"step-{STEPS:06d}" / FILE) as file:
        known = {one for _, one in np.concatenate([file["visible_ids"], file["left_ids"]]).astype(str).tolist()}
    assert {one for members in stored.values() for one in members} == known


async def test_insertion_order_and_duplicates_change_no_draw(tmp_path: Path) -> None:
    config = live_config(replay={"source": "live", "minimum": 1, "per_question": 8})
    pools = [FakeLivePool(World()) for _ in range(2)]
    lives = []
    for pool, turn in zip(pools, (1, -1), strict=True):
        live = LiveReplay(config, pool, tmp_path)
        for step in range(3):
            for prompt in TRAIN.prompts:
                born = [answer_of(prompt, 10 * step + number) for number in (0, 1, 2, 2, 0)]
                await live._insert(step, born[::turn])
            live._leave(step)
        lives.append(live)
    ids = [prompt.id for prompt in TRAIN.prompts]
    drawn = [await live.sample(ids, 3, seed=1, step=9) for live in lives]
    shuffled = await lives[0].sample(ids[::-1], 3, seed=1, step=9)
    for prompt_id in ids:
        first, second, third = ([member.content_id for member in one[prompt_id]] for one in (*drawn, shuffled))
        assert first == second == third
        assert len(set(first)) == 3
        # nine born, the newest eight are seen: of step 0 the one with the largest content id is not
        seen = sorted(lives[0]._visible[prompt_id].items(), key=lambda one: (-one[1], one[0]))
        assert [birth for _, birth in seen] == [2, 2, 2, 1, 1, 1, 0, 0]
        gone = [one for one, (owner, _) in lives[0]._left.items() if owner == prompt_id]
        assert len(gone) == 1
        assert gone[0] > max(one for one, birth in seen if birth == 0)


async def test_age_decides_who_gets_replays(tmp_path: Path) -> None:
    prompt = TRAIN.prompts[0]
    live = LiveReplay(
        live_config(replay={"source": "live", "minimum": 1, "max_age": 2}), FakeLivePool(World()), tmp_path
    )

    async def count_drawn(step: int) -> int:
        return len((await live.sample([prompt.id], 2, seed=0, step=step)).get(prompt.id, ()))

    await live._insert(0, [answer_of(prompt, 1)])
    assert [await count_drawn(1), await count_drawn(2)] == [1, 1]
    live._leave(1)
    assert await count_drawn(2) == 1  # step 2 sees births 0 and 1
    live._leave(2)
    assert await count_drawn(3) == 0  # step 3 sees births 1 and 2


async def test_a_group_never_holds_a_response_and_its_own_copy(tmp_path: Path) -> None:
    prompt, scene = TRAIN.prompts[0], scene_of(live_config())
    version = answer_of(prompt, 0).provenance
    fresh = [replace(answer_of(prompt, n), provenance=version, sample_id=f"s{n}") for n in range(3)]
    own = [replace(answer_of(prompt, n), birth=0) for n in (1, 5)]
    group = mix_group(scene.step(0), prompt, fresh, own)
    assert [member.content_id for member in group.replays] == [own[1].content_id]


async def test_lost_responses_are_named_and_can_be_gone_without(tmp_path: Path) -> None:
    config, stored = live_config(), dict[str, dict[str, Trajectory]]()
    await trained(tmp_path, config, stored)
    with np.load(tmp_path / "checkpoints" / f"step-{STEPS:06d}" / FILE) as file:
        held = len(file["visible_births"])
    more = live_config(run={"steps": STEPS + 1})
    with pytest.raises(
        CheckpointError, match=rf'lacks {held} of the {held} responses .*checkpoint\.accept = \["pool"\]'
    ):
        await trained(tmp_path, more, {})
    await trained(
        tmp_path, live_config(run={"steps": STEPS + 1}, checkpoint={"every": 1, "keep": 1, "accept": ["pool"]}), {}
    )


async def test_the_live_pool_of_another_run_is_left_alone(tmp_path: Path) -> None:
    stored: Stored = {}
    await trained(tmp_path / "first", live_config(), stored)
    before = {one: sorted(members) for one, members in stored.items()}
    with pytest.raises(PoolError, match="already holds responses of another run to 6 questions: choose another"):
        await trained(tmp_path / "second", live_config(), stored)
    assert {one: sorted(members) for one, members in stored.items()} == before


async def test_the_mark_of_a_run_names_the_pool_that_it_may_empty(tmp_path: Path) -> None:
    stored: Stored = {}
    await trained(tmp_path / "first", live_config(run={"name": "other"}), stored)
    before = {one: sorted(members) for one, members in stored.items()}
    with pytest.raises(Killed):  # in its first step, after the mark was written
        await trained(tmp_path / "second", live_config(), {}, kill_at=3)
    assert (tmp_path / "second" / MARK).exists()
    with pytest.raises(PoolError, match="already holds responses of another run to 6 questions: choose another"):
        await trained(tmp_path / "second", live_config(run={"name": "other"}), stored)
    assert {one: sorted(members) for one, members in stored.items()} == before


async def test_a_start_that_is_refused_leaves_the_mark(tmp_path: Path) -> None:
    stored, more = dict[str, dict[str, Trajectory]](), {"steps": STEPS + 1}
    await trained(tmp_path, live_config(), stored)
    with pytest.raises(CheckpointError, match="the live pool lacks"):
        await trained(tmp_path, live_config(run=more | {"name": "slip"}), {})
    await trained(tmp_path, live_config(run=more), stored)


@pytest.mark.parametrize("mark", ["", "{}", '{"replay": "live"}'])
async def test_a_mark_of_before_it_named_a_pool_is_of_this_runs(tmp_path: Path, mark: str) -> None:
    config, pool = live_config(), FakeLivePool(World())
    pool.stored = {"p": {"c": answer_of(TRAIN.prompts[0], 1)}}
    (tmp_path / MARK).write_text(mark)
    await LiveReplay(config, pool, tmp_path).restore(None, accept=False)
    assert pool.stored == {"p": {}}  # a lost future, before the first checkpoint


async def test_a_run_goes_on_where_its_newest_checkpoint_could_not_be_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = live_config(run={"steps": 12}, replay={"per_question": 1}, checkpoint={"every": 2, "keep": 1})
    commit = checkpoint._commit

    def full(part: Path, final: Path, state: Mapping[str, object]) -> None:
        if final.name == "step-000006":
            raise OSError(errno.ENOSPC, "No space left on device")
        commit(part, final, state)

    stored: Stored = {}
    with monkeypatch.context() as context:
        context.setattr(checkpoint, "_commit", full)
        with pytest.raises(CheckpointError, match="No space left"):
            await trained(tmp_path, config, stored)
    assert max(path.name for path in (tmp_path / "checkpoints").iterdir()) == "step-000004"  # it is not tried again
    await trained(tmp_path, config, stored)
    assert (tmp_path / "checkpoints" / "step-000012").exists()


async def test_a_torn_file_is_a_checkpoint_error(tmp_path: Path) -> None:
    (tmp_path / FILE).write_bytes(b"PK nothing")
    with pytest.raises(CheckpointError, match=r"live\.npz cannot be read"):
        await LiveReplay(live_config(), FakeLivePool(World()), tmp_path).restore(tmp_path, accept=False)


async def test_a_run_whose_replays_never_reach_the_loss_ends(tmp_path: Path) -> None:
    rule, stored = (
        {"source": "live", "minimum": 50, "per_question": 50, "idle_steps": 3},
        dict[str, dict[str, Trajectory]](),
    )
    with pytest.raises(MixingError, match=r"replay\.count = 2, but no replay reached the loss in 3 steps"):
        await trained(tmp_path, live_config(replay=rule), stored)
    assert len(read_lines(tmp_path / "metrics.jsonl")) == 2
    await trained(tmp_path, live_config(replay=rule | {"idle_steps": 0}), stored)
    assert len(read_lines(tmp_path / "metrics.jsonl")) == STEPS


async def test_live_replay_beside_prefetched_rollouts(tmp_path: Path) -> None:
    config = live_config(rollout={"max_staleness": 1}, loss=TIS)
    await trained(tmp_path, config, {})
    made = [line["metrics"] for line in read_lines(tmp_path / "metrics.jsonl")]
    assert [metrics["staleness/max"] for metrics in made] == [0, 1, 1, 1, 1, 1]
    assert all(metrics["replay/age"] >= 1 for metrics in made if metrics["replay/trajectories"])
    assert sum(metrics["replay/live"] for metrics in made if metrics["replay/trajectories"]) > 0


def test_the_checkpoint_of_a_run_without_live_replay_has_no_file_of_it(tmp_path: Path) -> None:
    scene = scene_of(config_of(run={"steps": 1}), pool=filled_pool(World(), TRAIN.prompts))
    asyncio.run(scene.train(tmp_path, TRAIN, HELD_OUT))
    assert not (tmp_path / "checkpoints" / "step-000001" / FILE).exists()
