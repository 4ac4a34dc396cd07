"""What a command ends with decides its exit status."""

from __future__ import annotations

import asyncio
import errno

import pytest
import typer

from rlep.cli.shell import command_errors
from rlep.core.errors import ConfigError, DataError, HeadLost, LearnerLost, PlacementError, PoolError

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
