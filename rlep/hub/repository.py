"""Repositories of the Hugging Face hub, at one commit: its files are downloaded whole or not used.

The address is ``HF_ENDPOINT``'s, the cache ``HF_HOME``'s, the access token that of the environment or of ``hf auth login``, all
as ``huggingface_hub`` has them. Broken downloads go on where they stopped. No code of a repository is loaded or run.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from fnmatch import fnmatch
from functools import partial
from pathlib import Path
from typing import Literal

from rlep.core.errors import DataError, ModelError
from rlep.core.versions import check_versions

NESTED = ("*/*",)
"""Files in folders, which a model does not need: other formats, and originals before their conversion."""
DOUBLE = ("consolidated*.safetensors",)
"""Weights that a repository holds a second time, under other names."""


@dataclass(frozen=True, slots=True)
class Repository:
    """One repository, e.g. ``Repository("model", "Qwen/Qwen3-4B")``; its errors are ``ModelError`` or ``DataError``."""

    kind: Literal["model", "dataset"]
    name: str

    def __post_init__(self) -> None:
        check_versions("huggingface_hub")

    def commit(self, revision: str | None) -> str:
        """Return the commit that a branch or tag names now; without network, the one it named when it was last asked for."""
        from huggingface_hub import HfApi

        with self._sentences(revision):
            return HfApi().resolve_revision(self.name, repo_type=self.kind, revision=revision).resolved

    def files(self, commit: str) -> tuple[str, ...]:
        """Names of all files at a commit, sorted; asks the hub where this machine has not asked before."""
        from huggingface_hub import HfApi, get_cached_repo_tree
        from huggingface_hub.errors import CachedRepoTreeNotFoundError
        from huggingface_hub.hf_api import RepoFile

        with self._sentences(commit):
            try:
                found = get_cached_repo_tree(self.name, repo_type=self.kind, revision=commit)
            except CachedRepoTreeNotFoundError:
                tree = HfApi().list_repo_tree(self.name, repo_type=self.kind, revision=commit, recursive=True)
                found = [entry for entry in tree if isinstance(entry, RepoFile)]
        return tuple(sorted(entry.path for entry in found))

    def snapshot(self, commit: str, patterns: Sequence[str], leave_out: Sequence[str] = ()) -> Path:
        """Download what is lacking of the files of these patterns; returns their directory, which has all of them."""
        from huggingface_hub import get_cached_repo_tree, snapshot_download
        from huggingface_hub.errors import CachedRepoTreeNotFoundError, LocalEntryNotFoundError

        given = partial(snapshot_download, self.name, repo_type=self.kind, revision=commit)
        chosen = partial(given, allow_patterns=[*patterns], ignore_patterns=[*leave_out])

        def held() -> Path:
            get_cached_repo_tree(self.name, repo_type=self.kind, revision=commit)  # else nobody knows if all is there
            return Path(chosen(local_files_only=True))

        with self._sentences(commit):
            try:
                return held()
            except (CachedRepoTreeNotFoundError, LocalEntryNotFoundError):
                chosen()
            return held()

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
            old = [name for name in there if name not in files and any(fnmatch(name, pattern) for pattern in replaced)]
            removed = [CommitOperationDelete(name) for name in old]
            done = api.create_commit(self.name, [*added, *removed], repo_type=self.kind, commit_message=message)
        return str(done.oid)

    @contextmanager
    def _sentences(self, revision: str | None, *, sends: bool = False) -> Iterator[None]:
        """Turn the hub's errors into one sentence. None of them shows a token: only kinds and status codes are quoted."""
        from huggingface_hub import constants, errors

        said = ModelError if self.kind == "model" else DataError
        what = "model" if self.kind == "model" else "data set"
        where = f"the hub {constants.ENDPOINT}"
        page = f"{constants.ENDPOINT}/{'' if self.kind == 'model' else 'datasets/'}{self.name}"
        try:
            yield
        except errors.GatedRepoError:
            raise said(
                f"{self.name} is gated: accept its conditions at {page}, and give your access token in HF_TOKEN or by "
                "`hf auth login`"
            ) from None
        except errors.RepositoryNotFoundError:
            raise said(
                f"{where} shows no {what} {self.name}: check the name; a private one needs an access token, in HF_TOKEN or by "
                "`hf auth login`"
            ) from None
        except errors.RevisionNotFoundError:
            raise said(f"the {what} {self.name} has no revision {revision or 'main'} on {where}") from None
        except errors.HfHubHTTPError as error:
            if error.response.status_code in (401, 403):
                raise said(
                    f"{where} refuses this for {self.name} ({error.response.status_code}): give an access token that may, in "
                    "HF_TOKEN, or by `hf auth login`"
                ) from None
            raise said(f"{where} answers {error.response.status_code} for {self.name}; try again later") from None
        except (
            errors.LocalEntryNotFoundError,
            errors.RevisionResolutionError,
            errors.CachedRepoTreeNotFoundError,
        ) as error:
            raise said(f"{self._unreached(where, sends=sends)} ({type(error.__cause__ or error).__name__})") from None
        except (errors.HTTPError, errors.OfflineModeIsEnabled) as error:  # type: ignore[attr-defined]
            raise said(f"{self._unreached(where, sends=sends)} ({type(error).__name__})") from None

    def _unreached(self, where: str, *, sends: bool) -> str:
        lacking = (
            ""
            if sends
            else f", and this machine has no whole copy of {self.name}; a broken download goes on where it stopped"
        )
        return f"{where} cannot be reached{lacking}: check the network, and that HF_HUB_OFFLINE is not set"
