"""The run that tests of the command line start from."""

from pathlib import Path

import pytest

from tests.contract.cli_values import MODEL, ROWS, jsonl


@pytest.fixture
def overrides(tmp_path: Path) -> list[str]:
    """A run of the shipped model on four questions, all in ``tmp_path``."""
    return [
        f'model.path="{MODEL}"',
        f'data.train="{jsonl(tmp_path / "train.jsonl", ROWS)}"',
        f'run.directory="{tmp_path / "run"}"',
        "data.max_prompt_tokens=40",
        "rollout.prompts=2",
        "rollout.fresh=4",
        "rollout.max_tokens=48",
        "reward.overlong_buffer=8",
        "update.prompts=1",
    ]


@pytest.fixture
def config(tmp_path: Path) -> str:
    (tmp_path / "empty.toml").write_text("")
    return str(tmp_path / "empty.toml")
