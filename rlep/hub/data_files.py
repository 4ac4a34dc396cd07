"""Files of a training or held-out set: a file of this machine, or the hub's Parquet conversion of a data set."""

from __future__ import annotations

from dataclasses import replace
from glob import escape
from pathlib import Path

from rlep.core.errors import DataError
from rlep.core.hub_names import HubData, hub_data
from rlep.core.plural import named
from rlep.core.progress import StartPhase
from rlep.hub.repository import CONVERSION, Repository


def pin_data(path: Path) -> Path:
    """Return the name with the configuration and the commit that it stands for now; a file's path as it is."""
    data = hub_data(path)
    return path if data is None else Path(str(_pinned(data)))


def data_files(path: Path, *, phase: StartPhase | None = None) -> list[Path]:
    """Return the files that ``path`` names, in their order; those of the hub are downloaded unless they are here.

    Raises ``DataError`` saying why there are none.
    """
    if (data := hub_data(path)) is None:
        return [path]
    data = _pinned(data)
    repository, folder = Repository("dataset", data.name), f"{data.subset}/{data.split}"
    files = [
        name
        for name in repository.files(str(data.commit))
        if name.startswith(f"{folder}/") and name.endswith(".parquet")
    ]
    root = repository.snapshot(str(data.commit), [f"{escape(folder)}/*.parquet"], phase=phase)
    return [root / name for name in files]


def _pinned(data: HubData) -> HubData:
    repository = Repository("dataset", data.name)
    commit = data.commit or repository.commit(CONVERSION)
    if data.commit and data.subset:
        return data
    splits: dict[str, set[str]] = {}
    for name in repository.files(commit):
        match name.split("/"):
            case [subset, split, file] if file.endswith(".parquet"):
                splits.setdefault(subset, set()).add(split)
    if not splits:
        raise DataError(f"{data}: the hub's Parquet copy of it is empty: download the data set, and name its files")
    usual = "default" if "default" in splits or len(splits) != 1 else next(iter(splits))
    chosen = data.subset or usual
    if chosen not in splits:
        raise DataError(
            f"{data}: there are the configurations {named(sorted(splits))}: name one, as in hf:ORG/NAME/CONFIG:SPLIT"
        )
    if data.split not in splits[chosen]:
        why = f"there are {named(sorted(splits[chosen]))}"
        if f"partial-{data.split}" in splits[chosen]:
            why = "the hub converted only the first part of it: download the data set, and name its files"
        raise DataError(f"{data}: no split {data.split} in {chosen}: {why}")
    return replace(data, subset=chosen, commit=commit)
