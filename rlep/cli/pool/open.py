"""First steps of every pool command: a client of its pool, and its questions."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import typer

from rlep.check.pool_place import pool_exists, pool_place
from rlep.cli.progress import TerminalProgress
from rlep.config.schema import Config
from rlep.core.errors import DataError, ModelError, PoolError, WrongVersionError
from rlep.core.types import prompt_id_of
from rlep.data.prompt_files import read_rows
from rlep.data.prompt_rows import PromptRow, Wanted
from rlep.engines.tokenizer import Tokenizer, load_tokenizer
from rlep.hub.resolve import model_directory
from rlep.services.pool.rpc.client import PoolClient
from rlep.services.pool.rpc.places import connected, hosted, private_socket, served
from rlep.services.pool.values import LIVE


@contextmanager
def existing(config: Config) -> Iterator[PoolClient]:
    """The pool, which must be there. Raises ``PoolError`` where there is none; nothing is made.

    A config with ``replay.source = "live"`` that names no pool means the pool that its run fills, ``<run.name>.live``.
    """
    if not pool_exists(config):
        raise PoolError(
            f"{config.pool_directory} holds no embedded pool; give the run's config files, --embedded DIR or --redis URL"
        )
    place = pool_place(config)
    if config.replay.source == "live" and "name" not in config.pool.model_fields_set:
        place = replace(place, name=f"{config.run.name}{LIVE}")
    with served(place, deadline=config.pool.deadline_s, minimum=config.replay.minimum) as pool:
        pool.open(read_only=True)
        yield pool


@contextmanager
def filling(
    config: Config,
    tokenizer_digest: str,
    *,
    cap: int | None = None,
    vocabulary: int | None = None,
    from_manifest: bool = False,
) -> Iterator[PoolClient]:
    """The pool, made where there is none, to be filled with records of one tokenizer.

    ``cap``: trajectories a prompt of a new pool, None for ``collection.cap``; ``vocabulary``: rows of the model's embedding, None
    where they are not known. ``from_manifest``: both are a stranger's numbers, which a pool that is there does not take over.
    """
    place = pool_place(config)
    place, deadline = replace(place, socket=private_socket(place.url)), config.pool.deadline_s
    with hosted(place, deadline=deadline):
        with connected(place, deadline=deadline) as pool:
            new = not pool.stats().tokenizer_digest
        cap = cap or config.collection.cap
        known = vocabulary if new or not from_manifest else None
        options = {"minimum": min(config.replay.minimum, cap), "vocabulary": known}
        with connected(place, deadline=deadline, **options) as pool:
            pool.open(tokenizer_digest=tokenizer_digest, cap=cap if new else None)
            yield pool


@contextmanager
def file_errors(path: Path) -> Iterator[None]:
    """A full disk, a missing directory or permission as ``DataError`` instead of a traceback."""
    try:
        yield
    except OSError as error:
        raise DataError(f"{error.filename or path}: {error.strerror or error}") from error


def tokenizer_of(config: Config, pool: PoolClient) -> Tokenizer | None:
    """The tokenizer of model.path, or None where that is not there or not the pool's."""
    try:
        tokenizer = _tokenizer(config)
    except ModelError:
        return None
    except WrongVersionError as error:
        typer.echo(f"token ids only, without the tokenizer of model.path = {config.model.path}: {error}", err=True)
        return None
    digest = pool.stats().tokenizer_digest
    if tokenizer.digest != digest:
        typer.echo(
            f"token ids only: model.path = {config.model.path} has tokenizer {tokenizer.digest}, pool {pool.name} {digest}. "
            "A trainer that reads a directory by AutoTokenizer may take its model type's vocabulary and splitting rules in "
            "place of those in tokenizer.json: save its tokenizer (save_pretrained) and name that directory as model.path",
            err=True,
        )
        return None
    return tokenizer


def matching_tokenizer(config: Config, pool: PoolClient) -> Tokenizer:
    """The tokenizer of model.path. Raises ``ModelError`` where it is not the pool's: texts would be wrong."""
    tokenizer, digest = _tokenizer(config), pool.stats().tokenizer_digest
    if tokenizer.digest != digest:
        raise ModelError(
            f"model.path = {config.model.path} has tokenizer {tokenizer.digest}; pool {pool.name} holds token ids of "
            f"{digest}: set model.path to the model that the pool was collected with"
        )
    return tokenizer


def _tokenizer(config: Config) -> Tokenizer:
    return load_tokenizer(model_directory(config.model, weights=False), config.model)


def question_rows(paths: Sequence[Path], bars: TerminalProgress, wanted: Wanted) -> Iterator[tuple[str, PromptRow]]:
    """(prompt id, row) of every row with question and reference; each question once unless its candidates are wanted."""
    seen: set[str] = set()
    with bars.phase("read", None, "rows") as advance:
        for path in paths:
            for row in read_rows(path, wanted):
                advance(1)
                if not row.question.strip() or not row.reference:
                    continue
                prompt_id = prompt_id_of(row.question, row.reference)
                if wanted.candidates or prompt_id not in seen:
                    seen.add(prompt_id)
                    yield prompt_id, row


def opening_of(tokenizer: Tokenizer, row: PromptRow) -> str:
    """The mark with which the prompt of a row opens its responses' thinking, if it does: what a run grades begins with it."""
    return tokenizer.opening(tokenizer.encode_prompt(row.messages), row.question)


def files_of(config: Config, data: Sequence[Path] | None) -> list[Path]:
    """The question files: those given, else data.train."""
    return list(data) if data else list(config.data.train_paths)
