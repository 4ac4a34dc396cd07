"""``TrlReplay`` where something is wrong: a server that is away, a pool of another model, settings that cannot work."""

from __future__ import annotations

import inspect
import logging
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from rlep import PoolClient
from rlep.config.schema import ModelConfig
from rlep.core.errors import ConfigError, DeadlineExceeded, PoolError, RlepError
from rlep.core.types import prompt_id_of
from rlep.engines.tokenizer import Tokenizer
from rlep.integrations import replayer
from rlep.integrations.trl import TrlReplay
from tests.late_method import LATE
from tests.services.integrations.conftest import OpenPool
from tests.services.integrations.pool_process import pool_process
from tests.services.integrations.trl_scene import (
    correct,
    fill,
    origin,
    questions,
    solutions,
    tokenizer,
    trained,
    trainer_of,
)


def test_training_goes_on_when_the_server_goes_away(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with pool_process(tmp_path / "pools") as address, PoolClient(address, pool="one") as pool:
        fill(pool, solutions(3))
    with PoolClient(address, pool="one", deadline=0.5) as pool:
        with caplog.at_level(logging.WARNING, replayer.__name__):
            done = trained(tmp_path / "run", TrlReplay(pool), max_steps=3)
        assert done.column("replay/rows") == [0.0] * 3
        assert done.column("replay/stored") == [0.0] * 3
        assert sum(done.column("replay/lost")) == 8 * sum(done.column("reward")) > 0
        assert done.column("replay/away") == [1.0] * 3
        assert [line for line in caplog.messages if "training goes on without replays" in line] == [
            line for line in caplog.messages if address in line
        ]
        assert len(caplog.messages) == 1
        with pytest.raises(DeadlineExceeded, match=r"not done within 0\.5 s"):
            trained(tmp_path / "stopped", TrlReplay(pool, away="stop"), max_steps=1)


def test_a_server_that_comes_back_is_drawn_from_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(replayer, "PAUSE_S", 0.0)
    directory = tmp_path / "pools"
    with pool_process(directory) as address, PoolClient(address, pool="one") as pool:
        fill(pool, solutions(3))
    with PoolClient(address, pool="one", deadline=5) as pool:
        replay = TrlReplay(pool, source="offline", count=1)

        def judged(completions: list[Any], answer: list[str], **given: Any) -> list[float]:
            if given["trainer_state"].global_step == 1:  # back before the third rollout
                servers.append(pool_process(directory, address))
                servers[0].__enter__()
            return correct(completions, answer)

        servers: list[Any] = []
        try:
            done = trained(tmp_path / "run", replay, rewards=judged, max_steps=3)
        finally:
            for server in servers:
                server.__exit__(None, None, None)
    assert done.column("replay/rows") == [0.0, 0.0, 2.0]
    assert done.column("replay/away") == [1.0, 1.0, 0.0]


@pytest.mark.parametrize(
    ("of_pool", "sentence"),
    [
        ({"tokenizer_digest": "0123"}, r"holds token ids of tokenizer 0123; this run's is [0-9a-f]{32}"),
        ({"template_digest": "0123"}, r"prompts of chat template 0123; this run's is [0-9a-f]{32}"),
    ],
    ids=["tokenizer", "template"],
)
def test_a_pool_of_another_tokenizer_or_template_is_refused_at_the_first_step(
    pool_of: OpenPool, tmp_path: Path, of_pool: dict[str, Any], sentence: str
) -> None:
    with pool_of() as pool:
        fill(pool, solutions(1), replace(origin("teacher"), **of_pool))
    with pytest.raises(PoolError, match=sentence):
        trained(tmp_path, TrlReplay(pool_of()), max_steps=1)


def test_arguments_that_the_template_reads_are_part_of_it(pool_of: OpenPool, tmp_path: Path) -> None:
    def first_step(**variables: object) -> None:
        with pool_of() as pool:
            replay = TrlReplay(pool, source="offline")
            trainer = trainer_of(
                tmp_path,
                rewards=[replay.reward(correct)],
                rollout_func=replay.rollout,
                max_steps=1,
                chat_template_kwargs=variables,
            )
            trainer.processing_class.chat_template = backend.chat_template
            trainer.train()

    backend = tokenizer()
    backend.chat_template = "{% if brief %}{% endif %}" + backend.chat_template
    digest = Tokenizer(backend, ModelConfig()).template_digest
    with pool_of() as pool:
        fill(pool, solutions(1), origin("teacher", template_digest=digest))
    first_step(unread=True)
    first_step(rie=True)  # a part of a word of the template
    with pytest.raises(PoolError, match=f"chat template {digest}; this run's is"):
        first_step(brief=True)


def test_a_replay_that_is_too_long_or_beyond_the_vocabulary_is_left_out_and_said(
    pool_of: OpenPool, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    for name, stored, reason in (
        ("long", [*range(2, 22), 1], "has 21 tokens, and max_completion_length is 20"),
        ("wide", [42, 1], "token id 42 ≥ vocabulary 42"),
    ):
        with pool_of(name) as pool:
            fill(pool, {name: [stored] for name in solutions(1)})
        replay = TrlReplay(pool_of(name), source="offline", minimum=1)
        log = trained(tmp_path / name, replay, max_steps=1, max_completion_length=20).log
        assert [(line["replay/rows"], line["replay/unfit"]) for line in log] == [(0, 2)]
        assert reason in caplog.text


Make = Callable[[TrlReplay], dict[str, Any]]


def short(completions: list[Any], **_: object) -> list[float]:
    return [1.0] * (len(completions) - 1)


def uneven(replay: TrlReplay) -> Any:
    """A rollout whose rows are not in the order of groups."""
    return lambda prompts, trainer: replay.rollout([*prompts[1:], prompts[0]], trainer)


@pytest.mark.parametrize(
    ("make", "sentence"),
    [
        (
            lambda r: {"num_generations": 2},
            "num_generations = 2 with count = 2: a group needs a fresh response; make it 3",
        ),
        (lambda r: {"rewards": [correct]}, "no replay.reward: give it reward_funcs=[replay.reward(f)]"),
        (lambda r: {"rollout_func": None}, "replay.reward and not rollout_func=replay.rollout: give it both"),
        (
            lambda r: {"rewards": [r.reward(short)]},
            "short returned 7 rewards for 8 completions of 8 prompts: one for each",
        ),
        (
            lambda r: {"rollout_func": uneven(r)},
            "of num_generations = 4 and of two prompts: a step's rows must be whole groups",
        ),
    ],
    ids=["group", "no reward", "no rollout", "misaligned", "split groups"],
)
def test_a_trainer_that_cannot_replay_is_told_so(pool_of: OpenPool, tmp_path: Path, make: Make, sentence: str) -> None:
    replay = TrlReplay(pool_of(), count=2)
    given: dict[str, Any] = {"rollout_func": replay.rollout} | make(replay)
    given.setdefault("rewards", None)
    trainer = trainer_of(tmp_path, **given | {"rewards": given["rewards"] or [replay.reward(correct)], "max_steps": 1})
    with pytest.raises(ConfigError) as refused:
        trainer.train()
    assert sentence in str(refused.value)


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        ({"method": LATE}, f'replay.method = "{LATE}", or replay.only_below: rewards would say who gets replays'),
        ({"only_below": 0.5}, "or replay.only_below: rewards would say who gets replays"),
        ({"stored_logprobs": True}, "stored_logprobs needs use_vllm and vllm_importance_sampling_correction"),
        (
            {"reference": "solution"},
            "reference = 'solution': train_dataset has no such column; it has ['prompt', 'answer']",
        ),
    ],
    ids=lambda value: str(value)[:20],
)
def test_options_that_trl_cannot_follow_are_refused(
    pool_of: OpenPool, tmp_path: Path, given: dict[str, Any], sentence: str
) -> None:
    with pytest.raises(RlepError) as refused:
        trained(tmp_path, TrlReplay(pool_of(), **given), max_steps=1)
    assert sentence in str(refused.value)


IMAGE, PARTS = {"type": "image"}, {"type": "text", "text": "How many?"}


def test_prompts_of_texts_are_named_by_them_and_images_are_refused(pool_of: OpenPool, tmp_path: Path) -> None:
    """Two images with one text would be one prompt in the pool."""
    replay = TrlReplay(pool_of())
    trainer = trainer_of(tmp_path, rewards=[replay.reward(correct)], rollout_func=replay.rollout, max_steps=1)
    trainer.model.train()
    parts = replay._places(4 * [[{"role": "user", "content": [PARTS, PARTS]}]], trainer)
    whole = replay._places(4 * [[{"role": "user", "content": "How many?How many?"}]], trainer)
    assert parts.prompt_ids == whole.prompt_ids == 4 * [prompt_id_of("How many?How many?", "")]
    for content in ([IMAGE, PARTS], None):
        with pytest.raises(
            ConfigError, match="prompts with images, or with other parts that are no text, have no replays"
        ):
            replay.rollout(4 * [[{"role": "user", "content": content}]], trainer)


def test_one_function_says_what_a_success_is(pool_of: OpenPool, tmp_path: Path) -> None:
    replay = TrlReplay(pool_of())
    replay.reward(correct)
    with pytest.raises(ConfigError, match=r"replay.reward has correct already: one function"):
        replay.reward(short)
    model = trainer_of(tmp_path).model
    for wrong in ("org/reward-model", model):
        with pytest.raises(ConfigError, match="give it a function, which may call a reward model"):
            TrlReplay(pool_of()).reward(wrong)  # type: ignore[arg-type]


def test_a_question_with_two_references_is_refused(pool_of: OpenPool, tmp_path: Path) -> None:
    replay = TrlReplay(pool_of(), reference="answer")
    trainer = trainer_of(tmp_path, rewards=[replay.reward(correct)], rollout_func=replay.rollout, max_steps=1)
    rows = [dict(row) for row in questions(4)]
    trainer.train_dataset = questions(4).from_list([*rows, rows[0] | {"answer": "-1"}])
    with pytest.raises(ConfigError, match=r"has both '\d+' and '-1'; a pool's prompts have one"):
        trainer.train()


def test_references_of_a_stream_are_refused(pool_of: OpenPool, tmp_path: Path) -> None:
    """They would be known at its end, which it may not have."""
    replay = TrlReplay(pool_of(), reference="answer")
    trainer = trainer_of(tmp_path, rewards=[replay.reward(correct)], rollout_func=replay.rollout, max_steps=1)
    trainer.model.train()
    prompts = 4 * [questions(1)[0]["prompt"]]
    trainer.train_dataset = questions(4).to_iterable_dataset()
    with pytest.raises(ConfigError, match="reference = 'answer': train_dataset is a stream"):
        replay.rollout(prompts, trainer)


def test_the_hook_is_grpos_alone() -> None:
    """When ``RLOOTrainer`` gets ``rollout_func``, docs/how-to/replay-in-trl.md is to say so."""
    import trl  # after the scene has hidden vLLM from it

    assert "rollout_func" in inspect.signature(trl.GRPOTrainer).parameters
    assert "rollout_func" not in inspect.signature(trl.RLOOTrainer).parameters


@pytest.mark.parametrize("installed", ["1.0.0", "1.8.0", "1.15.0", "1.17.0.dev0", "11.6"])
def test_another_version_of_trl_is_refused_before_a_model_is_loaded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, installed: str
) -> None:
    metadata = tmp_path / f"trl-{installed}.dist-info" / "METADATA"
    metadata.parent.mkdir()
    metadata.write_text(f"Metadata-Version: 2.1\nName: trl\nVersion: {installed}\n")
    monkeypatch.syspath_prepend(tmp_path)
    with PoolClient("127.0.0.1:1", pool="one") as pool, pytest.raises(ConfigError) as refused:
        TrlReplay(pool)
    assert str(refused.value) == f"TrlReplay needs TRL 1.16, installed is {installed}: pip install 'trl==1.16.*'"
