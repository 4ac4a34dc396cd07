"""A working directory that Ray's dashboard does not take is refused in one sentence, and is not sent again and again."""

from __future__ import annotations

from pathlib import Path

import pytest
from ray._private.ray_constants import DASHBOARD_CLIENT_MAX_SIZE

from rlep.actors import jobs
from rlep.core.errors import ConfigError

BY_RAY = """Request failed with status code 500: Traceback (most recent call last):
  File "/ray/dashboard/modules/job/job_head.py", line 393, in upload_package
    data = await req.read()
aiohttp.web_exceptions.HTTPRequestEntityTooLarge: Request Entity Too Large
."""
BY_A_PROXY = "Request failed with status code 413: <html><h1>413 Request Entity Too Large</h1></html>."


@pytest.mark.parametrize("answer", [BY_RAY, BY_A_PROXY])
def test_it_is_final_and_says_what_to_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, answer: str) -> None:
    tries: list[str] = []

    class Dashboard:
        def __init__(self, address: str) -> None:
            pass

        def submit_job(self, *, submission_id: str, **_: object) -> str:
            tries.append(submission_id)
            raise RuntimeError(answer)

    monkeypatch.setattr(jobs, "JobSubmissionClient", Dashboard)
    monkeypatch.setenv("RAY_API_SERVER_ADDRESS", "")  # submitting sets it
    with pytest.raises(ConfigError) as refused:
        jobs.submit_job(["pool", "stats"], address="http://127.0.0.1:1", working_dir=tmp_path)
    assert str(refused.value) == (
        f"{tmp_path} is more than the cluster's dashboard takes, which is 100 MiB as an archive unless a proxy takes less: "
        "name in .gitignore what the job does not need, or give a smaller --working-dir"
    )
    assert len(tries) == 1
    assert DASHBOARD_CLIENT_MAX_SIZE == 100 * 2**20
