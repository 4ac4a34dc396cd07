"""On-policy distillation: a teacher, of another size, stands in the reference policy's place."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM, LlamaConfig, PreTrainedModel

from rlep.algorithms.packing import plain_batch
from rlep.core.types import SequenceBatch
from rlep.engines.learner.rank import LearnerRank
from tests.engines.learner.learner_cases import (
    SIZES,
    VOCABULARY,
    padded_logprobs,
    ragged_batch,
    relative_error,
)
from tests.engines.learner.learner_process import (
    NO_CLIP,
    gradients_of_first_update,
    run_ranks,
    save_batch,
    single_ranks,
    weights_of,
)

Start = Callable[..., LearnerRank]
WIDER = {"hidden_size": 48, "intermediate_size": 80, "num_hidden_layers": 3, "num_attention_heads": 6}


@pytest.fixture(scope="module")
def teacher(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A larger model of another family, with the policy's vocabulary."""
    directory = tmp_path_factory.mktemp("teacher")
    torch.manual_seed(1)
    larger = AutoModelForCausalLM.from_config(LlamaConfig(**SIZES | WIDER), dtype=torch.float32)
    with torch.no_grad():
        for parameter in larger.parameters():
            if parameter.ndim > 1:
                parameter.mul_(6.0)
    larger.save_pretrained(directory)
    return directory


@pytest.fixture
def start(tmp_path: Path, model: Path) -> Iterator[Start]:
    with single_ranks(tmp_path, model) as single:
        yield single


def loaded(directory: Path) -> PreTrainedModel:
    read: PreTrainedModel = AutoModelForCausalLM.from_pretrained(directory, dtype=torch.float64)
    return read.eval()


def distilled(teacher: Path, **loss: Any) -> dict[str, Any]:
    return {"kl_coef": 0.5, "kl_estimator": "k2", "reward_coef": 0, "teacher": str(teacher), **loss}


def wanted_of(model: Path, teacher: Path, batch: SequenceBatch) -> tuple[float, dict[str, torch.Tensor]]:
    """0.5 times the mean of (log p - log p_teacher)^2 / 2 over the trained tokens, replayed ones among them, in float64."""
    student = loaded(model)
    own = padded_logprobs(student, batch)[0]
    with torch.no_grad():
        taught = padded_logprobs(loaded(teacher), batch)[0]
    terms = torch.cat([(own[row] - taught[row]).square() / 2 for row in np.flatnonzero(batch.trained)])
    loss = 0.5 * terms.mean()
    loss.backward()
    names = {id(parameter): name for name, parameter in student.named_parameters()}
    gradients = {names[id(weight)]: weight.grad for weight in student.parameters() if weight.grad is not None}
    return float(loss.detach()), gradients


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_a_teacher_of_the_policys_own_weights_has_nothing_to_teach(dtype: str, start: Start, model: Path) -> None:
    """To the bit, though the policy's shards are in float32 and the teacher's in the compute type."""
    report = start(loss=distilled(model), learner={"dtype": dtype}).update(ragged_batch(), rollout=0)
    assert (report.loss, report.grad_norm, report.sources["fresh/reference_kl"]) == (0.0, 0.0, 0.0)


def test_without_rewards_the_loss_is_the_kl_to_the_larger_teacher_on_fresh_and_replayed_tokens(
    start: Start, model: Path, teacher: Path
) -> None:
    batch = ragged_batch()
    assert batch.replayed.any()
    loss, gradients = wanted_of(model, teacher, batch)
    learner = start(loss=distilled(teacher), micro_batch_tokens=40)
    report = learner.update(batch, rollout=0)
    assert report.loss == pytest.approx(loss, rel=1e-6)
    assert loss > 0.1
    assert relative_error(gradients_of_first_update(learner), gradients) < 1e-6


def test_two_ranks_beside_replays_and_rewards_add_the_kl_to_the_policys_loss(
    model: Path, teacher: Path, tmp_path: Path
) -> None:
    batch = ragged_batch()
    path = save_batch(tmp_path / "batch.npz", batch)

    def run(name: str, loss: dict[str, Any]) -> tuple[dict[str, Any], dict[str, torch.Tensor]]:
        settings = {"micro_batch_tokens": 40, "clip_norm": NO_CLIP, "loss": loss}
        file = tmp_path / f"{name}.pt"
        report, _ = run_ranks(tmp_path, model, 2, [("update", path, 0), ("gradients", str(file))], **settings)
        gradients: dict[str, torch.Tensor] = torch.load(file, weights_only=True)
        return report, gradients

    rewarded, of_rewards = run("rewards", {})
    both, of_both = run("both", distilled(teacher, reward_coef=0.25))
    loss, of_kl = wanted_of(model, teacher, batch)
    assert both["loss"] == pytest.approx(0.25 * rewarded["loss"] + loss, rel=1e-6)
    summed = {name: 0.25 * of_rewards[name].double() + of_kl[name] for name in of_kl}
    assert relative_error(of_both, summed) < 1e-6
    assert both["sources"]["replay/reference_kl"] > 0.1


def test_with_adapters_the_teacher_and_not_the_base_model_is_the_reference(
    start: Start, model: Path, teacher: Path
) -> None:
    batch = ragged_batch()
    loss, _ = wanted_of(model, teacher, batch)
    report = start(loss=distilled(teacher), learner={"lora_rank": 2}).update(batch, rollout=0)
    assert report.loss == pytest.approx(loss, rel=1e-5)  # B is 0 at the start


def test_in_bfloat16_it_is_held_in_two_bytes_and_sleeps_with_the_policy(
    start: Start, model: Path, teacher: Path
) -> None:
    learner = start(loss=distilled(teacher), learner={"dtype": "bfloat16"})
    before = learner.update(ragged_batch(), rollout=0).loss
    assert learner._reference is not None
    held = [weight.to_local() for weight in learner._reference.parameters()]
    assert {weight.dtype for weight in held} == {torch.bfloat16}
    learner.sleep()
    learner.wake()
    again = start(loss=distilled(teacher), learner={"dtype": "bfloat16"})
    again.sleep()
    again.wake()
    assert again.update(ragged_batch(), rollout=0).loss == before


@torch.no_grad()
def sampled(student: PreTrainedModel, prompts: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
    """Six more tokens of each prompt ``[S, P + 6]``."""
    tokens = prompts
    for _ in range(6):
        logits = student(input_ids=tokens).logits[:, -1]
        tokens = torch.cat([tokens, torch.multinomial(logits.softmax(-1), 1, generator=generator)], dim=1)
    return tokens


@torch.no_grad()
def distance(student: PreTrainedModel, teacher: PreTrainedModel, tokens: torch.Tensor) -> float:
    """KL(student || teacher) of whole distributions, a token."""
    own, taught = (part(input_ids=tokens).logits[:, 2:-1].log_softmax(-1) for part in (student, teacher))
    return float((own.exp() * (own - taught)).sum(-1).mean())


@pytest.mark.parametrize("estimator", ["k1", "k2", "k3"])
def test_a_student_that_samples_for_itself_comes_closer_to_its_teacher(
    estimator: str, start: Start, model: Path, teacher: Path
) -> None:
    loss = {"kl_coef": 1.0, "kl_estimator": estimator, "reward_coef": 0, "teacher": str(teacher)}
    learner = start(loss=loss, update={"lr": 3e-3, "warmup": 0, "clip_norm": 1.0})
    student, taught = loaded(model), loaded(teacher)
    draw = torch.Generator().manual_seed(0)
    distances = []
    for step in range(41):
        student.load_state_dict(weights_of(learner), strict=False)
        prompts = torch.randint(0, VOCABULARY, (48, 3), generator=draw)
        tokens = sampled(student, prompts, draw)
        distances.append(distance(student, taught, tokens))
        batch = plain_batch(tokens.flatten().numpy(), [9] * 48, [3] * 48)
        learner.update(replace(batch, old_logprobs=learner.score(batch)), rollout=step)
    first, last = np.mean(distances[:3]), np.mean(distances[-3:])
    assert last < 0.75 * first, distances
