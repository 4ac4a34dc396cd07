"""Live replay over the fakes: what a step sees of the run's own successes, and that no kill can change it."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rlep.config.schema import Config
from rlep.core.errors import CheckpointError, MixingError, PoolError
from rlep.core.jsonl import read_lines
from rlep.core.seeds import generator_for
from rlep.core.types import AddReport, Completion, Prompt, Request, Sampling, Trajectory, Verdict
from rlep.data.prompts import PromptOrder
from rlep.driver.run_directory import Facts, RunDirectory
from rlep.driver.step import mixed
from rlep.driver.train import Training
from rlep.driver.wings.live_replay import FILE, LiveReplay
from rlep.launch.wings import rollouts, train_step
from tests.unit.driver.driver_fakes import (
    FakeGenerators,
    FakeVerifiers,
    Killed,
    Scene,
    World,
    data_of,
    filled_pool,
    scene_of,
)
from tests.unit.driver.driver_values import answer_of, batch_bytes, config_of, prompt_set, prompts_of, untimed

TRAIN = prompt_set(6)  # four a step: every prompt is seen again in the next step or the one after it
HELD_OUT = prompts_of(1, prefix="held", source="aime")
STEPS, PROMPTS = 6, 4

Stored = dict[str, dict[str, Trajectory]]


@dataclass(eq=False)
class FakeLivePool:
    """What a Redis keeps while drivers come and go; ``stored`` outlives them."""

    world: World
    stored: Stored = field(default_factory=dict)
    removed: int = 0

    async def add(self, trajectories: Sequence[Trajectory]) -> AddReport:
        half = len(trajectories) // 2
        for part in (trajectories[:half], trajectories[half:]):  # a kill may come between the two
            await self.world.event("insert", len(part))
            for member in part:
                self.stored.setdefault(member.prompt_id, {}).setdefault(member.content_id, member)
        await self.world.event("inserted")
        return AddReport(len(trajectories), 0, ())

    async def fetch(self, wanted: Mapping[str, Sequence[str]]) -> Mapping[str, Sequence[Trajectory]]:
        await self.world.event("fetch", sum(map(len, wanted.values())))
        return {prompt_id: [self.stored[prompt_id][one] for one in ids] for prompt_id, ids in wanted.items()}

    async def contents(self) -> Mapping[str, Sequence[str]]:
        await self.world.event("contents")
        return {prompt_id: sorted(members) for prompt_id, members in self.stored.items() if members}

    async def remove(self, gone: Mapping[str, Sequence[str]]) -> int:
        for prompt_id, ids in gone.items():
            await self.world.event("remove", len(ids))
            for one in ids:
                self.removed += self.stored[prompt_id].pop(one, None) is not None
        return self.removed


@dataclass(eq=False)
class FewAnswers(FakeGenerators):
    """A policy with a dozen different responses to a question, so that the same ones come again."""

    def answer(self, request: Request, sampling: Sampling, version: int) -> Completion:
        draw = generator_for(request.seed, "policy", self.weights.hex())
        tokens = np.array([*draw.integers(0, 12, size=1), 7], dtype=np.int32)
        text = "right" if tokens[0] % 3 else "wrong"
        logprobs = np.full(2, -0.5, dtype=np.float32)
        return Completion(request.id, request.prompt_id, request.sample, tokens, logprobs, "stop", version, text)


@dataclass(eq=False)
class Recording(FakeVerifiers):
    """Keeps what it said of training prompts."""

    graded: list[tuple[str, bool]] = field(default_factory=list)
    """Prompt id, and whether a response was correct."""

    async def grade(self, prompt: Prompt, completions: Sequence[Completion]) -> list[Verdict]:
        verdicts = await super().grade(prompt, completions)
        if prompt in TRAIN.prompts:
            self.graded.append((prompt.id, any(one.status == "correct" for one in verdicts)))
        return verdicts


def live_config(**sections: Mapping[str, Any]) -> Config:
    """Live replay with two responses a question, so that some leave V at almost every step."""
    tree: dict[str, dict[str, Any]] = {
        "run": {"steps": STEPS},
        "replay": {"source": "live", "minimum": 1, "per_question": 2},
        "evaluation": {"every": 0},
        "checkpoint": {"every": 1, "keep": 1},
    }
    for name, values in sections.items():
        tree[name] = tree.get(name, {}) | dict(values)
    return config_of(**tree)


@dataclass(eq=False)
class Lived:
    """One process of a run."""

    scene: Scene
    pool: FakeLivePool
    live: LiveReplay
    graded: list[tuple[str, bool]]


async def trained(directory: Path, config: Config, stored: Stored, kill_at: int | None = None) -> Lived:
    """Train as a process of its own would, over a pool that may have been filled before."""
    world = World(kill_at=kill_at)
    offline = filled_pool(world, TRAIN.prompts, 3) if config.replay.source == "both" else None
    scene = scene_of(config, pool=offline)
    scene.world = scene.learner.world = scene.weights.world = scene.verifiers.world = world
    scene.generators, scene.verifiers = FewAnswers(world), (recording := Recording(world))
    scene.weights.generators = scene.generators
    pool = FakeLivePool(world, stored)
    live = LiveReplay(config, pool, directory, offline)
    store = RunDirectory(directory, config, Facts("train", "model", "tok", TRAIN.digest))
    trainers = replace(scene.trainers, rollouts=rollouts(scene.run, TRAIN), pool=live, live=live)
    try:
        await Training(scene.run, trainers, data_of(TRAIN, HELD_OUT), store, train_step(config, TRAIN, live)).run()
    finally:
        store.close()
    return Lived(scene, pool, live, recording.graded)


def batches(lived: Lived) -> list[bytes]:
    return [batch_bytes(batch) for batch in lived.scene.learner.batches]


VARIANTS: dict[str, dict[str, dict[str, Any]]] = {
    "uniform": {},
    "newest": {"replay": {"selection": "newest", "max_age": 2}},
    "probable": {"replay": {"selection": "most-probable", "per_question": 4, "old_logprobs": "behaviour"}},
    "capped": {"replay": {"is_cap": 2.0}, "checkpoint": {"every": 2, "keep": 2}},
    "retired": {"replay": {"retire_after": 1, "start_accuracy": 0.5, "selection": "least-used"}},
    "both": {"replay": {"source": "both", "selection": "diverse"}},
    "streamed": {"update": {"stream": True}},
    "refilled": {"rollout": {"dynamic_sampling": True}},
    "replacing": {"replay": {"group": "replace"}},
    "bucket": {"replay": {"questions": "bucket", "group": "replace", "retire_after": 1}},
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
    # keep · every = 1 step: nothing lies in the pool that neither V nor the last checkpoint's step needs
    with np.load(tmp_path / "checkpoints" / f"step-{STEPS:06d}" / FILE) as file:
        known = {one for _, one in np.concatenate([file["visible_ids"], file["left_ids"]]).astype(str).tolist()}
    assert {one for members in stored.values() for one in members} == known


async def test_half_of_a_step_is_drawn_by_success_and_only_that_half_gets_replays(tmp_path: Path) -> None:
    config = live_config(replay={"source": "live", "minimum": 1, "questions": "bucket", "start_accuracy": 0.2})
    lived = await trained(tmp_path, config, {})
    order, known = PromptOrder(len(TRAIN), PROMPTS, config.run.seed), {prompt.id for prompt in TRAIN.prompts}
    asked = [one.prompt_id for one in lived.scene.generators.asked if one.prompt_id in known]
    size = PROMPTS * config.rollout.fresh
    visited = [list(dict.fromkeys(asked[at : at + size])) for at in range(0, len(asked), size)]
    planned = [[TRAIN.prompts[at].id for at in order.step(step)] for step in range(STEPS)]
    assert visited[0] == planned[0]  # nothing to draw from yet
    assert visited != planned
    for made, own in zip(visited, planned, strict=True):
        assert made[: PROMPTS // 2] == own[: PROMPTS // 2]
        assert len({*made}) == PROMPTS
    replayed = [
        int(batch.replayed.sum()) for batch in lived.scene.learner.batches
    ]  # two updates a step, of two groups each
    assert replayed[::2] == [0] * STEPS
    assert sum(replayed[1::2]) > 4


async def test_what_a_run_computed_and_solved_is_counted(tmp_path: Path) -> None:
    steps, rule = 24, {"source": "live", "minimum": 1, "selection": "most-probable", "per_question": 3}
    config = live_config(run={"steps": steps}, replay=rule)
    lived = await trained(tmp_path, config, {})
    made, learner = [line["metrics"] for line in read_lines(tmp_path / "metrics.jsonl")], lived.scene.learner
    sizes = [len(batch.tokens) for batch in learner.batches]
    assert made[-1]["compute/trained_tokens"] == sum(sizes)
    assert made[0]["compute/trained_tokens"] == sum(sizes[: len(sizes) // steps])
    assert made[-1]["compute/scored_tokens"] == sum(learner.scored)
    fresh = sum(int(np.diff(batch.offsets)[~batch.replayed].sum()) for batch in learner.batches)
    assert made[-1]["compute/generated_tokens"] == fresh
    solved: set[str] = set()
    for step, metrics in enumerate(made):
        visits = lived.graded[step * PROMPTS : (step + 1) * PROMPTS]
        assert metrics["prompts/lost"] == sum(one in solved and not correct for one, correct in visits)
        solved |= {one for one, correct in visits if correct}
        assert metrics["prompts/solved"] == len(solved)
    assert sum(metrics["prompts/lost"] for metrics in made) > 0


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


async def test_age_retirement_and_the_start_decide_who_gets_replays(tmp_path: Path) -> None:
    prompt = TRAIN.prompts[0]
    rule = {"source": "live", "minimum": 1, "max_age": 2, "retire_after": 2, "start_accuracy": 0.5}
    live = LiveReplay(live_config(replay=rule), FakeLivePool(World()), tmp_path)

    async def drawn(step: int) -> int:
        return len((await live.sample([prompt.id], 2, seed=0, step=step)).get(prompt.id, ()))

    await live._insert(0, [answer_of(prompt, 1)])
    assert await drawn(1) == 0  # half of a step's responses were never correct
    live._started = True
    assert [await drawn(1), await drawn(2)] == [1, 1]
    live._leave(1)
    assert await drawn(2) == 1  # step 2 sees births 0 and 1
    live._leave(2)
    assert await drawn(3) == 0  # step 3 sees births 1 and 2
    await live._insert(3, [answer_of(prompt, 2)])
    live._solved[prompt.id] = 1
    assert await drawn(4) == 1
    live._solved[prompt.id] = 2
    assert await drawn(4) == 0


async def test_a_group_never_holds_a_response_and_its_own_copy(tmp_path: Path) -> None:
    prompt, scene = TRAIN.prompts[0], scene_of(live_config())
    version = answer_of(prompt, 0).provenance
    fresh = [replace(answer_of(prompt, n), provenance=version, sample_id=f"s{n}") for n in range(3)]
    own = [replace(answer_of(prompt, n), metadata={"birth": "0"}) for n in (1, 5)]
    group = mixed(scene.step(0), prompt, fresh, own)
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


async def test_a_torn_file_is_a_checkpoint_error(tmp_path: Path) -> None:
    (tmp_path / FILE).write_bytes(b"PK nothing")
    with pytest.raises(CheckpointError, match=r"live\.npz cannot be read"):
        await LiveReplay(live_config(), FakeLivePool(World()), tmp_path).restore(tmp_path, accept=False)


async def test_a_run_whose_replays_never_reach_the_loss_ends(tmp_path: Path) -> None:
    rule, stored = {"source": "live", "minimum": 50, "idle_steps": 3}, dict[str, dict[str, Trajectory]]()
    with pytest.raises(MixingError, match=r"replay\.count = 2, but no replay reached the loss in 3 steps"):
        await trained(tmp_path, live_config(replay=rule), stored)
    assert len(read_lines(tmp_path / "metrics.jsonl")) == 2
    await trained(tmp_path, live_config(replay=rule | {"idle_steps": 0}), stored)
    assert len(read_lines(tmp_path / "metrics.jsonl")) == STEPS


async def test_live_replay_beside_prefetched_rollouts(tmp_path: Path) -> None:
    config = live_config(rollout={"max_staleness": 1}, loss={"tis_cap": 2.0})
    await trained(tmp_path, config, {})
    made = [line["metrics"] for line in read_lines(tmp_path / "metrics.jsonl")]
    assert [metrics["staleness/max"] for metrics in made] == [0, 1, 1, 1, 1, 1]
    assert all(metrics["replay/age"] >= 1 for metrics in made if metrics["replay/trajectories"])
    assert sum(metrics["replay/live"] for metrics in made if metrics["replay/trajectories"]) > 0


def test_the_checkpoint_of_a_run_without_live_replay_has_no_file_of_it(tmp_path: Path) -> None:
    scene = scene_of(config_of(run={"steps": 1}), pool=filled_pool(World(), TRAIN.prompts))
    store = RunDirectory(tmp_path, scene.config, Facts("train", "model", "tok", TRAIN.digest))
    asyncio.run(scene.training(TRAIN, HELD_OUT, store).run())
    store.close()
    assert not (tmp_path / "checkpoints" / "step-000001" / FILE).exists()
