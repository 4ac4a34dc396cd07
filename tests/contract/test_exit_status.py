"""The exit statuses of docs/reference/commands.md are those that commands end with."""

from __future__ import annotations

import asyncio
import errno
import re
from pathlib import Path

import pytest
import typer

from rlep.cli.shell import command_errors
from rlep.core.errors import ConfigError, DataError, HeadLost, LearnerLost, PlacementError, PoolError

PAGE = (Path(__file__).parents[2] / "docs/reference/commands.md").read_text()
ENDS: list[tuple[BaseException | None, int]] = [
    (None, 0),
    (HeadLost("gone"), 1),
    (LearnerLost("out of restarts"), 1),
    (PlacementError("no room"), 1),
    (PoolError("away"), 1),
    (OSError(errno.ENOSPC, "No space left on device", "metrics.jsonl"), 1),
    (ConfigError("update.lr"), 2),
    (DataError("no rows"), 2),
    (KeyboardInterrupt(), 130),
    (asyncio.CancelledError(), 130),
]
"""What a command ends with, and its status; SIGINT and SIGTERM cancel a command that has started actors."""


@pytest.mark.parametrize(("error", "status"), ENDS, ids=lambda value: type(value).__name__)
def test_a_command_ends_with_the_status_of_its_error(error: BaseException | None, status: int) -> None:
    @command_errors
    def command() -> None:
        if error is not None:
            raise error

    if error is None:
        command()
        return
    with pytest.raises(typer.Exit) as ended:
        command()
    assert ended.value.exit_code == status


def test_every_status_is_on_the_page_and_no_other() -> None:
    (line,) = re.findall(r"^Exit status: (.*)$", PAGE, re.M)
    said = {int(number) for number in re.findall(r"(?:^|; )(\d+) ", line)}
    assert said == {status for _, status in ENDS}
