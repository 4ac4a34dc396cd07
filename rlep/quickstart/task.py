"""The quickstart's files: a tiny base model, training and held-out questions, all in the formats a 7B run reads."""

from __future__ import annotations

import json
from dataclasses import dataclass
from importlib import resources
from pathlib import Path

from rlep.core.files import replace_with, sha256_of, write_whole
from rlep.core.types import Message
from rlep.data.prompt_files import write_verl
from rlep.data.prompt_rows import PromptRow
from rlep.quickstart.problems import Problem, draw_task

TRAIN_COUNT = 512
HELDOUT_COUNT = 200
DATA_SOURCE = "quickstart"
MANIFEST = "manifest.json"


@dataclass(frozen=True, slots=True)
class TaskFiles:
    """Paths of the quickstart's files."""

    model_dir: Path
    """The base policy: Hugging Face config, safetensors weights, tokenizer."""
    train: Path
    """512 questions, verl-style Parquet."""
    heldout: Path
    """200 other questions, verl-style Parquet."""


def build_task(directory: Path, *, seed: int = 0) -> TaskFiles:
    """Write the task into ``directory`` unless it is already there, whole and of the same seed.

    The base model is the same for every seed; ``seed`` chooses the problems. Every file is replaced in one go and the
    manifest of digests is written last, so that an interrupted build is noticed and repeated.
    """
    files = TaskFiles(directory / "model", directory / "train.parquet", directory / "heldout.parquet")
    manifest = directory / MANIFEST
    if _is_whole(manifest, seed):
        return files
    manifest.unlink(missing_ok=True)
    files.model_dir.mkdir(parents=True, exist_ok=True)
    written = [files.train, files.heldout]
    train, heldout = task_problems(seed)
    _write_problems(files.train, train, "train")
    _write_problems(files.heldout, heldout, "heldout")
    for source in resources.files("rlep.quickstart").joinpath("model").iterdir():
        written.append(files.model_dir / source.name)
        write_whole(written[-1], source.read_bytes(), shared=True)
    digests = {path.relative_to(directory).as_posix(): sha256_of(path) for path in sorted(written)}
    write_whole(manifest, json.dumps({"seed": seed, "files": digests}, indent=2), shared=True)
    return files


def task_problems(seed: int) -> tuple[list[Problem], list[Problem]]:
    """The 512 training and 200 held-out problems of a seed: distinct keys, none seen by the base model."""
    problems = draw_task(seed, TRAIN_COUNT + HELDOUT_COUNT)
    return problems[:TRAIN_COUNT], problems[TRAIN_COUNT:]


def _is_whole(manifest: Path, seed: int) -> bool:
    try:
        stored = json.loads(manifest.read_text(encoding="utf-8"))
        if stored["seed"] != seed:
            return False
        return all(sha256_of(manifest.parent / name) == digest for name, digest in stored["files"].items())
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return False


def _write_problems(path: Path, problems: list[Problem], split: str) -> None:
    rows = [PromptRow((Message("user", problem.question),), str(problem.answer), DATA_SOURCE) for problem in problems]
    with replace_with(path, shared=True) as part:
        write_verl(part, rows, split=split)
