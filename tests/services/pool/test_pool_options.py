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
