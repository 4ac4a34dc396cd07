"""Two verifier actors with any profile: every answer gets its verdict, in order, also where one of them dies at work."""

from __future__ import annotations

import asyncio
import os
import signal
from pathlib import Path

import numpy as np
import pytest

from rlep.config.roles import VerifierConfig
from rlep.config.settings import load_config
from rlep.core.types import Completion, Prompt, Verdict
from rlep.launch.roles import run_actors
from rlep.services.verifier.grader import limits_of
from rlep.services.worker.jail import Limits
from tests.small import BASE, small_task
from tests.waiting import until

COUNT = 320


async def verdicts_of(
    home: Path, reference: str, texts: list[str], *more: str, kill: bool = False, opening: str = ""
) -> list[Verdict]:
    """The verdicts of two verifiers; with ``kill``, the first is killed while it grades."""
    prompt = Prompt("ab" * 16, "?", reference, np.arange(4, dtype=np.int32), "", opening, '{"level": 3}')
    tokens, logprobs = np.array([5], np.int32), np.zeros(1, np.float32)
    completions = [
        Completion(f"r/{i}", prompt.id, i, tokens, logprobs, "stop", 0, text) for i, text in enumerate(texts)
    ]
    overrides = [*small_task(home), f'run.directory="{home / "run"}"', f"run.name={home.name}", "cluster.cpus=2"]
    config = load_config([BASE], [*overrides, "verifier.count=2", *more])
    async with run_actors(config) as actors:
        verifiers = actors.verifiers()
        await actors.started()
        victim = await (await verifiers._replicas.members[0].actor.handle()).ping.remote()
        if kill:
            os.kill(victim, signal.SIGSTOP)  # holds what it will be given
        grading = asyncio.create_task(verifiers.grade(prompt, completions))
        if kill:
            await until(lambda: verifiers.status().actors[0].in_flight, "the first verifier to be given answers")
            os.kill(victim, signal.SIGKILL)
        return await grading


async def test_a_verifier_that_dies_at_work_loses_no_answer(tmp_path: Path) -> None:
    texts = [rf"\boxed{{x+{i % 7}+{i}-{i}}}" for i in range(COUNT)]
    verdicts = await verdicts_of(tmp_path, "x+3", texts, kill=True)
    assert [verdict.status for verdict in verdicts] == ["correct" if i % 7 == 3 else "wrong" for i in range(COUNT)]


def test_the_wall_clock_never_ends_an_answer_that_still_has_cpu_time() -> None:
    assert limits_of(VerifierConfig()) == Limits(cpu_seconds=1.0, wall_seconds=30.0)
    assert limits_of(VerifierConfig(cpu_seconds=60)) == Limits(cpu_seconds=60.0, wall_seconds=240.0)


async def test_a_run_takes_the_users_scores_its_threshold_and_the_columns_it_asks_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "users_scores.py").write_text(
        'def grade(prompt, response, level):\n    return {"score": len(response) / 4, "level": level * len(prompt)}\n'
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setenv("PYTHONPATH", f"{tmp_path}:{os.environ.get('PYTHONPATH', '')}")
    more = ["verifier.profile=python:users_scores:grade", "verifier.correct_at=0.75"]
    verdicts = await verdicts_of(tmp_path, "x", ["1", "333", "4444", "55555"], *more)
    assert [verdict.status for verdict in verdicts] == ["wrong", "correct", "correct", "crashed"]
    assert [(verdict.score, dict(verdict.parts)) for verdict in verdicts] == [
        (0.25, {"level": 3.0}),
        (0.75, {"level": 3.0}),
        (1.0, {"level": 3.0}),
        (None, {}),
    ]


async def test_a_box_in_thinking_that_the_prompt_opened_is_not_paid(tmp_path: Path) -> None:
    texts = [r"1 and 2, \boxed{3}? hmm wait", r"1 and 2</think>\boxed{3}", r"<think>3</think>\boxed{3}"]
    verdicts = await verdicts_of(tmp_path, "3", texts, opening="<think>")
    assert [verdict.status for verdict in verdicts] == ["no_answer", "correct", "correct"]
