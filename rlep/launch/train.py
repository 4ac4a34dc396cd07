"""``rlep train`` and ``rlep sft``: from a config to the last checkpoint, on one screen."""

from __future__ import annotations

from rlep.check.fit_checks import memory_advice
from rlep.check.inputs import Command, Inputs, Subject
from rlep.check.pool_checks import check_minimum, check_origins, covered_questions, first_ids
from rlep.check.suite import check_inputs, check_start
from rlep.config.schema import Config
from rlep.core.errors import ConfigError, OutOfMemory
from rlep.core.plural import counted
from rlep.driver.checkpoint import Checkpoint
from rlep.driver.context import Trainers
from rlep.driver.live_replay import LiveReplay
from rlep.driver.replays import choose_method
from rlep.driver.run_directory import RunDirectory
from rlep.driver.sft import sft_step
from rlep.driver.train import Training, TrainingData
from rlep.driver.wings.rollout_files import RolloutFiles
from rlep.engines.weights.weight_update import LOGPROB_TOLERANCE
from rlep.launch.command import (
    CommandProgress,
    actor_report,
    open_run,
    report_crashes,
    resolve_names,
    run_of,
    starting_text,
    train_set,
    wait_for_roles,
)
from rlep.launch.event_loop import run_async
from rlep.launch.roles import run_actors
from rlep.launch.watch import Watch
from rlep.launch.wings import choose_step, episode_metrics, episodes, rollouts
from rlep.services.pool.rpc.async_client import AsyncPoolClient


def train(config: Config, progress: CommandProgress, *, supervised: bool = False) -> Checkpoint:
    """Train, from the start or from where the run stopped; returns the last checkpoint. ``supervised``: on replays alone."""
    if supervised:
        check_supervised(config)
    command: Command = "sft" if supervised else "train"
    config = resolve_names(config, command, progress)
    subject = Subject(config, command, phase=progress.phase)
    inputs = check_inputs(subject, progress.note)
    with open_run(config, inputs, subject.command, progress) as store:
        if done := store.checkpoints.complete(config.run.steps):
            store.events.log("run_finished", done.state.step)
            progress.note(f"nothing to do: all {config.run.steps} steps are done, {done.path}")
            return done
        check_start(subject, progress.note)
        try:
            return run_async(_train(config, inputs, store, progress, supervised=supervised), progress.stopping)
        except OutOfMemory as error:
            raise OutOfMemory(f"{error}. {memory_advice(config)}") from error


def check_supervised(config: Config) -> None:
    """Raise ``ConfigError`` where supervised fine-tuning has nothing to imitate, or would imitate wrong responses."""
    if not config.replay.count:
        raise ConfigError("sft trains on replays: set replay.count to the responses per prompt and step")
    if config.replay.source != "offline":
        raise ConfigError(f'sft generates nothing: replay.source = "{config.replay.source}" needs `rlep train`')
    if config.replay.failed:
        raise ConfigError("sft imitates every response it is given: set replay.failed = 0")
    if config.loss.kl_coef:
        remedy = 'loss.teacher = "none" and loss.kl_coef = 0' if config.loss.teacher else "loss.kl_coef = 0"
        raise ConfigError(f"sft imitates stored responses alone, and would hold a reference for nothing: set {remedy}")
    if config.update.epochs > 1:
        raise ConfigError(
            "sft draws responses anew in every step: set update.epochs = 1, and run.steps for more passes"
        )


async def _train(
    config: Config, inputs: Inputs, store: RunDirectory, progress: CommandProgress, *, supervised: bool
) -> Checkpoint:
    prompts, replay = train_set(inputs), config.replay
    progress.note(starting_text(config, learns=True))
    async with (
        run_actors(config, actor_report(progress, store)) as actors,
        RolloutFiles(config, inputs.tokenizer.decode, store.events) as files,
    ):
        generators, verifiers, learner = actors.generators(), actors.verifiers(), actors.learners()
        environments = actors.environments()
        pool = actors.pool(inputs, read_only=True) if replay.count and replay.source != "live" else None
        own = actors.live(inputs) if replay.source != "offline" else None
        failures = actors.failures(inputs, read_only=True) if replay.failed else None
        watch = Watch(config.run.steps, progress.phases, actors.cluster.timeline, shown=progress.step)
        watch.constant = {"weights/logprob_tolerance": LOGPROB_TOLERANCE[config.generator.compute_dtype]}
        players = episodes(config, inputs, generators, environments)
        watch.roles = actors.control(watch.progress).roles
        watch.measure = lambda: generators.cache_metrics() | episode_metrics(players)
        await wait_for_roles(actors, progress)
        digest = ""
        if pool is not None:
            digest = await _open_pool(config, pool, inputs, store, progress, supervised=supervised)
        if failures is not None:
            digest += f"+{await failures.digest()}"
        store.begin()

        live = LiveReplay(config, own, config.run.directory, pool) if own is not None else None
        writers, trained, weights = actors.ports(players, learner, actors.weights(learner, generators, prompts.prompts))
        run = run_of(config, inputs, writers, report_crashes(config, verifiers, progress, store), progress)
        return await Training(
            run,
            Trainers(trained, weights, rollouts(run, prompts), live or pool, failures, choose_method(config)),
            TrainingData(prompts, inputs.held_out, digest, inputs.tokenizer.decode),
            store,
            sft_step if supervised else choose_step(config),
            live=live,
            before=[watch.begin_step] if supervised else [watch.begin_step, files.begin_step],
            after=[watch.end_step]
            if supervised
            else [files.write_step, *([live.learn] if live else []), watch.end_step],
        ).run()


async def _open_pool(
    config: Config,
    pool: AsyncPoolClient,
    inputs: Inputs,
    store: RunDirectory,
    progress: CommandProgress,
    *,
    supervised: bool,
) -> str:
    """Say how much of the data the pool covers; returns its digest. On a cluster that is joined, nobody has looked at it yet."""
    prompts = train_set(inputs)
    covered = covered_questions(config, await pool.prompt_ids(), prompts)
    check_minimum(config, await pool.stats())
    drawn = await pool.sample(first_ids(prompts), 1, seed=0, step=0, minimum=config.replay.offline_minimum)
    check_origins(config, drawn, inputs.tokenizer, supervised=supervised)
    where = config.pool.url or config.pool_directory
    digest = await pool.digest()
    store.events.log("pool_opened", where=str(where), digest=digest, covered=covered, questions=len(prompts))
    progress.note(f"pool {config.pool.name}: responses to {covered} of {counted(len(prompts), 'training question')}")
    return digest
