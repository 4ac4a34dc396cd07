"""Collection behind its ports: who enters the pool, what is written, and that no question is asked twice."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from rlep.core.errors import PoolError, VerifierError
from rlep.core.jsonl import read_lines
from rlep.core.types import Prompt, Sampling, Trajectory
from rlep.driver import collect
from rlep.driver.collect import Collected, Collector
from rlep.driver.run_directory import Facts, RunDirectory
from rlep.view.record import load_run
from tests.unit.driver.driver_fakes import FakePool, Killed, Scene, World, scene_of
from tests.unit.driver.driver_values import answer_of, config_of, prompts_of

FACTS = Facts("collect", "model", "tok", "data")
PROMPTS = prompts_of(5)
RIGHT = {
    PROMPTS[0].id: 4,  # over the cap of 3
    PROMPTS[1].id: 3,
    PROMPTS[2].id: 2,
    PROMPTS[3].id: 1,  # below the minimum of 2
    PROMPTS[4].id: 0,
}


def new_scene(pool: FakePool | None = None, **sections: dict[str, Any]) -> Scene:
    """Four candidates of each question, all of them ended by EOS; ``RIGHT`` says how many are correct."""
    scene = scene_of(config_of(**({"rollout": {"max_tokens": 64}} | sections)), pool=pool or FakePool(World()))
    for prompt_id, right in RIGHT.items():
        scene.verifiers.verdicts = {
            **scene.verifiers.verdicts,
            prompt_id: ["correct" if i < right else "wrong" for i in range(4)],
        }
    return scene


async def collected(directory: Path, scene: Scene, prompts: tuple[Prompt, ...] = PROMPTS) -> Collected:
    """Collect as a process of its own would."""
    store = RunDirectory(directory, scene.config, FACTS)
    try:
        assert scene.pool is not None
        return await Collector(scene.run, scene.pool, store, prompts, scene.failures).run()
    finally:
        store.close()


def summary(directory: Path) -> dict[str, Any]:
    """``collection.json``."""
    read: dict[str, Any] = json.loads((directory / "collection.json").read_text())
    return read


def content(scene: Scene) -> dict[str, list[str]]:
    """What the pool holds."""
    assert scene.pool is not None
    stored: dict[str, list[Trajectory]] = scene.pool.stored
    return {prompt_id: sorted(member.content_id for member in members) for prompt_id, members in stored.items()}


async def test_admission_and_coverage_by_hand(tmp_path: Path) -> None:
    scene = new_scene()
    result = await collected(tmp_path, scene)
    assert {prompt_id: len(stored) for prompt_id, stored in content(scene).items()} == {
        PROMPTS[0].id: 3,
        PROMPTS[1].id: 3,
        PROMPTS[2].id: 2,
    }
    assert scene.pool is not None
    assert all(member.correct and member.finish_reason == "stop" for m in scene.pool.stored.values() for member in m)
    assert (result.candidates, result.correct, result.coverage.accepted) == (20, 10, 8)
    expected = {
        "questions": 5,
        "candidates": 20,
        "correct": 10,
        "admitted": 8,
        "covered": 3,
        "eligible": 3,
        "minimum": 2,
        "buckets": {"0": 2, "1": 0, "2-3": 3, "4-7": 0, "8+": 0},
        "answers_per_question": [2, 0, 1, 2],
        "refused": {"not_correct": 10, "too_few": 1, "over_cap": 1},
        "pool_digest": await scene.pool.digest(),
    }
    written = summary(tmp_path)
    assert written.pop("wall_s") > 0
    said = [scene.generators.answer(one, Sampling(max_tokens=64), 0) for one in scene.generators.asked]
    assert written.pop("generated_tokens") == sum(2 + len(one.tokens) for one in said)  # prompts have two tokens
    assert written == expected
    assert scene.progress.done == {"collect": 20, "verify": 20}
    assert scene.progress.notes == ["question 5/5: 50.0 % of 20 responses correct, 3 questions covered"]


@pytest.mark.parametrize(("temperature", "mode"), [(1, "raw"), ("rollout", "processed")])
async def test_a_record_says_how_it_was_sampled_and_of_what_its_log_probs_are(
    temperature: object, mode: str, tmp_path: Path
) -> None:
    stops = {"max_tokens": 64, "stop": ["</answer>"]}
    scene = new_scene(loss={"temperature": temperature}, rollout=stops, collection={"min_p": 0.1})
    await collected(tmp_path, scene)
    assert scene.pool is not None
    stored = [member.provenance for members in scene.pool.stored.values() for member in members]
    assert {origin.logprobs_mode for origin in stored} == {mode}
    assert {origin.sampling for origin in stored} == {Sampling(0.7, 0.95, 0, 64, 0.1, stop=("</answer>",))}


async def test_the_report_reads_it(tmp_path: Path) -> None:
    await collected(tmp_path, new_scene())
    record = load_run(tmp_path, taken=set())
    assert record.role == "collection"
    assert record.collection is not None
    read = record.collection
    assert (read.questions, read.covered, read.eligible, read.admitted, read.minimum) == (5, 3, 3, 8, 2)
    buckets = [(bucket.label, bucket.questions) for bucket in read.buckets]
    assert buckets == [("0", 2), ("1", 0), ("2-3", 3), ("4-7", 0), ("8+", 0)]
    assert read.wall_s is not None


async def test_truncated_answers_do_not_enter(tmp_path: Path) -> None:
    scene = new_scene(rollout={"max_tokens": 1})  # every answer is cut at its first token
    await collected(tmp_path, scene)
    assert content(scene) == {}
    assert summary(tmp_path)["refused"] == {"not_correct": 10, "truncated": 10}


@pytest.mark.parametrize("kill_at", range(1, 30, 5))
async def test_killed_and_continued(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kill_at: int) -> None:
    monkeypatch.setattr(collect, "CHUNK", 2)
    whole = new_scene()
    await collected(tmp_path / "whole", whole)
    first = new_scene()
    first.world.kill_at = kill_at
    with pytest.raises(Killed):
        await collected(tmp_path / "killed", first)
    assert first.pool is not None
    done = {line["prompt_id"] for line in read_lines(tmp_path / "killed" / "collection.jsonl")}
    second = new_scene(FakePool(World(), first.pool.stored))
    await collected(tmp_path / "killed", second)
    assert {request.prompt_id for request in second.generators.asked} == {p.id for p in PROMPTS} - done
    assert content(second) == content(whole)
    both = [summary(tmp_path / name) for name in ("whole", "killed")]
    for read in both:
        read.pop("wall_s")
    assert both[0] == both[1]


async def test_a_finished_collection_started_again_asks_nobody(tmp_path: Path) -> None:
    first = new_scene()
    await collected(tmp_path, first)
    before = summary(tmp_path)
    second = new_scene(first.pool)
    result = await collected(tmp_path, second)
    assert second.generators.asked == []
    assert summary(tmp_path) == before
    assert result.coverage.accepted == 8
    finished = [line for line in read_lines(tmp_path / "events.jsonl") if line["event"] == "collection_finished"]
    assert len(finished) == 1


async def test_working_time_adds_up_over_resumes(tmp_path: Path) -> None:
    ledger = tmp_path / "collection.jsonl"
    line = {"prompt_id": PROMPTS[0].id, "candidates": 4, "correct": 4, "admitted": 3, "refused": {}, "wall_s": 100.0}
    ledger.write_text(json.dumps(line) + "\n")
    await collected(tmp_path, new_scene())
    assert 100 < summary(tmp_path)["wall_s"] < 160


async def test_a_record_that_the_pool_refuses_ends_the_collection(tmp_path: Path) -> None:
    scene = new_scene()
    assert scene.pool is not None
    scene.pool.refuse = "sealed"
    with pytest.raises(PoolError, match=r"refused 1 admitted answers, first: .*sealed"):
        await collected(tmp_path, scene)
    assert read_lines(tmp_path / "collection.jsonl") == []
    assert not (tmp_path / "collection.json").exists()


async def test_what_the_pool_holds_already_counts_for_minimum_and_cap(tmp_path: Path) -> None:
    """The cap of 3 has two others of the first question; the fourth question has one other, and its minimum of 2 with it."""
    held = {PROMPTS[0].id: [answer_of(PROMPTS[0], n) for n in range(2)], PROMPTS[3].id: [answer_of(PROMPTS[3], 0)]}
    scene = new_scene(FakePool(World(), held))
    await collected(tmp_path, scene)
    assert [len(held.get(prompt.id, ())) for prompt in PROMPTS] == [3, 3, 2, 2, 0]
    found = summary(tmp_path)
    assert (found["admitted"], found["covered"], found["eligible"]) == (1 + 3 + 2 + 1, 4, 4)
    assert found["answers_per_question"] == [1, 0, 2, 2]
    assert found["refused"] == {"not_correct": 10, "over_cap": 3}
    assert scene.progress.notes == ["question 5/5: 50.0 % of 20 responses correct, 4 questions covered"]


@pytest.mark.parametrize(
    ("reason", "name"),
    [("its prompt has 3 already", "over_cap"), ("quarantined: it did not pass a later verification", "quarantined")],
)
async def test_a_record_that_its_prompt_has_no_place_for_is_counted(tmp_path: Path, reason: str, name: str) -> None:
    scene = new_scene()
    assert scene.pool is not None
    scene.pool.refuse = reason
    await collected(tmp_path, scene)
    found = summary(tmp_path)
    assert found["admitted"] == sum(map(len, scene.pool.stored.values())) == 7
    assert found["refused"] == dict(Counter({"not_correct": 10, "too_few": 1, "over_cap": 1}) + Counter([name]))


@pytest.mark.parametrize("role", ["pool", "verifiers"])
async def test_errors_arrive_as_themselves_and_leave_no_task(tmp_path: Path, role: str) -> None:
    scene = new_scene()
    error = PoolError("unreachable") if role == "pool" else VerifierError("no verifier is left")
    getattr(scene, role).fail = error
    with pytest.raises(type(error)) as raised:
        await collected(tmp_path, scene)
    assert raised.value is error
    assert asyncio.all_tasks() == {asyncio.current_task()}
    getattr(scene, role).fail = None
    await collected(tmp_path, scene)  # nothing is left locked
    assert summary(tmp_path)["admitted"] == 8


async def test_two_waves_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(collect, "CHUNK", 1)
    scene = new_scene()
    await collected(tmp_path, scene)
    running = most = 0
    for entry in scene.world.happened:
        running += {"generate": 1, "add": -1}.get(entry.split()[0], 0)
        most = max(most, running)
    assert most == 2
    assert scene.world.count("generate") == scene.world.count("add") == 5


async def test_cancelled(tmp_path: Path) -> None:
    running = asyncio.create_task(collected(tmp_path, new_scene()))
    for _ in range(10):
        await asyncio.sleep(0)
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert asyncio.all_tasks() == {asyncio.current_task()}


async def test_wrong_answers_go_into_a_pool_of_their_own(tmp_path: Path) -> None:
    scene = new_scene(collection={"failed": 2})
    assert scene.pool is not None
    scene.failures = FakePool(scene.world)
    await collected(tmp_path, scene)
    # 0, 1, 2, 3 and 4 of 4 candidates are wrong, of which two at most are kept; the other pool holds what it held before
    kept = {prompt_id: len(members) for prompt_id, members in scene.failures.stored.items()}
    assert kept == {PROMPTS[1].id: 1, PROMPTS[2].id: 2, PROMPTS[3].id: 2, PROMPTS[4].id: 2}
    assert not any(member.correct for members in scene.failures.stored.values() for member in members)
    assert {prompt_id: len(stored) for prompt_id, stored in content(scene).items()} == {
        PROMPTS[0].id: 3,
        PROMPTS[1].id: 3,
        PROMPTS[2].id: 2,
    }
