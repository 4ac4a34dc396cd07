"""What is recorded of a step's actors, and what ``rlep status`` and ``rlep top`` print."""

from __future__ import annotations

from dataclasses import replace

from rich.console import Console

from rlep.actors.control import RunStatus
from rlep.actors.replicas import ActorStatus, RoleStatus
from rlep.actors.run_progress import Phase, RunProgress, StepReport
from rlep.actors.timeline import Timeline
from rlep.cli.status import last_step, view
from rlep.core.types import Reissued
from rlep.driver.context import Step
from rlep.driver.step import StepOutcome
from rlep.launch.watch import Watch
from rlep.metrics.catalogue import MetricValue, metric_for
from rlep.metrics.spans import Span, breakdown_of
from tests.unit.driver.driver_fakes import scene_of

GENERATOR = ActorStatus(
    "generator-0", "serving", version=41, in_flight=96, tokens_per_second=1234.4, restarts=2, kv_use=0.874, preempted=12
)
STARTING = ActorStatus("generator-1", "placing", error="needs 1 CPU, 0 GPU; free now: 0.5 CPU, 0 GPU")
ROLES = (
    RoleStatus("generator", (GENERATOR, STARTING), backlog=7, reissued=Reissued(3, 1)),
    RoleStatus("verifier", (ActorStatus("verifier-0", "leaving"), ActorStatus("verifier-1", "serving"))),
    RoleStatus("environment", (ActorStatus("environment-0", "serving", in_flight=64),), backlog=5),
    RoleStatus("learner", (ActorStatus("learner-0", "serving"),)),
    RoleStatus("pool", (ActorStatus("pool", "serving"),)),
    RoleStatus("pool", (ActorStatus("failures", "lost", restarts=3, error="Traceback\nred"),)),
)


def done(step: Step) -> StepOutcome:
    """A complete step without updates."""
    return StepOutcome(step, (), (), 0.0)


def test_actors_are_counted_by_role_and_restarts_do_not_go_with_those_who_leave() -> None:
    watch = Watch(3, tuple)
    expected = {
        "actors/alive/generator": 1,
        "actors/alive/verifier": 2,
        "actors/alive/environment": 1,
        "actors/alive/learner": 1,
        "actors/alive/pool": 1,
        "actors/restarts/generator": 2,
        "actors/restarts/verifier": 0,
        "actors/restarts/environment": 0,
        "actors/restarts/learner": 0,
        "actors/restarts/pool": 3,
    }
    assert watch.actors(ROLES) == expected
    assert all(metric_for(name) for name in expected)
    later = replace(ROLES[0], actors=(replace(STARTING, state="serving", restarts=1),))
    after = watch.actors([later])
    assert (after["actors/alive/generator"], after["actors/restarts/generator"]) == (1, 3)


async def test_a_step_leaves_a_span_its_seconds_and_the_metrics_of_its_actors() -> None:
    now = iter(range(10))
    timeline, shown = Timeline(lambda: float(next(now))), list[StepReport]()
    tolerance: dict[str, MetricValue] = {"weights/logprob_tolerance": 0.2}
    watch = Watch(3, lambda: (Phase("update", 1, 2, "updates"),), timeline, shown=shown.append, constant=tolerance)
    watch.roles, watch.measure = lambda: ROLES, lambda: {"generator/kv_use": 0.87}
    assert watch.progress() == RunProgress(None, 3, (Phase("update", 1, 2, "updates"),))
    step = scene_of().step(1)
    await watch.begin_step(step)
    assert watch.progress().done == 1
    step.clock.seconds["step"] = 2.5
    recorded = await watch.end_step(done(step), {"rollout/prompts": 2})
    assert recorded == tolerance | {"generator/kv_use": 0.87} | Watch(3, tuple).actors(ROLES)
    assert (watch.progress().done, watch.progress().seconds) == (2, {"step": 2.5})
    await watch.begin_step(scene_of().step(2))  # and never ends
    assert timeline.spans == (Span("driver", "step", 0.0, 1.0, 1),)
    assert [(report.done, report.steps, report.seconds) for report in shown] == [(2, 4, 2.5)]


async def test_the_time_left_is_the_mean_time_of_this_process_for_each_step_that_is_left() -> None:
    now, shown = iter([100.0, 103.0, 109.0]), list[StepReport]()
    watch = Watch(4, tuple, shown=shown.append, clock=lambda: next(now))
    for number in (1, 2):  # a run that was continued after step 1 of 4
        step = scene_of().step(number)
        await watch.begin_step(step)
        await watch.end_step(done(step), {})
    # 3 s for one step, two left; then 9 s for two steps, one left
    assert [(report.done, report.left_s) for report in shown] == [(2, 6.0), (3, 4.5)]


def test_a_frame_shows_every_actor_and_where_the_last_step_went() -> None:
    spans = [Span("generator-0", "generate", 1, 7), Span("learner", "update", 7, 9), Span("learner", "publish", 9, 10)]
    progress = RunProgress(
        41, 200, (Phase("rollout", 312, 512, "responses"),), {"step": 10.0, "update": 2, "generate": 6}
    )
    step = breakdown_of(Span("driver", "step", 0, 10, 40), spans, ["generator-0", "generator-1"])
    console = Console(width=120, highlight=False)
    with console.capture() as captured:
        console.print(view(RunStatus("name", ROLES, progress, step), step=True))
    lines = [line.rstrip() for line in captured.get().splitlines() if line.strip()]
    assert lines[:5] == [
        "name: 41 of 200 steps done, policy version 41",
        "now: rollout 312 of 512 responses",
        "last step: 10.00 s; generate 6.00 s, update 2.00 s",
        "critical path: update 2.00 s (20 %), publish 1.00 s (10 %), waiting 7.00 s (70 %)",
        "idle: generator 70 %, learner 70 %",
    ]
    rows = {line.split()[0]: line.split() for line in lines[7:14]}
    assert rows["generator-0"] == ["generator-0", "serving", "41", "96", "1,234", "87", "%", "12", "2"]
    assert rows["generator-1"] == ["generator-1", "placing", "0", "0"]
    assert rows["environment-0"] == ["environment-0", "serving", "64", "0"]
    assert set(rows) == {"generator-0", "generator-1", "verifier-0", "verifier-1", "environment-0", "learner-0", "pool"}
    assert lines[14].split()[:2] == ["failures", "lost"]
    assert lines[15:] == [
        "requests: 7 waiting for a generator, 3 re-dispatched, 1 completion dropped",
        "verdicts: 0 calls waiting for a verifier",
        "episodes: 5 waiting for an environment",
        "generator-1: needs 1 CPU, 0 GPU; free now: 0.5 CPU, 0 GPU",
        "failures: red",
    ]


def test_the_last_steps_replays_and_the_live_pool() -> None:
    replay = {
        "replay/trajectories": 12,
        "replay/age": 3.25,
        "live/responses": 120,
        "live/questions": 40,
        "live/retired": 3,
    }
    progress = RunProgress(1, 2, (), {"step": 10.0}, replay)
    assert last_step(RunStatus("name", ROLES, progress)) == [
        "last step: 10.00 s; ",
        "replays: 12 in the step, mean age 3.2 steps",
        "live replay: 120 responses, 40 questions with enough of them, 3 retired",
    ]
    del replay["live/retired"]  # exgrpo alone retires questions
    plain = last_step(RunStatus("name", ROLES, RunProgress(1, 2, (), {}, replay)))
    assert plain[-1] == "live replay: 120 responses, 40 questions with enough of them"
    offline = RunProgress(1, 2, (), {}, {"replay/trajectories": 5})
    assert last_step(RunStatus("name", ROLES, offline)) == ["replays: 5 in the step"]


def test_a_run_without_a_step_yet_says_what_there_is() -> None:
    console = Console(width=120, highlight=False)
    with console.capture() as captured:
        console.print(view(RunStatus("name", ROLES[2:4]), step=True))
    assert captured.get().splitlines()[:2] == ["name: policy version none yet", "now: between two phases"]
