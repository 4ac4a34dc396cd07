"""The README's lines for TRL: they train, with the quickstart's model and questions in the place of the hub's."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

from rlep import PoolClient
from tests.contract.test_documents import ROOT
from tests.services.integrations.trl_scene import MODEL, fill, own_environment, questions, solutions

STATEMENTS = r"^```python\n(.*?)^```"
HERE = {
    '"Qwen/Qwen2.5-0.5B-Instruct"': "MODEL",
    'load_dataset("trl-lib/DeepMath-103K", split="train")': 'load_dataset("json", data_files="asked.jsonl", split="train")',
    '"127.0.0.1:7171", pool="math"': "ADDRESS, pool=POOL",
    "GRPOTrainer(\n": "GRPOTrainer(args=SETTINGS, processing_class=TOKENIZER,\n",
}
"""The README's model, data, pool and settings, and those of this machine."""
SCENE = """
import sys
sys.modules["vllm"] = None  # TRL would import it, which takes half a minute
from transformers import PreTrainedTokenizerFast
from trl import GRPOConfig
MODEL, ADDRESS, POOL = sys.argv[1:]
TOKENIZER = PreTrainedTokenizerFast.from_pretrained(MODEL, padding_side="left")
SETTINGS = GRPOConfig("out", max_steps=2, per_device_train_batch_size=8, num_generations=8, max_completion_length=32,
    report_to=[], bf16=False, logging_steps=1)
"""
RESULT = """
print("replayed", [line["replay/rows"] for line in trainer.state.log_history if "loss" in line])
"""


def test_the_lines_for_trl_train_with_replays(served: str, tmp_path: Path) -> None:
    (lines,) = re.findall(STATEMENTS, (ROOT / "README.md").read_text(), re.M | re.S)
    for theirs, ours in HERE.items():
        assert lines.count(theirs) == 1, theirs
        lines = lines.replace(theirs, ours)
    asked = questions(4)
    asked.rename_column("answer", "solution").to_json(tmp_path / "asked.jsonl")
    with PoolClient(served, pool="readme") as pool:
        fill(pool, solutions(2))
    done = subprocess.run(
        [sys.executable, "-c", SCENE + lines + RESULT, MODEL, served, "readme"],
        cwd=tmp_path,
        env=own_environment() | {"HF_HOME": str(tmp_path / "hub"), "HF_HUB_OFFLINE": "1", "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "replayed [2.0, 2.0]" in done.stdout
