"""Reward functions that crash: on every response the step ends, on some the first of each kind is reported."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from rlep.core.errors import VerifierError
from rlep.core.types import Prompt, Status, Verdict
from rlep.driver.context import Roles, Run
from rlep.driver.crashes import ReportedCrashes, check_decided
from rlep.driver.evaluate import evaluate_policy
from rlep.driver.run_directory import Facts, RunDirectory
from rlep.driver.step import run_step
from rlep.launch.command import report_crashes
from tests.unit.driver.driver_fakes import FakeVerifiers, Scene, World, scene_of
from tests.unit.driver.driver_values import P, config_of, prompts_of

FUNCTION = "python:rewards:grade"
PROMPTS = prompts_of(P)
CRASHED: list[Status] = ["crashed"] * 3


def scene(verdicts: dict[str, list[Status]], profile: str = FUNCTION) -> Scene:
    made = scene_of(config_of(replay={"count": 0}, verifier={"profile": profile}))
    made.verifiers.verdicts = verdicts
    return made


async def test_a_step_whose_every_response_crashed_ends_the_run() -> None:
    statuses: dict[str, list[Status]] = {prompt.id: CRASHED for prompt in PROMPTS}
    statuses[PROMPTS[3].id] = ["timeout", "crashed", "out_of_memory"]
    all_crashed = scene(statuses)
    with pytest.raises(
        VerifierError,
        match=r"^python:rewards:grade decided on none of 12 responses \((10 crashed|1 timeout|1 out_of_memory|, )+\)$",
    ):
        await run_step(all_crashed.step(), PROMPTS)
    assert not all_crashed.learner.batches
    with pytest.raises(VerifierError, match="decided on none of"):
        await evaluate_policy(all_crashed.run, PROMPTS, 3)


@pytest.mark.parametrize("last", [["crashed", "crashed", "wrong"], ["no_answer", "crashed", "crashed"]])
async def test_a_step_with_one_verdict_goes_on(last: list[Status]) -> None:
    outcome = await run_step(scene({p.id: CRASHED for p in PROMPTS[:3]} | {PROMPTS[3].id: last}).step(), PROMPTS)
    assert len(outcome.updates) == 2


async def test_crashes_of_programs_and_of_one_question_end_nothing() -> None:
    statuses: dict[str, list[Status]] = {prompt.id: CRASHED for prompt in PROMPTS}
    assert len((await run_step(scene(statuses, "code").step(), PROMPTS)).updates) == 2
    assert (await evaluate_policy(scene(statuses).run, PROMPTS[:1], 3)).report.sources[0].avg.value == 0


def verdict(status: Status, reason: str = "", path: str = "full") -> Verdict:
    return Verdict(status, None, FUNCTION, "1", path, reason=reason)


def test_the_error_has_the_first_traceback_and_truncated_responses_do_not_count() -> None:
    found = [verdict("no_answer", path="fast"), verdict("timeout"), verdict("crashed", "ValueError: no\nwhere")]
    with pytest.raises(
        VerifierError, match=r"on none of 2 responses \(1 timeout, 1 crashed\); the first: ValueError: no\nwhere"
    ):
        check_decided(FUNCTION, 2, found)
    check_decided(FUNCTION, 2, found[:1])
    check_decided("math", 2, found)


def test_one_score_out_of_its_range_ends_the_step_of_a_function() -> None:
    outside = "OutOfRange: score -1 does not lie in [0, 1]; scale it\nwhere"
    found = [verdict("correct"), verdict("crashed", "ValueError: no"), verdict("crashed", outside)]
    for questions in (1, 2):
        with pytest.raises(
            VerifierError, match=r"^python:rewards:grade: OutOfRange: score -1 does not lie in \[0, 1\]; scale"
        ):
            check_decided(FUNCTION, questions, found)
    check_decided("reasoning-gym", 2, found)


class Crashing(FakeVerifiers):
    """Each response crashes for its own reason."""

    async def grade(self, prompt: Prompt, completions: object) -> list[Verdict]:
        return [
            verdict("crashed", one)
            for one in ("ValueError: 1\n  File 1", "ValueError: 2", "KeyError: 3", "KeyError: 3")
        ]


async def test_the_first_crash_of_each_kind_is_an_event_and_a_log_with_its_traceback(tmp_path: Path) -> None:
    made = scene({})
    config = made.config.model_copy(update={"run": made.config.run.model_copy(update={"directory": tmp_path / "run"})})
    store = RunDirectory(config.run.directory, config, Facts("train"))
    verifiers = report_crashes(config, Crashing(World()), made.progress, store)
    assert isinstance(verifiers, ReportedCrashes)
    for prompt in PROMPTS:
        await verifiers.grade(prompt, [])
    store.close()
    log, what = (
        tmp_path / "run" / "logs" / "verifier.err",
        f"{FUNCTION} crashed on a response to the question {PROMPTS[0].id}",
    )
    lines = [json.loads(line) for line in (tmp_path / "run" / "events.jsonl").read_text().splitlines()]
    failed = [(line["prompt_id"], line["error"], line["log"]) for line in lines if line["event"] == "grading_failed"]
    assert failed == [(PROMPTS[0].id, "ValueError: 1", str(log)), (PROMPTS[0].id, "KeyError: 3", str(log))]
    assert log.read_text() == f"{what}: ValueError: 1\n  File 1\n{what}: KeyError: 3\n"
    assert made.progress.notes == [f"{what}: ValueError: 1. Log: {log}", f"{what}: KeyError: 3. Log: {log}"]


async def test_without_a_directory_the_traceback_is_noted_and_other_profiles_are_left_alone() -> None:
    made = scene({})
    run: Run = made.run
    roles = Roles(run.roles.generators, report_crashes(made.config, Crashing(World()), made.progress))
    await roles.verifiers.grade(PROMPTS[0], [])
    assert made.progress.notes[0].endswith("ValueError: 1\n  File 1")
    inner = Crashing(World())
    assert report_crashes(scene({}, "code").config, inner, made.progress) is inner
