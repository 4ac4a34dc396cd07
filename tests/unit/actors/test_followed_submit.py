"""A job that is followed over connections that end or break: every line once, and never an end that is not the job's."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any

import aiohttp
import pytest
import requests  # type: ignore[import-untyped]
from ray.job_submission import JobStatus

from rlep.actors import jobs

ADDRESS = "http://127.0.0.1:1"
BROKEN = [
    RuntimeError("WebSocket connection closed unexpectedly with close code 1006"),
    aiohttp.ServerDisconnectedError(),
    requests.ConnectionError("Connection refused"),
    ConnectionResetError("Connection reset by peer"),
]


class Dashboard:
    """A job of some lines: a stream for each number, which has that many lines from the first, and an error at its end."""

    def __init__(self, streams: Sequence[tuple[int, Exception | None]], ends: JobStatus = JobStatus.SUCCEEDED) -> None:
        self.streams, self.ends = list(streams), ends
        self.name = ""
        self.silent: Exception | None = None
        """Error in place of a status."""
        self.environment: dict[str, str] = {}

    def submit_job(self, *, submission_id: str, runtime_env: dict[str, Any], **_: object) -> str:
        self.name, self.environment = submission_id, runtime_env["env_vars"]
        return submission_id

    async def tail_job_logs(self, _: str) -> AsyncIterator[str]:
        lines, error = self.streams.pop(0) if len(self.streams) > 1 else self.streams[0]
        for number in range(0, lines, 2):
            yield "".join(f"line {n}\n" for n in range(number, min(number + 2, lines)))
        if error is not None:
            raise error

    def get_job_status(self, _: str) -> JobStatus:
        if self.silent:
            raise self.silent
        return self.ends if len(self.streams) == 1 else JobStatus.RUNNING


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(jobs, "FOLLOW_POLL_S", 0.0)
    monkeypatch.setenv("RAY_API_SERVER_ADDRESS", "")  # submitting sets it
    return tmp_path


def submitted(home: Path, monkeypatch: pytest.MonkeyPatch, dashboard: Dashboard) -> tuple[int, list[str], list[str]]:
    """Exit status, lines of the job and of its end, and notes."""
    monkeypatch.setattr(jobs, "JobSubmissionClient", lambda _: dashboard)
    shown: list[str] = []
    notes: list[str] = []
    words = ["pool", "stats"]
    status = jobs.submit_job(words, address=ADDRESS, working_dir=home, echo=shown.append, note=notes.append)
    return status, [line for text in shown[1:] for line in text.split("\n")], notes


@pytest.mark.parametrize("error", BROKEN, ids=lambda error: type(error).__name__)
def test_a_broken_connection_is_made_anew_and_every_line_shown_once(
    home: Path, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    dashboard = Dashboard([(3, error), (0, error), (5, None)])
    status, lines, notes = submitted(home, monkeypatch, dashboard)
    assert (status, notes) == (0, [])
    assert lines == [*(f"line {n}" for n in range(5)), f"job {dashboard.name}: SUCCEEDED"]


def test_a_stream_that_ends_before_the_job_is_not_its_end(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    dashboard = Dashboard([(1, None), (2, None), (2, None)], JobStatus.FAILED)
    status, lines, _ = submitted(home, monkeypatch, dashboard)
    assert (status, lines) == (1, ["line 0", "line 1", f"job {dashboard.name}: FAILED"])


def test_without_an_answer_it_ends_with_a_status_of_its_own(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jobs, "FOLLOW_DEADLINE_S", 0.0)
    dashboard = Dashboard([(1, BROKEN[2])])
    dashboard.silent = BROKEN[2]
    status, lines, notes = submitted(home, monkeypatch, dashboard)
    job = dashboard.name
    assert (status, lines) == (3, ["line 0"])
    assert notes == [
        f"the cluster has not answered for 0 s: Connection refused; unless it has ended, job {job} goes on: "
        f"`ray job logs -f {job}` follows it, `ray job stop {job}` ends it"
    ]


def test_a_job_that_was_silent_for_long_is_followed_on_over_a_new_connection(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(jobs, "FOLLOW_DEADLINE_S", -1.0)  # as after minutes without a line
    dashboard = Dashboard([(0, BROKEN[0]), (0, BROKEN[0]), (2, None)])
    assert submitted(home, monkeypatch, dashboard)[0] == 0


def test_a_job_whose_log_cannot_be_read_any_more_has_its_status(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    dashboard = Dashboard([(1, BROKEN[1])], JobStatus.FAILED)
    status, lines, _ = submitted(home, monkeypatch, dashboard)
    assert (status, lines) == (1, ["line 0", f"job {dashboard.name}: FAILED"])


def test_an_output_that_nobody_reads_any_more_is_no_broken_connection(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def closed(line: str) -> None:
        if line.startswith("line"):
            raise BrokenPipeError

    monkeypatch.setattr(jobs, "JobSubmissionClient", lambda _: Dashboard([(1, None)]))
    with pytest.raises(BrokenPipeError):
        jobs.submit_job(["pool", "stats"], address=ADDRESS, working_dir=home, echo=closed)


def test_a_job_inherits_what_names_files_and_interfaces_and_no_secret(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    passed = {"RLEP_REDIS_PASSWORD_FILE": "/run/redis", "NCCL_SOCKET_IFNAME": "eth1", "GLOO_SOCKET_IFNAME": "eth2"}
    for name, value in (passed | {"RLEP_REDIS_PASSWORD": "hunter2", "RLEP_JUDGE_TOKEN": "hunter2"}).items():
        monkeypatch.setenv(name, value)
    monkeypatch.delenv("RAY_JOB_STOP_WAIT_TIME_S", raising=False)
    submitted(home, monkeypatch, dashboard := Dashboard([(0, None)]))
    assert dashboard.environment == passed | {"RAY_JOB_STOP_WAIT_TIME_S": "600"}
