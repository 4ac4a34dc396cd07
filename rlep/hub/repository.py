"""Repositories of the Hugging Face hub, at one commit: its files are downloaded whole or not used.

The address is ``HF_ENDPOINT``'s, the cache ``HF_HOME``'s, the access token that of the environment or of ``hf auth login``, all
as ``huggingface_hub`` has them. Whole files stay when a download breaks. No code of a repository is loaded or run.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from glob import escape
from pathlib import Path
from typing import Literal

from rlep.core.errors import DataError, HubAway, ModelError, RlepError
from rlep.core.hub_names import is_name
from rlep.core.progress import StartPhase
from rlep.core.versions import check_versions
from rlep.hub.client import MEGABYTE, bar_of, discreet, prepare_client

CONVERSION = "refs/convert/parquet"
"""Branch on which the hub keeps each data set as Parquet, made without code of ours or the data set's."""
NESTED = ("*/*",)
"""Files in folders, which a model does not need: other formats, and originals before their conversion."""
DOUBLE = ("consolidated*.safetensors",)
"""Weights that a repository holds a second time, under other names."""
FAULTS = (OSError, RuntimeError, ValueError, TypeError, LookupError, AttributeError)
"""Kinds of error of ``huggingface_hub`` and ``hf_xet`` beside their own: a full disk, a storage that is away, an answer that is
none of a hub's."""


def chosen(names: Iterable[str], patterns: Sequence[str], leave_out: Sequence[str] = ()) -> list[str]:
    """Return the names that one of ``patterns`` matches and none of ``leave_out``."""
    from huggingface_hub.utils import filter_repo_objects  # type: ignore[attr-defined]

    return list(filter_repo_objects(names, allow_patterns=[*patterns], ignore_patterns=[*leave_out]))


@dataclass(frozen=True, slots=True)
class Repository:
    """One repository, e.g. ``Repository("model", "Qwen/Qwen3-4B")``; its errors are ``ModelError`` or ``DataError``."""

    kind: Literal["model", "dataset"]
    name: str

    def __post_init__(self) -> None:
        if not is_name(self.name):
            raise self._error(f"{self.name} is no name of the hub: the form is ORG/NAME")
        check_versions("huggingface_hub")

    def commit(self, revision: str | None) -> str:
        """Return the commit that a branch or tag names now; without network, the one it named when it was last asked for."""
        from huggingface_hub import HfApi

        with self._sentences(revision):
            return HfApi().resolve_revision(self.name, repo_type=self.kind, revision=revision).resolved

    def files(self, commit: str) -> dict[str, int]:
        """All files at a commit, sorted by name, and their bytes; asks the hub where this machine has not asked before."""
        from huggingface_hub import HfApi, get_cached_repo_tree
        from huggingface_hub.errors import CachedRepoTreeNotFoundError
        from huggingface_hub.hf_api import RepoFile

        with self._sentences(commit):
            try:
                found = get_cached_repo_tree(self.name, repo_type=self.kind, revision=commit)
            except CachedRepoTreeNotFoundError:
                tree = HfApi().list_repo_tree(self.name, repo_type=self.kind, revision=commit, recursive=True)
                found = [entry for entry in tree if isinstance(entry, RepoFile)]
        return dict(sorted((entry.path, entry.size) for entry in found))

    def snapshot(
        self, commit: str, patterns: Sequence[str], leave_out: Sequence[str] = (), *, phase: StartPhase | None = None
    ) -> Path:
        """Download what is lacking of the files of these patterns; returns their directory, which has all of them, whole.

        The download moves a bar of ``phase``; without, ``huggingface_hub`` shows its own on a terminal.
        """
        from huggingface_hub import snapshot_download
        from huggingface_hub.errors import CachedRepoTreeNotFoundError, LocalEntryNotFoundError

        download = partial(
            snapshot_download,
            self.name,
            repo_type=self.kind,
            revision=commit,
            allow_patterns=[*patterns],
            ignore_patterns=[*leave_out],
        )
        with self._sentences(commit):
            try:
                return self._held(commit, download, patterns, leave_out)
            except (CachedRepoTreeNotFoundError, LocalEntryNotFoundError):
                pass
            if phase is None:
                download()
            else:
                with phase("download", self._lacking(commit, patterns, leave_out), "MB") as advance:
                    download(tqdm_class=bar_of(advance))
            return self._held(commit, download, patterns, leave_out)

    def _held(
        self, commit: str, download: Callable[..., str], patterns: Sequence[str], leave_out: Sequence[str]
    ) -> Path:
        """Return the directory of a download that is whole. Raises an error of ``huggingface_hub`` where it is not."""
        from huggingface_hub import get_cached_repo_tree
        from huggingface_hub.errors import LocalEntryNotFoundError

        # Without the list of all files nobody knows if all are there.
        tree = get_cached_repo_tree(self.name, repo_type=self.kind, revision=commit)
        sizes, root = {file.path: file.size for file in tree}, Path(download(local_files_only=True))
        for name in chosen(sizes, patterns, leave_out):
            if (file := root / name).stat().st_size != sizes[name]:  # by a crash of the machine, or another program
                for place in (file.resolve(), file):
                    place.unlink(missing_ok=True)
                raise LocalEntryNotFoundError(f"{name} has another size than on the hub")
        return root

    def _lacking(self, commit: str, patterns: Sequence[str], leave_out: Sequence[str]) -> int:
        """Return the megabytes that are to be downloaded."""
        from huggingface_hub import try_to_load_from_cache

        held = partial(try_to_load_from_cache, self.name, repo_type=self.kind, revision=commit)
        files = self.files(commit)
        names = [name for name in chosen(files, patterns, leave_out) if not isinstance(held(name), str)]
        return sum(files[name] for name in names) // MEGABYTE

    def push(self, files: Mapping[str, Path | bytes], replaced: Sequence[str], message: str, *, public: bool) -> str:
        """Make one commit of these files, by their names there; returns it. A repository that is not there is made.

        Files there that ``replaced`` matches, and that are not among ``files``, are removed by the same commit.
        """
        from huggingface_hub import CommitOperationAdd, CommitOperationDelete, HfApi

        api = HfApi()
        added = [CommitOperationAdd(name, content) for name, content in files.items()]
        with self._sentences(None, sends=True):
            api.create_repo(self.name, repo_type=self.kind, private=not public, exist_ok=True)
            there = api.list_repo_files(self.name, repo_type=self.kind)
            removed = [CommitOperationDelete(name) for name in chosen(there, replaced, [*map(escape, files)])]
            done = api.create_commit(self.name, [*added, *removed], repo_type=self.kind, commit_message=message)
        return str(done.oid)

    @contextmanager
    def _sentences(self, revision: str | None, *, sends: bool = False) -> Iterator[None]:
        """Turn the hub's errors, and those of a disk, into one sentence that shows no token."""
        from huggingface_hub import errors

        prepare_client()
        unknown = (errors.CachedRepoTreeNotFoundError, errors.RevisionResolutionError)
        away = (errors.LocalEntryNotFoundError, errors.OfflineModeIsEnabled)
        wrapped = (errors.LocalEntryNotFoundError, errors.RevisionResolutionError, RuntimeError)
        try:
            yield
        except RlepError:
            raise
        except (errors.HTTPError, *unknown, *FAULTS) as error:  # type: ignore[attr-defined]
            cause = (error.__cause__ if isinstance(error, wrapped) else None) or error
            sentence = self._sentence(cause, revision, sends=sends)
            status = getattr(getattr(cause, "response", None), "status_code", None)
            asked = isinstance(cause, errors.HfHubHTTPError) and status is not None and status < 429
            if asked or not isinstance(cause, (errors.HTTPError, *away)):  # type: ignore[attr-defined]
                raise self._error(sentence) from None
            raise HubAway(sentence) from None

    def _error(self, sentence: str) -> ModelError | DataError:
        return (ModelError if self.kind == "model" else DataError)(sentence)

    def _sentence(self, error: BaseException, revision: str | None, *, sends: bool) -> str:
        from huggingface_hub import constants, errors

        what, where = "model" if self.kind == "model" else "data set", f"the hub {discreet(constants.ENDPOINT)}"
        status, token = getattr(getattr(error, "response", None), "status_code", 0), "in HF_TOKEN or by `hf auth login`"
        match error:
            case errors.GatedRepoError():
                page = f"{discreet(constants.ENDPOINT)}/{'' if self.kind == 'model' else 'datasets/'}{self.name}"
                return f"{self.name} is gated: accept its conditions at {page}, and give your access token {token}"
            case errors.RepositoryNotFoundError():
                return (
                    f"{where} shows no {what} {self.name}: check the name; a private one needs an access token, {token}"
                )
            case errors.RevisionNotFoundError() if revision == CONVERSION:
                return (
                    f"{where} has no Parquet copy of {self.name}: it makes one of each public data set that it can read, some "
                    "minutes after it came. Download the data set, and name its files"
                )
            case errors.RevisionNotFoundError():
                return f"the {what} {self.name} has no revision {revision or 'main'} on {where}"
            case errors.HfHubHTTPError() if status in (401, 403):
                return f"{where} refuses this for {self.name} ({status}): give an access token that may, {token}"
            case errors.HfHubHTTPError():
                return f"{where} answers {status} for {self.name}; try again later"
            case errors.HTTPError() | errors.LocalEntryNotFoundError() | errors.OfflineModeIsEnabled():  # type: ignore[attr-defined]
                lacking = "" if sends else f", and this machine has no whole copy of {self.name}"
                return (
                    f"{where} cannot be reached{lacking}: check the network, and that HF_HUB_OFFLINE is not set "
                    f"({type(error).__name__})"
                )
            case OSError() if error.strerror:
                place = constants.HF_HUB_CACHE
                return f"{self.name} cannot be kept in {place}: {error.strerror}: make room there, or set HF_HOME"
            case _:
                said = discreet(str(error)).strip().partition("\n")[0]
                done = "put on" if sends else "had from"
                return f"{self.name} cannot be {done} {where}: {type(error).__name__}: {said}"
