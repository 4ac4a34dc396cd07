"""The live pool of a running run, asked from outside."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from rlep.actors.pool_actor import attached_stats
from rlep.check.inputs import Subject
from rlep.config.settings import load_config
from rlep.launch.roles import run_actors
from tests.small import BASE, small_task
from tests.unit.driver.driver_values import answer_of


async def test_statistics_of_a_run_that_only_replays_its_own(tmp_path: Path) -> None:
    overrides = [*small_task(tmp_path), f'run.directory="{tmp_path / "run"}"', "run.name=own", "cluster.cpus=2"]
    config = load_config([BASE], [*overrides, "replay.count=2", "replay.source=live"])
    inputs = Subject(config).inputs()
    assert inputs.train is not None
    async with run_actors(config) as actors:
        live = actors.live(inputs)
        await actors.started()
        made = [answer_of(prompt, number, length=2) for prompt in inputs.train.prompts[:2] for number in range(3)]
        source = replace(made[0].provenance, tokenizer_digest=inputs.tokenizer.digest)
        known = [replace(one, provenance=source, tokens=one.tokens % 7) for one in made]
        report = await live.add(known)
        stats = await attached_stats(actors.cluster)
    assert report.refused == ()
    assert (stats.trajectories, stats.questions_with[1]) == (6, 2)
