"""The recipe for Qwen3 as it is shipped, against a hub with a tokenizer like Qwen3's and rows like GSM8K's."""

from __future__ import annotations

from pathlib import Path

import pytest

from rlep.config.settings import load_config
from rlep.config.shipped import file_of
from rlep.core.errors import ModelError
from rlep.core.types import Message
from rlep.data.prompt_files import read_rows
from rlep.engines.tokenizer import load_tokenizer
from rlep.hub.repository import CONVERSION
from rlep.hub.resolve import model_directory, resolve
from tests.fake_hub import Hub
from tests.qwen3 import write_tokenizer
from tests.services.hub.test_hub_data import shard

RECIPE = file_of("qwen3/gsm8k")


def push(hub: Hub, name: str, directory: Path) -> None:
    files = {path.name: path.read_bytes() for path in directory.iterdir()}
    hub.push(f"models/Qwen/{name}", files | {"config.json": b"{}", "model.safetensors": b"weights"})


def test_it_asks_gsm8ks_questions_without_thinking(hub: Hub, tmp_path: Path) -> None:
    write_tokenizer(tmp_path / "qwen3")
    push(hub, "Qwen3-1.7B", tmp_path / "qwen3")
    hub.push("datasets/openai/gsm8k", {"README.md": b""})
    parts = {f"main/{split}/0000.parquet": shard((f"1 + 1, {split}?", "So\n#### 2")) for split in ("train", "test")}
    hub.push("datasets/openai/gsm8k", parts, branch=CONVERSION)
    config = resolve(load_config([RECIPE]), lambda _: None)

    files = [*config.data.train_paths, *config.data.evaluation]
    rows = [row for file in files for row in read_rows(file)]
    assert [(row.question, row.reference, row.data_source) for row in rows] == [
        ("1 + 1, train?", "2", "gsm8k"),
        ("1 + 1, test?", "2", "gsm8k"),
    ]
    tokenizer = load_tokenizer(model_directory(config.model), config.model)
    asked = tokenizer.decode(tokenizer.encode_prompt([Message("user", rows[0].question)]))
    assert asked == (
        "system\nReason step by step, and put the final answer in \\boxed{}.\n"
        "user\n1 + 1, train?\nassistant\n<think>\n\n</think>\n\n"
    )


def test_a_model_without_the_switch_needs_template_none(hub: Hub, tmp_path: Path) -> None:
    write_tokenizer(tmp_path / "instruct")
    template = tmp_path / "instruct" / "chat_template.jinja"
    lines = template.read_text().splitlines()
    template.write_text("\n".join(line for line in lines if "enable_thinking" not in line))
    push(hub, "Qwen3-4B-Instruct-2507", tmp_path / "instruct")
    question = [Message("user", "1 + 1?")]

    def asked(*overrides: str) -> str:
        config = load_config([RECIPE], ["model.path=Qwen/Qwen3-4B-Instruct-2507", "data.evaluation=[]", *overrides])
        tokenizer = load_tokenizer(model_directory(config.model), config.model)
        return tokenizer.decode(tokenizer.encode_prompt(question))

    with pytest.raises(ModelError, match="enable_thinking"):
        asked()
    assert asked("model.template=none").endswith("user\n1 + 1?\nassistant\n")
