"""``rlep pool push | pull``: a pool on the Hugging Face hub, as an export with a card."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from rlep.cli.pool.which import MOVE, Json, about_a_pool, pool_app
from rlep.cli.push import Public

if TYPE_CHECKING:
    from rlep.config.schema import Config

Repo = Annotated[str, typer.Argument(metavar="ORG/NAME", help="Data set repository on the hub.")]
SHARDS = ("part-*.parquet",)


@pool_app.command(rich_help_panel=MOVE)
@about_a_pool
def push(config: Config, repository: Repo, *, public: Public = False) -> None:
    """Upload a pool to the Hugging Face hub, with a card; a later push takes the place of an earlier one."""
    from rlep.cli.cards import files_below, pool_card
    from rlep.cli.pool.open import existing
    from rlep.cli.progress import TerminalProgress
    from rlep.core.plural import counted
    from rlep.hub.repository import Repository
    from rlep.services.pool.files.records import export_records

    with tempfile.TemporaryDirectory(prefix="rlep-push-") as home, TerminalProgress() as bars, existing(config) as pool:
        stats = pool.stats()
        with bars.phase("export", stats.trajectories, "records") as advance:
            manifest = export_records(pool, Path(home) / "pool", advance=advance)
        files = files_below(Path(home) / "pool") | {"README.md": str(pool_card(repository, manifest, stats)).encode()}
        message = f"Pool {manifest.pool}, digest {manifest.digest}"
        commit = Repository("dataset", repository).push(files, SHARDS, message, public=public)
    typer.echo(f"{counted(manifest.records, 'record')} of pool {manifest.pool} in {repository}, commit {commit}")


@pool_app.command(rich_help_panel=MOVE)
@about_a_pool
def pull(
    config: Config,
    repository: Repo,
    *,
    revision: Annotated[str | None, typer.Option(help="Branch, tag or commit (default: the newest).")] = None,
    as_json: Json = False,
) -> None:
    """Put a pool of the Hugging Face hub into this one. May be repeated; `rlep pool verify` grades it by your verifier.

    What comes is checked as if a stranger had written it: every shard against the manifest, every record by itself.
    """
    from rlep.cli.cards import link_file
    from rlep.cli.pool.move import import_directory, tell_imported
    from rlep.core.errors import DataError
    from rlep.hub.repository import Repository
    from rlep.services.pool.files.manifest import NAME

    source = Repository("dataset", repository)
    commit = source.commit(revision)
    if NAME not in source.files(commit):
        raise DataError(f"{repository} at {commit} is no pool: it has no {NAME}; `rlep pool push` makes one")
    snapshot = source.snapshot(commit, [NAME, *SHARDS])
    with tempfile.TemporaryDirectory(prefix=".pull-", dir=snapshot.parents[1]) as home:
        for path in snapshot.iterdir():
            link_file(path.resolve(), Path(home) / path.name)
        report = import_directory(config, Path(home))
    tell_imported(report, f"{repository}@{commit}", as_json=as_json)
