"""Two vLLM generators on one queue: exactly one completion per request, whatever happens to a generator."""

from __future__ import annotations

import os
import signal
from collections import Counter
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
import pytest_asyncio
import torch
from transformers import AutoModelForCausalLM

from rlep.actors.generators import GeneratorPool
from rlep.actors.learners import Learners
from rlep.actors.weight_sync import WeightPublisher
from rlep.check.inputs import Subject
from rlep.config.schema import Config
from rlep.config.settings import load_config
from rlep.core.errors import ActorLost, DeadlineExceeded
from rlep.core.types import Completion, Request, Sampling
from rlep.launch.roles import RunActors, run_actors
from tests.small import BASE, small_task
from tests.waiting import until

pytestmark = pytest.mark.asyncio(loop_scope="module")
LONG = Sampling(max_tokens=48)


@dataclass
class Cast:
    """What the tests of this file share."""

    config: Config
    actors: RunActors
    generators: GeneratorPool
    learners: Learners
    weights: WeightPublisher
    prompts: list[np.ndarray]


@pytest_asyncio.fixture(loop_scope="module", scope="module")
async def cast(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Cast]:
    """Two generators and two learner ranks; the generators serve version 0."""
    home = tmp_path_factory.mktemp("generators")
    overrides = [*small_task(home), f'run.directory="{home / "run"}"', "run.name=generators", "cluster.cpus=4"]
    config = load_config(
        [BASE], [*overrides, "generator.count=2", "learner.ranks=2", "generator.heartbeat_timeout_s=15"]
    )
    inputs = Subject(config).inputs()
    assert inputs.train is not None
    async with run_actors(config) as actors:
        generators, learners = actors.generators(), actors.learners()
        await actors.started()
        weights = actors.weights(learners, generators, inputs.train.prompts)
        assert await weights.publish(0) <= 1e-4
        yield Cast(config, actors, generators, learners, weights, [p.tokens for p in inputs.train.prompts])


def requests(cast: Cast, count: int, label: str) -> list[Request]:
    """``count`` requests over the prompts, each with its own seed."""
    return [
        Request(f"{label}/{i}", f"{i % 16:032x}", cast.prompts[i % 16], sample=i // 16, seed=1000 + i)
        for i in range(count)
    ]


async def answers(cast: Cast, wanted: list[Request]) -> list[Completion]:
    """All completions, in the order they arrive."""
    return [one async for one in cast.generators.generate(wanted, LONG, deadline_s=240)]


async def pids(cast: Cast) -> list[int]:
    """Process ids of the generators that live."""
    actors = [replica.actor.living for replica in cast.generators.replicas]
    return [await actor.ping.remote() for actor in actors if actor is not None]


async def both_alive(cast: Cast) -> None:
    """Wait until the supervisor has both generators back."""
    await until(lambda: len(cast.generators.living()) == 2, "both generators")


def exactly_once(completions: list[Completion], wanted: list[Request]) -> None:
    """Each request is answered once, under its prompt and number."""
    assert Counter(one.request_id for one in completions) == Counter(request.id for request in wanted)
    place = {request.id: (request.prompt_id, request.sample) for request in wanted}
    assert all((one.prompt_id, one.sample) == place[one.request_id] for one in completions)


def handed_out(cast: Cast, since: int) -> Counter[str]:
    """Requests that each generator was given in the spans after the first ``since``."""
    found: Counter[str] = Counter()
    for span in list(cast.actors.cluster.timeline.spans)[since:]:
        if span.what == "generate":
            found[span.actor] += span.count
    return found


async def test_both_generators_share_the_work_and_answer_each_request_once(cast: Cast) -> None:
    wanted, before = requests(cast, 256, "shared"), len(cast.actors.cluster.timeline.spans)
    exactly_once(await answers(cast, wanted), wanted)
    await until(lambda: handed_out(cast, before).total() == 256, "all calls of generators to have ended")
    given = handed_out(cast, before)
    assert cast.generators.reissued.retried == 0
    # Both serve before the first request is there: each fills its 64 slots, and again what becomes free of them.
    assert given.keys() == {"generator-0", "generator-1"}
    assert min(given.values()) >= 64


async def test_a_response_depends_on_its_request_not_on_who_answers_it(cast: Cast) -> None:
    first = {one.request_id: one for one in await answers(cast, requests(cast, 64, "a"))}
    second = {one.request_id: one for one in await answers(cast, requests(cast, 64, "b"))}
    same = sum(np.array_equal(first[f"a/{i}"].tokens, second[f"b/{i}"].tokens) for i in range(64))
    assert same >= 62  # another batch composition may round a logit across a sampling boundary


async def test_a_silent_generator_is_replaced_and_its_work_done_by_others(cast: Cast) -> None:
    wanted = requests(cast, 512, "stopped")
    victim = (await pids(cast))[1]
    arrived: list[Completion] = []
    async for one in cast.generators.generate(wanted, LONG, deadline_s=240):
        arrived.append(one)
        if len(arrived) == 20:
            os.kill(victim, signal.SIGSTOP)
    exactly_once(arrived, wanted)
    await both_alive(cast)


async def test_new_weights_reach_all_generators(cast: Cast, tmp_path: Path) -> None:
    (tmp_path / "saved").mkdir()
    await cast.learners.save(tmp_path / "saved")
    await cast.learners.written()
    assert 0 < await cast.weights.publish(1) <= 1e-4
    completions = await answers(cast, requests(cast, 64, "version"))
    assert {one.policy_version for one in completions} == {1}
    model = AutoModelForCausalLM.from_pretrained(tmp_path / "saved" / "model", dtype=torch.float32)
    for one in completions[:8]:
        prompt = cast.prompts[int(one.prompt_id, 16)]
        ids = torch.from_numpy(np.concatenate([prompt, one.tokens]).astype(np.int64))[None]
        with torch.no_grad():
            logprobs = model(ids).logits.log_softmax(-1)[0, :-1].gather(1, ids[0, 1:, None])[:, 0]
        np.testing.assert_allclose(logprobs[len(prompt) - 1 :].numpy(), one.logprobs, atol=1e-4)


async def test_a_generator_killed_in_the_middle_leaves_exactly_g_completions_and_its_successor_serves_its_weights(
    cast: Cast,
) -> None:
    victim, pid = cast.generators.replicas[0], (await pids(cast))[0]
    restarts, wanted = victim.actor.restarts, requests(cast, 512, "killed")
    arrived: list[Completion] = []
    async for one in cast.generators.generate(wanted, LONG, deadline_s=240):
        arrived.append(one)
        if len(arrived) == 20:
            os.kill(pid, signal.SIGKILL)
    exactly_once(arrived, wanted)
    await until(lambda: victim.actor.restarts > restarts, "the loss to be noticed")
    assert {one.policy_version for one in [*arrived, *await answers(cast, requests(cast, 64, "without"))]} == {1}
    await both_alive(cast)
    assert pid not in await pids(cast)
    before = len(cast.actors.cluster.timeline.spans)
    assert {one.policy_version for one in await answers(cast, requests(cast, 128, "with"))} == {1}
    await until(lambda: handed_out(cast, before).total() == 128, "all calls of generators to have ended")
    assert handed_out(cast, before)[victim.name] >= 32


async def test_a_deadline_says_what_is_missing(cast: Cast) -> None:
    wanted = requests(cast, 512, "late")
    with pytest.raises(DeadlineExceeded, match=r"of 512 completions missing after 0 s"):
        async for _ in cast.generators.generate(wanted, LONG, deadline_s=0.05):
            pass
    exactly_once(await answers(cast, requests(cast, 16, "then")), requests(cast, 16, "then"))


async def test_when_no_restart_is_left_the_rollout_ends_with_the_reason(cast: Cast) -> None:
    await both_alive(cast)
    for replica in cast.generators.replicas:
        replica.actor.restarts_left = 0
    for pid in await pids(cast):
        os.kill(pid, signal.SIGKILL)
    with pytest.raises(ActorLost, match="no generator is left"):
        await answers(cast, requests(cast, 64, "nobody"))
