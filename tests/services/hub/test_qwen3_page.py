"""The page *Train Qwen3 with rlep*, as far as it needs no GPU: its commands against a hub on loopback."""

from __future__ import annotations

import io
import json
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from safetensors.numpy import save
from typer.testing import CliRunner

from rlep.cli import app
from rlep.hub.data_files import CONVERSION
from tests.contract.test_command_blocks import files
from tests.contract.test_documents import ROOT, shell_lines
from tests.fake_hub import Hub, files_of
from tests.qwen3 import write_tokenizer
from tests.small import options

PAGE = ROOT / "docs" / "how-to" / "train-qwen3.md"
QWEN3_1_7B = {
    "model_type": "qwen3",
    "architectures": ["Qwen3ForCausalLM"],
    "hidden_size": 2048,
    "intermediate_size": 6144,
    "num_hidden_layers": 28,
    "num_attention_heads": 16,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "vocab_size": 151936,
    "max_position_embeddings": 40960,
    "tie_word_embeddings": True,
    "hidden_act": "silu",
    "attention_bias": False,
}

THINKING = ("model.template.enable_thinking=true", "rollout.max_tokens=16384", "verifier.answer_after=</think>")
"""The page's column for thinking."""


def parquet(rows: Sequence[Mapping[str, str]]) -> bytes:
    file = io.BytesIO()
    pq.write_table(pa.Table.from_pylist([dict(row) for row in rows]), file)
    return file.getvalue()


@pytest.fixture
def place(hub: Hub, tmp_path: Path) -> Path:
    """What the page's reader has: configs, the page's own file, and the names that it holds."""
    write_tokenizer(tmp_path / "qwen3")
    there = files_of(tmp_path / "qwen3")
    weights = save({"model.norm.weight": np.ones(2048, np.float32)})
    config = json.dumps(QWEN3_1_7B).encode()
    hub.push("models/Qwen/Qwen3-1.7B", there | {"config.json": config, "model.safetensors": weights})
    rows = [{"question": f"{n} + 1?", "answer": f"One more.\n#### {n + 1}"} for n in range(80)]
    sets = {"main/train/0000.parquet": parquet(rows[:70]), "main/test/0000.parquet": parquet(rows[70:])}
    hub.push("datasets/openai/gsm8k", sets, branch=CONVERSION)
    (tmp_path / "configs").symlink_to(ROOT / "configs")
    (tmp_path / "qwen3.toml").write_text(files(PAGE)["qwen3.toml"])
    return tmp_path


def said(command: str, *settings: str) -> str:
    """What the page's command prints."""
    (words,) = [words[1:] for words in shell_lines(PAGE.read_text()) if words[1] == command]
    return CliRunner().invoke(app, [*words, *options(list(settings))]).output


def test_the_page_plans_and_checks_names_of_the_hub(place: Path) -> None:
    planned = said("plan")
    assert "70 questions from 70 rows (longest prompt 94 tokens)" in planned
    assert "fits: learner 37.9 GiB, generator 70.0 GiB of a GPU's 80.0 GiB" in planned
    checked = said("check")
    assert "ok      training data: 70 questions from 70 rows" in checked
    assert "ok      verifier: math, which can grade against 80 references" in checked
    for settings, count in (((), 0), (("verifier.answer_after=</think>",), 1), (THINKING, 0)):
        assert said("check", *settings).count("prompts end in </think>, and verifier.answer_after asks it") == count
