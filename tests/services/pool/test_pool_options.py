"""Options of ``rlep pool``: addresses that cannot be, and what was removed or renamed; no server is needed."""

from __future__ import annotations

import pytest
from typer.testing import CliRunner

from rlep.cli import app


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--redis", "redis://h", "--embedded", "d"], "--redis names a server that runs, --embedded a directory"),
        (["--redis", "redis://:hunter2@h"], "holds a password; give it in RLEP_REDIS_PASSWORD"),
        (["--redis", "http://h"], "a Redis URL starts with redis://"),
        (["--name", "a/b"], "pool.name"),
        (["--set", "pool.nam=x"], "did you mean pool.name?"),
    ],
)
def test_an_address_that_cannot_be_is_refused(words: list[str], message: str) -> None:
    result = CliRunner().invoke(app, ["pool", "stats", *words])
    assert (result.exit_code, result.stdout) == (2, "")
    assert message in result.stderr


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["backup", "pool.rlep", "--json"], "error: `rlep pool backup` was removed: use `rlep pool export DIRECTORY`"),
        (["restore", "pool.rlep", "--name", "x"], "was removed: use `rlep pool import DIRECTORY`"),
        (["doctor", "--mend"], "this option is now --repair"),
        (["serve", "--cache-mib", "0"], "the record cache was removed; leave this option out"),
    ],
)
def test_what_was_removed_or_renamed_names_what_to_use(words: list[str], sentence: str) -> None:
    result = CliRunner().invoke(app, ["pool", *words], env={"COLUMNS": "200"})
    assert (result.exit_code, result.stdout) == (2, "")
    assert sentence in result.stderr
