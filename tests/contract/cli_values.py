"""A small run for the tests of the command line: the shipped model, four questions, and how words are put together."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path

from rlep.check.inputs import Subject
from rlep.config.settings import load_config
from rlep.driver.run_directory import Facts, RunDirectory

MODEL = Path(__file__).parents[2] / "rlep" / "quickstart" / "model"
ROWS = [{"problem": f"{n} + 1", "answer": str(n + 1)} for n in range(4)]


def jsonl(path: Path, rows: Sequence[Mapping[str, object]]) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def arguments(command: str, config: str, overrides: Sequence[str]) -> list[str]:
    return [command, config, *(word for text in overrides for word in ("--set", text))]


def opened(overrides: Sequence[str], command: str) -> RunDirectory:
    """The run's directory, as the command itself opens it."""
    config = load_config([], overrides)
    inputs = Subject(config).inputs()
    assert inputs.train is not None
    digests = (inputs.model_digest, inputs.tokenizer.digest, inputs.train.digest)
    facts = Facts(command, *digests, asdict(inputs.train.report), grader_digest=inputs.grader_digest)
    return RunDirectory(config.run.directory, config, facts)
