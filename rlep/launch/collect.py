"""``rlep collect``: the policy answers every question, and what is verified fills the pool."""

from __future__ import annotations

from rlep.check.inputs import Inputs, Subject
from rlep.check.pool_place import pool_exists
from rlep.check.suite import check_inputs, check_start
from rlep.config.schema import Config
from rlep.core.errors import PoolError
from rlep.core.plural import counted
from rlep.driver.collect import Collected, Collector, collected_before
from rlep.driver.run_directory import RunDirectory
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
from rlep.launch.wings import episodes


def collect(config: Config, progress: CommandProgress) -> Collected:
    """Sample every question; fill the pool."""
    config = resolve_names(config, "collect", progress)
    subject = Subject(config, "collect", phase=progress.phase)
    inputs = check_inputs(subject, progress.note)
    with open_run(config, inputs, "collect", progress) as store:
        if done := collected_before(store.path, train_set(inputs).prompts):
            if not pool_exists(config):
                raise PoolError(
                    f"{store.path} has collected every question, but its pool {config.pool_directory} is gone: "
                    "collect again in another run.directory, or check pool.directory"
                )
            progress.note(f"nothing to do: all {done.coverage.questions} questions are collected")
            return done
        check_start(subject, progress.note)
        return run_async(_collect(config, inputs, store, progress), progress.stopping)


async def _collect(config: Config, inputs: Inputs, store: RunDirectory, progress: CommandProgress) -> Collected:
    progress.note(starting_text(config, learns=False))
    async with run_actors(config, actor_report(progress, store)) as actors:
        generators, verifiers = actors.generators(base_version=0), actors.verifiers()
        players = episodes(config, inputs, generators, actors.environments())
        pool = actors.pool(inputs, read_only=False)
        failures = actors.failures(inputs, read_only=False) if config.collection.failed else None
        actors.control(Watch(None, progress.phases, actors.cluster.timeline).progress)
        await wait_for_roles(actors, progress)
        store.begin()
        run = run_of(config, inputs, players, report_crashes(config, verifiers, progress, store), progress)
        return await Collector(run, pool, store, train_set(inputs).prompts, failures).run()


def collected_text(config: Config, collected: Collected) -> str:
    """Say in one line what the pool holds after a collection."""
    coverage = collected.coverage
    held = sum(responses * questions for responses, questions in coverage.answers.items())
    return (
        f"pool {config.pool.name}: {counted(held, 'response')} to {coverage.covered} of "
        f"{counted(coverage.questions, 'question')} ({collected.correct} of {counted(collected.candidates, 'candidate')} correct)"
    )
