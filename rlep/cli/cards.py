"""Cards of what is pushed to the hub: a README with its front matter, of facts alone."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rlep.config.schema import Config, ModelConfig
from rlep.config.settings import differences, toml_text
from rlep.core.hub_names import hub_data
from rlep.core.plural import counted
from rlep.services.pool.files.manifest import Manifest
from rlep.services.pool.values import PoolStats

TAGS = ("rlep", "reinforcement-learning", "experience-replay")
HERE = (
    *("run.", "pool.", "cluster.", "tracking.", "generator.", "learner.", "rollouts.", "checkpoint."),
    *("model.path", "model.revision", "model.template_file", "loss.teacher", "data.train", "data.evaluation"),
)
"""Keys of one machine, which may hold paths and addresses, and those that a card states in words."""


@dataclass(frozen=True, slots=True)
class Card:
    """A README of the hub."""

    title: str
    what: str
    tags: tuple[str, ...]
    facts: Sequence[str]
    code: tuple[str, str]
    """Sentence before a block of code, and the block."""
    front: Mapping[str, object] = field(default_factory=dict)
    """Front matter beside the tags."""

    def __str__(self) -> str:
        matter = "\n".join(f"{key}: {json.dumps(value)}" for key, value in {"tags": self.tags, **self.front}.items())
        facts = "\n".join(f"* {fact}" for fact in self.facts)
        head, lines = self.code  # JSON, as in ``matter``, is YAML
        return f"---\n{matter}\n---\n\n# {self.title}\n\n{self.what}\n\n{facts}\n\n{head}:\n\n```\n{lines}\n```\n"


def pool_card(name: str, manifest: Manifest, stats: PoolStats) -> Card:
    """Return the card of a pool's export that is pushed as ``name``."""
    sealed = f"sealed with digest `{manifest.sealed}`" if manifest.sealed else f"digest `{manifest.digest}`"
    facts = [
        f"{counted(manifest.records - manifest.quarantined, 'response')} to "
        f"{counted(stats.questions_with[1], 'question')}, {sealed}",
        *([f"{counted(manifest.quarantined, 'quarantined response')} beside them"] if manifest.quarantined else ()),
        f"tokenizer `{manifest.tokenizer_digest}`"
        + (f", {manifest.vocabulary:,} token ids" if manifest.vocabulary else ""),
        f"at most {counted(manifest.cap, 'response')} a question",
        *_counted("written by", stats.by_policy),
        *_counted("graded by", stats.by_verifier),
    ]
    return Card(
        f"Experience pool {manifest.pool}",
        "Verified responses of a policy, with their log-probs, for reinforcement learning with experience replay.",
        (*TAGS, "rlep-pool"),
        facts,
        ("Put it into a pool of yours", f"rlep pool pull {name} --embedded runs/shared --name {manifest.pool}"),
        {"configs": [{"config_name": "default", "data_files": "part-*.parquet"}]},  # manifest.json is no data
    )


def model_card(name: str, config: Config, step: int, evaluations: Sequence[Mapping[str, Any]]) -> Card:
    """Return the card of a run's model that is pushed as ``name``; ``evaluations``: rows of ``evaluations.jsonl`` of its step."""
    base = str(config.model.path) if config.model.revision else ""
    data = [str(one.path) if hub_data(one.path) else one.path.name for one in config.data.train]
    sets = sorted({found.name for one in config.data.train if (found := hub_data(one.path))})
    facts = [
        f"base model: {_model(config.model)}",
        f"training questions: {', '.join(data)}",
        f"method: {_method(config)}, {counted(step, 'step')} of {counted(config.rollout.prompts, 'question')} with "
        f"{counted(config.rollout.fresh, 'fresh response')}",
        *map(_evaluated, evaluations),
    ]
    front = (
        ({"base_model": base} if base else {}) | ({"datasets": sets} if sets else {}) | {"library_name": "transformers"}
    )
    settings = [
        f"{key} = {toml_text(value)}"
        for key, (_, value) in differences(Config(), config).items()
        if value is not None and not key.startswith(HERE)
    ]
    return Card(
        name,
        "Trained by reinforcement learning with verifiable rewards and experience replay.",
        TAGS,
        facts,
        ("Settings that are not rlep's defaults", "\n".join(settings)),
        front,
    )


def _method(config: Config) -> str:
    replay = (
        f"{config.replay.method} with {counted(config.replay.count, 'replay')} a question"
        if config.replay.count
        else "no replay"
    )
    rank = config.learner.lora_rank
    merged = f", LoRA of rank {rank}, merged" if rank else ""
    taught = "".join(f", distilled from {_model(model)}" for model in config.models[1:])
    return f"{config.advantage.estimator} advantages, {replay}{merged}{taught}"


def _model(model: ModelConfig) -> str:
    return f"{model.path}, commit `{model.revision}`" if model.revision else "a directory of its own"


def _evaluated(row: Mapping[str, Any]) -> str:
    share = f"{100 * row['avg']:.1f} %"
    if row["ci"]:  # one question has no interval
        low, high = row["ci"]
        share += f" ({100 * low:.1f} to {100 * high:.1f}: {row['interval']})"
    return f"{row['data_source']}: avg@{row['n']} {share}, {counted(row['questions'], 'question')}"


def _counted(what: str, counts: Mapping[str, int]) -> Iterable[str]:
    return (f"{what} `{name}`: {count:,}" for name, count in sorted(counts.items()))


def files_below(directory: Path) -> dict[str, Path | bytes]:
    """Return a directory's own files by name, without hidden ones."""
    return {path.name: path for path in sorted(directory.iterdir()) if path.is_file() and not path.name.startswith(".")}


def link_file(file: Path, target: Path) -> None:
    """Give a file another name, which stays when the first one goes; a copy where the file system has no hard links."""
    try:
        os.link(file, target)
    except OSError:
        shutil.copyfile(file, target)
