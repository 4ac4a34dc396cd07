"""The README's lines for TRL: they train, with the quickstart's model and questions in the place of the hub's."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

from tests.contract.test_documents import ROOT
from tests.services.integrations.trl_scene import MODEL, own_environment, questions

STATEMENTS = r"^```python\n(.*?)^```"
HERE = {
    '"Qwen/Qwen2.5-0.5B-Instruct"': "MODEL",
    '"trl-lib/DeepMath-103K", ': '"json", data_files="asked.jsonl", ',
    "GRPOTrainer(\n": "GRPOTrainer(args=SETTINGS, processing_class=TOKENIZER,\n",
}
"""The README's model, data, pool and settings, and those of this machine; questions and passes are as many as in the README."""
SCENE = """
import sys
sys.modules["vllm"] = None  # TRL would import it, which takes half a minute
from transformers import GenerationMixin, PreTrainedTokenizerFast
generated, generate = [], GenerationMixin.generate
def counted(*args, **given):
    rows = generate(*args, **given)
    generated.append(len(rows))
    return rows
GenerationMixin.generate = counted
from trl import GRPOConfig
MODEL = sys.argv[1]
TOKENIZER = PreTrainedTokenizerFast.from_pretrained(MODEL, padding_side="left")
SETTINGS = GRPOConfig("out", max_completion_length=32, report_to=[], bf16=False, logging_steps=64)
"""
RESULT = """
lines = [int(line["replay/rows"]) for line in trainer.state.log_history if "loss" in line]
print("replayed", *lines, "of", 8 * trainer.state.global_step, "generated", sum(generated))
"""


def test_the_lines_for_trl_train_with_replays(served: str, tmp_path: Path) -> None:
    (lines,) = re.findall(STATEMENTS, (ROOT / "README.md").read_text(), re.M | re.S)
    for theirs, ours in HERE.items():
        assert lines.count(theirs) == 1, theirs
        lines = lines.replace(theirs, ours)
    asked = questions(64)
    asked.rename_column("answer", "solution").to_json(tmp_path / "asked.jsonl")
    (tmp_path / "address").write_text(f"{served}\n")
    done = subprocess.run(
        [sys.executable, "-c", SCENE + lines + RESULT, MODEL],
        cwd=tmp_path,
        env=own_environment() | {"HF_HOME": str(tmp_path / "hub"), "HF_HUB_OFFLINE": "1", "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    (counts,) = re.findall(r"^replayed (\d+) (\d+) (\d+) of (\d+) generated (\d+)$", done.stdout, re.M)
    first, second, third, rows, generated = map(int, counts)
    assert (first, rows) == (0, 3 * 64 * 8)  # a pass each: eight responses to each question
    assert second > 0
    assert third > 0
    assert first + second + third == rows - generated
