"""The bases that the studies begin with are in the repository, and read the questions of their tasks."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file
from transformers import PreTrainedTokenizerFast

from rlep.config.settings import load_config
from rlep.quickstart.toy_tokenizer import build_tokenizer
from studies.tasks import countdown, grid, guess

ROOT = Path(__file__).parents[3]
TASKS = [
    (("countdown-3.toml",), countdown.VOCABULARY, "16 11 2>54"),
    (("countdown-3.toml", "countdown-4.toml"), countdown.VOCABULARY, "7 9 9 1>11"),
    (("countdown-3.toml", "grid.toml"), grid.VOCABULARY, "*OOOOOOOOOXXXXOOOOOOOOOO#"),
    (("guess.toml",), guess.VOCABULARY, "23-81"),
]


@pytest.mark.parametrize(
    ("files", "vocabulary", "question"), TASKS, ids=["countdown-3", "countdown-4", "grid", "guess"]
)
def test_a_base_is_there_and_reads_the_questions_of_its_task(
    files: tuple[str, ...], vocabulary: tuple[str, ...], question: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(ROOT)  # from where studies are run
    path = load_config([ROOT / "studies" / "tasks" / name for name in files]).model.path
    weights = load_file(path / "model.safetensors")
    rows = len(vocabulary)
    # embedding, which is the head; two layers of attention (q, k, v with bias), feed-forward and two norms; a last norm
    layer = 4 * 64 * 64 + 3 * 64 + 3 * 64 * 192 + 2 * 64
    assert sum(array.size for array in weights.values()) == 64 * rows + 2 * layer + 64
    assert all(array.dtype == np.float32 for array in weights.values())
    made = build_tokenizer(countdown.CONTEXT, vocabulary)
    assert PreTrainedTokenizerFast.from_pretrained(str(path)).encode(question) == made.encode(question)
    assert made.unk_token_id not in made.encode(question)
