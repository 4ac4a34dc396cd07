"""Training on episodes over the fakes: options that change the order of events train on the same ones, and runs go on."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest

from rlep.config.schema import Config
from rlep.core.episodes import Observation, ToolCall
from rlep.core.errors import VerifierError
from rlep.core.types import Completion, FinishReason, Int32Array, Request, Sampling
from rlep.driver.context import Roles, Run
from rlep.driver.live_replay import LiveReplay
from rlep.driver.run_directory import Facts, RunDirectory
from rlep.driver.step import StepOutcome
from rlep.driver.train import AfterStep, Training
from rlep.driver.wings.episodes import EpisodeGenerators, EpisodeVerifiers
from rlep.launch.wings import choose_step, rollouts
from rlep.metrics.catalogue import MetricValue
from tests.unit.driver.driver_fakes import FakeGenerators, FakePool, Killed, Scene, World, data_of, scene_of
from tests.unit.driver.driver_values import TIS, batch_bytes, config_of, evaluations, prompt_set, prompts_of, untimed
from tests.unit.driver.episode_scene import AFTER, BEFORE, FakeDialogue, FakeEnvironments
from tests.unit.driver.live_scene import FakeLivePool, Stored

TRAIN = prompt_set(10)
HELD_OUT = prompts_of(1, prefix="held", source="aime")
LONGEST = 20
LIVE = {"source": "live", "minimum": 1, "count": 1}


@dataclass(eq=False)
class Player(FakeGenerators):
    """Turns of at most five tokens."""

    def answer(self, request: Request, sampling: Sampling, version: int) -> Completion:
        room = sampling.max_tokens - request.given
        said = super().answer(request, replace(sampling, max_tokens=6), version)
        kept = min(len(said.tokens), 5, room)
        reason: FinishReason = "length" if kept == room else "stop"
        return replace(said, tokens=said.tokens[:kept] + 100, logprobs=said.logprobs[:kept], finish_reason=reason)


class Talk(FakeDialogue):
    """A turn that ends with an even token calls."""

    def calls(self, turn: Int32Array) -> Sequence[ToolCall]:
        return [] if turn[-1] % 2 else [ToolCall("add", "{}")]


@dataclass(eq=False)
class PlayedScene(Scene):
    """Fakes of a run whose responses are episodes."""

    environments: FakeEnvironments = field(default_factory=FakeEnvironments)

    def __post_init__(self) -> None:
        prompts = {prompt.id: replace(prompt, columns="{}") for prompt in (*TRAIN.prompts, *HELD_OUT)}
        self.played = EpisodeGenerators(self.generators, self.environments, Talk(), prompts=prompts, turns=4)

    @property
    def run(self) -> Run:
        """What the driver is given."""
        return replace(super().run, roles=Roles(self.played, EpisodeVerifiers(self.verifiers)))


def played(config: Config, *, kill_at: int | None = None, order: int | None = None) -> PlayedScene:
    """A scene whose process dies at an event."""
    plain = scene_of(config)
    world = World(kill_at=kill_at)
    generators = Player(world, order)
    for part in (plain.learner, plain.weights, plain.verifiers):
        part.world = world
    plain.weights.generators = generators
    made = PlayedScene(
        config, world, generators, plain.verifiers, plain.learner, plain.weights, plain.progress, FakePool(world)
    )
    made.pool = None
    return made


def played_config(**sections: Mapping[str, Any]) -> Config:
    tree: dict[str, dict[str, Any]] = {"rollout": {"max_tokens": LONGEST}, "replay": {"count": 0}}
    for name, values in sections.items():
        tree[name] = tree.get(name, {}) | dict(values)
    return config_of(**tree)


async def trained(directory: Path, scene: PlayedScene, stored: Stored | None = None) -> None:
    """Train as a process of its own would, with live replay where the config asks for it."""
    config = scene.config
    live = None
    if config.replay.source == "live":
        live = LiveReplay(config, FakeLivePool(scene.world, {} if stored is None else stored), directory, None)
    store = RunDirectory(directory, config, Facts("train", "model", "tok", TRAIN.digest))
    data = data_of(TRAIN, HELD_OUT)
    trainers = replace(scene.trainers, rollouts=rollouts(scene.run, TRAIN), pool=live)
    try:
        make = choose_step(config)

        async def measure(_: StepOutcome, metrics: Mapping[str, MetricValue]) -> Mapping[str, MetricValue]:
            return scene.played.metrics()

        after: list[AfterStep] = [*([live.learn] if live else []), measure]
        await Training(scene.run, trainers, data, store, make, live=live, after=after).run()
    finally:
        store.close()


def batches(scene: Scene) -> list[bytes]:
    return [batch_bytes(batch) for batch in scene.learner.batches]


OPTIONS: dict[str, dict[str, dict[str, Any]]] = {
    "plain": {},
    "streamed": {"update": {"stream": True}},
    "refilled": {"rollout": {"dynamic_sampling": True}},
    "live": {"replay": LIVE},
    "replaced": {"replay": LIVE | {"group": "replace"}},
    "epochs": {"update": {"epochs": 2}},
    "prefetched": {"rollout": {"max_staleness": 1}, "loss": TIS},
}


@pytest.mark.parametrize("name", OPTIONS)
async def test_every_option_trains_on_episodes_and_leaves_no_environment(name: str, tmp_path: Path) -> None:
    scene = played(played_config(**OPTIONS[name]))
    await trained(tmp_path, scene)
    assert scene.environments.open == {}
    assert {what for what, _ in scene.environments.events} == {"begin", "act", "end"}
    masks = [batch for batch in scene.learner.batches if batch.sampled is not None]
    assert masks, "some episodes have more than one turn"
    for batch in masks:
        assert batch.sampled is not None
        written = batch.tokens[~batch.sampled]
        assert set(written.tolist()) <= {BEFORE, 2, AFTER, 950, *range(900, 910)}, "observations and prompts"
        assert batch.tokens[batch.sampled].min() >= 100
        assert batch.old_logprobs is not None
        assert len(batch.old_logprobs) == batch.sampled.sum()
    lines = untimed(tmp_path)
    assert [step for step, _ in lines] == [0, 1, 2, 3]
    turns = [metrics["episode/turns"] for _, metrics in lines if "episode/turns" in metrics]
    assert all(1 < mean < 4 for mean in turns)


@pytest.mark.parametrize("name", ["plain", "streamed", "refilled", "live"])
async def test_the_order_of_completions_changes_no_bit(name: str, tmp_path: Path) -> None:
    scenes = [played(played_config(**OPTIONS[name]), order=order) for order in (None, 3)]
    for number, scene in enumerate(scenes):
        await trained(tmp_path / str(number), scene)
    assert batches(scenes[0]) == batches(scenes[1])


async def test_streamed_and_plain_steps_train_alike(tmp_path: Path) -> None:
    scenes = [played(played_config(**OPTIONS[name])) for name in ("plain", "streamed")]
    for number, scene in enumerate(scenes):
        await trained(tmp_path / str(number), scene)
    assert batches(scenes[0]) == batches(scenes[1])


@pytest.mark.parametrize("name", ["plain", "streamed", "live"])
@pytest.mark.parametrize("share", [0.2, 0.5, 0.55, 0.8])
async def test_a_killed_run_goes_on_as_if_nothing_had_been(name: str, share: float, tmp_path: Path) -> None:
    config = played_config(**OPTIONS[name], checkpoint={"every": 1, "keep": 2})
    whole, stored_whole = played(config), Stored()
    await trained(tmp_path / "whole", whole, stored_whole)
    stored = Stored()
    killed = played(config, kill_at=int(share * len(whole.world.happened)))
    with pytest.raises(Killed):
        await trained(tmp_path / "killed", killed, stored)
    assert killed.environments.open == {}
    await trained(tmp_path / "killed", played(config), stored)
    assert untimed(tmp_path / "killed") == untimed(tmp_path / "whole")
    assert evaluations(tmp_path / "killed") == evaluations(tmp_path / "whole")
    assert {prompt: sorted(members) for prompt, members in stored.items()} == {
        prompt: sorted(members) for prompt, members in stored_whole.items()
    }


async def test_a_replayed_episode_is_data(tmp_path: Path) -> None:
    scene = played(played_config(replay=LIVE))
    stored: Stored = {}
    await trained(tmp_path, scene, stored)
    kept = [member for members in stored.values() for member in members.values()]
    several = [member for member in kept if member.sampled is not None]
    assert several
    for member in several:
        assert member.sampled is not None
        assert member.logprobs is not None
        assert not member.logprobs[~member.sampled].any()
        assert member.sampled[-1]
    fresh = sum(metrics["rollout/samples"] for _, metrics in untimed(tmp_path))
    begun = [detail for what, detail in scene.environments.events if what == "begin" and detail.startswith("train/")]
    assert len(begun) == fresh, "an environment for each fresh response, and none for a replay"


async def test_a_run_whose_environment_always_fails_ends_and_says_why(tmp_path: Path) -> None:
    scene = played(played_config(environment={"factory": "games:Chess", "observation_tokens": 5}))
    scene.environments.begins = Observation(status="crashed", reason="ImportError: no board")
    with pytest.raises(
        VerifierError,
        match=r"^environment\.factory = games:Chess decided on none of 12 responses \(12 crashed\); the first: ImportError: no",
    ):
        await trained(tmp_path, scene)
