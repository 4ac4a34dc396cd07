"""The quickstart's base model: its exact size and tokenizer, and that it can do little but not nothing."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM

from rlep.core.seeds import generator_for
from rlep.core.types import Message
from rlep.engines.tokenizer import Tokenizer, load_tokenizer
from rlep.quickstart.base_model import PretrainStage, demonstration, save_base, train_base
from rlep.quickstart.problems import Problem
from rlep.quickstart.task import TaskFiles, build_task, task_problems

SAMPLES = 64
LONGEST_ANSWER = 48


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> TaskFiles:
    return build_task(tmp_path_factory.mktemp("task"))


@pytest.fixture(scope="module")
def tokenizer(files: TaskFiles) -> Tokenizer:
    return load_tokenizer(files.model_dir)


def load(model_dir: Path) -> Any:
    return AutoModelForCausalLM.from_pretrained(str(model_dir), dtype=torch.float32).eval()


@pytest.fixture
def one_thread() -> Iterator[None]:
    """Threads only get in each other's way in matrices this small."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@torch.no_grad()
def sample(model: Any, ids: torch.Tensor) -> list[list[int]]:
    """One answer at temperature 1 to each row of ``ids [B, T]``, cut before its EOS; empty where there is none."""
    generator = torch.Generator().manual_seed(0)
    cache, fed, answers = None, ids, []
    for _ in range(LONGEST_ANSWER):
        output = model(input_ids=fed, past_key_values=cache, use_cache=True)
        cache = output.past_key_values
        fed = torch.multinomial(output.logits[:, -1].softmax(-1), 1, generator=generator)
        answers.append(fed)
    rows = torch.cat(answers, dim=1).tolist()
    return [row[: row.index(1)] if 1 in row else [] for row in rows]


def pass_rates(model: Any, tokenizer: Tokenizer, problems: list[Problem]) -> tuple[float, float]:
    """pass@1 and pass@64 over 64 answers to each problem: the right number in a box, and then the end."""
    counts = []
    for steps in (1, 2, 3):  # prompts of one length at a time
        alike = [problem for problem in problems if len(problem.steps) == steps]
        prompts = [tokenizer.encode_prompt([Message("user", problem.question)]) for problem in alike]
        answers = sample(model, torch.from_numpy(np.stack(prompts)).long().repeat_interleave(SAMPLES, dim=0))
        for number, problem in enumerate(alike):
            mine = answers[number * SAMPLES : (number + 1) * SAMPLES]
            texts = [tokenizer.decode(np.array(answer, dtype=np.int32)) for answer in mine]
            counts.append(sum(text.endswith(f"\\boxed{{{problem.answer}}}") for text in texts))
    return sum(counts) / (SAMPLES * len(counts)), sum(map(bool, counts)) / len(counts)


def test_the_base_has_exactly_109888_parameters_and_a_tied_head(files: TaskFiles) -> None:
    tensors = load_file(files.model_dir / "model.safetensors")
    # Embedding 42*64; per layer q, k, v 64*64 + 64 each, o 64*64, MLP 3*64*192, two norms of 64; a last norm of 64.
    assert (
        sum(tensor.numel() for tensor in tensors.values()) == 42 * 64 + 2 * (12480 + 4096 + 36864 + 128) + 64 == 109888
    )
    assert all(tensor.dtype == torch.float32 for tensor in tensors.values())
    assert "lm_head.weight" not in tensors
    config = json.loads((files.model_dir / "config.json").read_text())
    assert (config["model_type"], config["vocab_size"], config["tie_word_embeddings"]) == ("qwen2", 42, True)
    assert config["eos_token_id"] == 1


def test_questions_and_answers_have_the_lengths_they_should_and_come_back_exactly(tokenizer: Tokenizer) -> None:
    train, heldout = task_problems(0)
    prompts, answers = [], []
    for problem in train + heldout:
        question = tokenizer.encode_prompt([Message("user", problem.question)])
        answer = tokenizer.encode_response(problem.solution)
        assert tokenizer.decode(question) == problem.question
        assert tokenizer.decode(answer) == problem.solution
        prompts.append(len(question))
        answers.append(len(answer))
    assert set(prompts) == {11, 14, 17}
    assert min(answers) >= 17
    assert max(answers) == 39


def test_what_the_teacher_writes_can_be_tokenised(tokenizer: Tokenizer) -> None:
    generator = generator_for(0, "test")
    for problem in task_problems(0)[0][:50]:
        text = demonstration(problem, generator)
        ids = tokenizer.encode_response(text)
        assert 3 not in ids.tolist()  # <unk>
        assert tokenizer.decode(ids) == text


@pytest.mark.usefixtures("one_thread")
def test_the_base_solves_some_and_could_solve_most(files: TaskFiles, tokenizer: Tokenizer) -> None:
    first, any_of_64 = pass_rates(load(files.model_dir), tokenizer, task_problems(0)[1][:40])
    assert 0.08 <= first <= 0.20
    assert 0.60 <= any_of_64 <= 0.98


@pytest.mark.usefixtures("one_thread")
def test_a_base_trained_anew_learns_the_same_and_is_saved_whole(tokenizer: Tokenizer, tmp_path: Path) -> None:
    stages = (PretrainStage("lessons", 2, 4e-3), PretrainStage("teacher", 1, 2e-3))
    progress: list[tuple[str, int]] = []
    model = train_base(lambda stage, done: progress.append((stage, done)), stages=stages)
    assert progress == [("lessons", 1), ("lessons", 2), ("teacher", 1)]
    again = train_base(stages=stages)
    assert all(torch.equal(one, two) for one, two in zip(model.parameters(), again.parameters(), strict=True))
    save_base(tmp_path, model)
    assert load_tokenizer(tmp_path).digest == tokenizer.digest
    saved = load(tmp_path)
    assert all(torch.equal(one, two) for one, two in zip(model.parameters(), saved.parameters(), strict=True))
