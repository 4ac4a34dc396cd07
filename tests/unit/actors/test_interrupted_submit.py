"""Ctrl-C under ``rlep submit``: the job goes on, and the user is told how to follow and how to end it."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from typer.testing import CliRunner

from rlep.actors import jobs
from rlep.cli import app

ADDRESS = "http://127.0.0.1:1"


class Dashboard:
    """Takes any job, and sends its log until somebody presses Ctrl-C; it has no way to stop one."""

    def __init__(self, address: str) -> None:
        assert address == ADDRESS

    def submit_job(self, *, entrypoint: str, runtime_env: dict[str, object], submission_id: str) -> str:
        assert entrypoint == "python -m rlep pool stats"
        return submission_id

    async def tail_job_logs(self, _job: str) -> AsyncIterator[str]:
        yield "a line of the job\n"
        signal.raise_signal(signal.SIGINT)
        await asyncio.Event().wait()


def test_it_ends_following_and_not_the_job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jobs, "JobSubmissionClient", Dashboard)
    monkeypatch.setenv("RAY_API_SERVER_ADDRESS", "")  # submitting sets it
    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # tests in the background have it ignored
    try:
        words = ["submit", "--address", ADDRESS, "--working-dir", str(tmp_path), "--", "pool", "stats"]
        result = CliRunner().invoke(app, words)
    finally:
        signal.signal(signal.SIGINT, before)
    assert result.exit_code == 130, result.output
    submitted, line = result.stdout.splitlines()
    job = submitted.removeprefix("submitted ").removesuffix(f" to {ADDRESS}")
    assert line == "a line of the job"
    said = f"job {job} goes on: `ray job logs -f {job}` follows it, `ray job stop {job}` ends it"
    assert result.stderr.splitlines()[-1] == said
