"""What cannot be placed is said at once or within the deadline; small roles are restarted with their work."""

from __future__ import annotations

import asyncio
import os
import signal
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest
import ray

from rlep.check.inputs import Subject
from rlep.check.pool_place import pool_place
from rlep.config.schema import Config
from rlep.config.settings import load_config
from rlep.core.errors import ActorLost, LearnerLost, ModelError, PlacementError, PoolError
from rlep.core.types import Completion, Prompt, Provenance, Sampling, Trajectory, Verdict
from rlep.engines.learner.weight_sender import probe_batch
from rlep.launch.roles import run_actors
from rlep.services.pool.rpc.places import served
from tests.small import BASE, small_task
from tests.waiting import gate, until


def config_in(home: Path, *more: str) -> Config:
    overrides = [*small_task(home), f'run.directory="{home / "run"}"', f"run.name={home.name}", *more]
    return load_config([BASE], overrides)


def completion(prompt: Prompt, sample: int, text: str) -> Completion:
    tokens, logprobs = np.array([5, 6, 7 + sample], np.int32), np.zeros(3, np.float32)
    return Completion(f"r/{sample}", prompt.id, sample, tokens, logprobs, "stop", 0, text)


async def start_verifiers(config: Config) -> None:
    async with run_actors(config) as actors:
        actors.verifiers()
        await actors.started()


async def start_learners(config: Config) -> None:
    async with run_actors(config) as actors:
        actors.learners()
        await actors.started()


async def start_pool(config: Config) -> None:
    async with run_actors(config) as actors:
        actors.pool(Subject(config).inputs(), read_only=True)
        await actors.started()


def title_of(process: psutil.Process) -> str:
    """What a process calls itself; nothing where it has just ended."""
    try:
        return " ".join(process.cmdline())
    except psutil.Error:
        return ""


PROMPT = Prompt("ab" * 16, "How many?", "62", np.arange(4, dtype=np.int32))


async def test_an_actor_larger_than_any_node_is_refused_naming_the_resource(tmp_path: Path) -> None:
    config = config_in(tmp_path, "cluster.cpus=2", "verifier.cpus=64")
    with pytest.raises(PlacementError, match=r"verifier-0 cannot be placed: needs 64 CPU, the largest node has 2"):
        await start_verifiers(config)


async def test_a_label_no_node_has_is_refused_naming_the_label(tmp_path: Path) -> None:
    config = config_in(tmp_path, "cluster.cpus=2", "verifier.label_selector.rlep-role=verifier")
    with pytest.raises(PlacementError, match="no node has the labels rlep-role=verifier"):
        await start_verifiers(config)


async def test_actors_that_do_not_fit_together_are_refused_at_once_naming_each(tmp_path: Path) -> None:
    config = config_in(tmp_path, "cluster.cpus=2", "verifier.count=3", "verifier.cpus=0.9")
    wanted = (
        r"has 2 CPU, 0 GPU, the run's actors ask for 2.7 CPU, 0 GPU together \(verifier-0 0.9 CPU, 0 GPU, verifier-1"
    )
    with pytest.raises(PlacementError, match=wanted):
        await start_verifiers(config)


async def test_stopped_while_the_cluster_starts_it_is_ended_with_its_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def homes() -> list[Path]:
        return list(Path(tempfile.gettempdir()).glob(f"rlep-ray-{os.getuid()}-{os.getpid()}-*"))

    init = ray.init

    def held(**options: Any) -> object:
        closed.pass_through()
        return init(**options)

    with gate() as closed:
        monkeypatch.setattr(ray, "init", held)
        starting = asyncio.create_task(start_verifiers(config_in(tmp_path, "cluster.cpus=2")))
        await asyncio.to_thread(closed.wait_for_somebody)
        assert len(homes()) == 1
        starting.cancel()
        closed.open()
        with pytest.raises(asyncio.CancelledError):
            await starting
    assert not ray.is_initialized()
    assert homes() == []


async def test_a_model_that_no_rank_can_read_is_what_the_caller_hears(tmp_path: Path) -> None:
    config = config_in(tmp_path, "cluster.cpus=2", "learner.ranks=2")
    weights = config.model.path / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:1000])
    with pytest.raises(ModelError, match=f"cannot read weights from {weights}"):
        await start_learners(config)


async def test_a_learner_rank_lost_while_it_starts_again_is_started_once_more(tmp_path: Path) -> None:
    def ranks() -> dict[int, psutil.Process]:
        found = psutil.Process().children(recursive=True)
        return {process.pid: process for process in found if title_of(process).startswith("ray::LearnerActor")}

    config = config_in(tmp_path, "cluster.cpus=2", "learner.restarts=2")
    async with run_actors(config) as actors:
        learners = actors.learners()
        await actors.started()
        before = ranks()
        assert len(before) == 1
        again = asyncio.create_task(learners.restart())
        # It imports torch and loads the model before it is ready, which takes hundreds of these polls.
        await until(lambda: again.done() or ranks().keys() - before, "a new rank")
        assert not again.done()
        for pid in ranks().keys() - before:
            os.kill(pid, signal.SIGKILL)
        await again
        assert learners.status().actors[0].restarts == 2
        with pytest.raises(LearnerLost, match="out of restarts"):
            await learners.restart()


async def test_a_frozen_learner_rank_is_noticed_by_its_heartbeat_while_its_peer_waits(tmp_path: Path) -> None:
    config = config_in(tmp_path, "cluster.cpus=2", "learner.ranks=2", "learner.heartbeat_timeout_s=5")
    batch = probe_batch([(np.arange(4, dtype=np.int32), np.arange(7, dtype=np.int32))] * 4)
    async with run_actors(config) as actors:
        learners = actors.learners()
        await actors.started()
        before = await learners.score(batch)
        os.kill(await learners._ranks[1].ping.remote(), signal.SIGSTOP)
        with pytest.raises(LearnerLost, match=r"^learner-1's heartbeat did not answer within 5 s; learner-0\.score: "):
            await learners.score(batch)
        await learners.restart()
        assert (await learners.score(batch)).tobytes() == before.tobytes()


async def test_a_lost_verifier_loses_no_answer_and_a_lost_pool_actor_no_record(tmp_path: Path) -> None:
    config = config_in(tmp_path, "cluster.cpus=2", "verifier.restarts=1")
    inputs = Subject(config).inputs()
    async with run_actors(config) as actors:
        verifiers, pool = actors.verifiers(), actors.pool(inputs, read_only=False)
        await actors.started()
        texts = [rf"8*7=56.So 56+6={60 + i}.\boxed{{{60 + i}}}" for i in range(8)]
        completions = [completion(PROMPT, i, text) for i, text in enumerate(texts)]
        expected = ["correct" if i == 2 else "wrong" for i in range(8)]
        assert [v.status for v in await verifiers.grade(PROMPT, completions)] == expected

        handle = await verifiers._replicas.members[0].actor.handle()
        os.kill(await handle.ping.remote(), signal.SIGKILL)
        assert [v.status for v in await verifiers.grade(PROMPT, completions)] == expected

        origin = Provenance("policy", 0, inputs.tokenizer.digest, Sampling())
        verdict = Verdict("correct", "62", "math", "1")
        records = [
            Trajectory(PROMPT.id, c.tokens, c.logprobs, c.finish_reason, verdict, origin, 1.0, c.request_id)
            for c in completions
        ]
        report = await pool.add(records)
        assert (report.inserted, report.duplicates) == (8, 0)
        before = await pool.sample([PROMPT.id], 2, seed=7, step=3)

        with served(pool_place(config)) as itself:
            wanted = itself.sample([PROMPT.id], 2, seed=7, step=3)
        assert before.ids == wanted.ids
        for name in ("counts", "offsets", "tokens", "logprobs"):
            assert getattr(before, name).tobytes() == getattr(wanted, name).tobytes(), name
        handle = ray.get_actor("pool", namespace=actors.cluster.namespace)
        os.kill(await handle.ping.remote(), signal.SIGKILL)
        after = await pool.sample([PROMPT.id], 2, seed=7, step=3)
        ids = [trajectory.content_id for trajectory in before[PROMPT.id]]
        assert ids == [trajectory.content_id for trajectory in after[PROMPT.id]]
        assert len(set(ids)) == 2
        assert (await pool.add(records)).duplicates == 8

        handle = await verifiers._replicas.members[0].actor.handle()
        os.kill(await handle.ping.remote(), signal.SIGKILL)
        with pytest.raises(ActorLost, match="verifier-0 was lost and is out of restarts"):
            await verifiers.grade(PROMPT, completions)


async def test_a_pool_that_was_never_filled_is_refused_with_the_reason(tmp_path: Path) -> None:
    config = config_in(tmp_path, "cluster.cpus=2")
    with pytest.raises(PoolError, match="pool"):
        await start_pool(config)
