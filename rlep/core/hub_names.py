"""Names of what lies on the Hugging Face hub: a model's ``ORG/NAME``, a data set's ``hf:ORG/NAME[/CONFIG]:SPLIT[@COMMIT]``."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from rlep.core.errors import ConfigError

_PART = r"[A-Za-z0-9](?:[A-Za-z0-9_.-]*[A-Za-z0-9_])?"
_NAME = re.compile(rf"{_PART}/{_PART}")
_LONGEST = 96
_COMMIT = re.compile(r"[0-9a-f]{40}")
_DATA = re.compile(r"hf:(?P<name>[^/:@]+/[^/:@]+)(?:/(?P<subset>[^/:@]+))?:(?P<split>[\w.-]+)(?:@(?P<commit>\w+))?")
FORM = "hf:ORG/NAME:SPLIT, or hf:ORG/NAME/CONFIG:SPLIT"


def is_name(text: str) -> bool:
    """Tell whether the hub may have a repository of this name: ``ORG/NAME`` as it allows them."""
    odd = "--" in text or ".." in text or text.endswith(".git") or len(text) > _LONGEST
    return _NAME.fullmatch(text) is not None and not odd


def is_commit(revision: str | None) -> bool:
    """Tell whether a revision is a whole commit hash, which names the same files for ever."""
    return revision is not None and _COMMIT.fullmatch(revision) is not None


def is_model_id(path: Path, *, asked: bool = False, within: Path = Path()) -> bool:
    """Tell whether a path is a model's id: two parts, and no directory. Its first part is none here either, unless ``asked``.

    So a slip in ``models/Qwen3-4B`` asks nobody where there is a directory ``models``.
    """
    if not is_name(str(path)) or (within / path).is_dir():
        return False
    return asked or not (within / path).parent.is_dir()


@dataclass(frozen=True, slots=True)
class HubData:
    """A split of a data set on the hub, e.g. ``HubData("openai/gsm8k", "main", "train")``."""

    name: str
    """``ORG/NAME``."""
    subset: str | None
    """The data set's configuration; None: its only one, or ``default``."""
    split: str
    commit: str | None = None
    """Of the hub's Parquet conversion; None: its newest."""

    def __str__(self) -> str:
        subset = f"/{self.subset}" if self.subset else ""
        return f"hf:{self.name}{subset}:{self.split}" + (f"@{self.commit}" if self.commit else "")


def hub_data(path: Path) -> HubData | None:
    """Return the data set that ``path`` names; None for a file's path. Raises ``ConfigError`` for a name of another form."""
    text = str(path)
    if not text.startswith("hf:"):
        return None
    match = _DATA.fullmatch(text)
    if match is None or not is_name(match["name"]) or not (match["commit"] is None or is_commit(match["commit"])):
        raise ConfigError(f"{text} names no data set of the hub: the form is {FORM}, and @ a commit of 40 digits")
    return HubData(match["name"], match["subset"], match["split"], match["commit"])
