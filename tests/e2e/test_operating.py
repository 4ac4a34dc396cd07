"""A running run is looked at and changed by commands from another process, and says so when it has ended."""

from __future__ import annotations

import json
import os
import pty
import select
import signal
import subprocess
import sys
import termios
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rlep.core.jsonl import read_lines
from tests.small import BASE, options, rlep, small_task
from tests.waiting import wait_until


def test_status_top_scale_and_drain_of_a_run_on_a_private_cluster(tmp_path: Path) -> None:
    run = tmp_path / "run"
    more = [f'run.directory="{run}"', "run.name=operated", "run.steps=10000", "cluster.cpus=4", "verifier.cpus=0.25"]
    overrides = [*small_task(tmp_path), *more, "data.evaluation=[]"]
    command = [sys.executable, "-m", "rlep", "train", str(BASE), *options(overrides)]
    with (tmp_path / "output.txt").open("w") as output:
        training = subprocess.Popen(command, stdout=output, stderr=output, start_new_session=True)
    try:
        before = status_of(run, training, output=tmp_path / "output.txt")
        assert states(before, "generator") == {"generator-0": "serving"}
        assert states(before, "learner") == {"learner-0": "serving"}
        check_last_step(before)

        assert (run / "contact.json").stat().st_mode & 0o777 == 0o600
        contact = json.loads((run / "contact.json").read_text())
        assert Path(contact["token_file"]).stat().st_mode & 0o777 == 0o600
        assert Path(contact["token_file"]).read_text() not in (run / "contact.json").read_text()

        table = rlep("scale", "verifiers", "2", "--run", run).stdout
        assert "verifier-1" in table
        after = json.loads(rlep("status", run, "--json").stdout)
        assert states(after, "verifier") == {"verifier-0": "serving", "verifier-1": "serving"}
        rlep("drain", "verifier-0", "--run", run)
        rlep("drain", "verifier-0", "--run", run)  # it was removed already
        assert states(json.loads(rlep("status", run, "--json").stdout), "verifier") == {"verifier-1": "serving"}

        refused = rlep("drain", "verifier-1", "--run", run, check=False)
        assert (refused.returncode, refused.stderr) == (
            2,
            "error: verifier-1 is the only verifier: add another first\n",
        )
        too_many = rlep("scale", "verifiers", "99", "--run", run, check=False)
        assert too_many.returncode == 1
        assert "98 of 98 new verifiers did not start" in too_many.stderr
        assert "this machine has 4 CPU" in too_many.stderr

        watched_to_its_end(run, training)
        assert training.wait(timeout=90) == 130
    finally:
        training.kill()
        training.wait()
    lines = read_lines(run / "metrics.jsonl")
    assert all(line["metrics"]["actors/alive/verifier"] in (1, 2) for line in lines)
    assert {line["metrics"]["actors/alive/learner"] for line in lines} == {1}
    assert {line["metrics"]["actors/restarts/generator"] for line in lines} == {0}
    ended = rlep("status", run, check=False)
    assert ended.returncode == 2
    assert f"no run is in progress in {run}" in ended.stderr
    events = [(line["event"], line.get("actor")) for line in read_lines(run / "events.jsonl")]
    assert ("actor_started", "verifier-1") in events
    assert ("actor_drained", "verifier-0") in events
    assert not [event for event, _ in events if event == "actor_lost"]


def status_of(run: Path, training: subprocess.Popen[bytes], *, output: Path) -> dict[str, Any]:
    """The status once the run takes commands and its first weights are served."""
    metrics = run / "metrics.jsonl"
    wait_until(lambda: (metrics.exists() and metrics.read_text()) or training.poll() is not None, "the first step", 300)
    assert training.poll() is None, output.read_text()
    found: dict[str, Any] = json.loads(rlep("status", run, "--json").stdout)
    return found


def watched_to_its_end(run: Path, training: subprocess.Popen[bytes]) -> None:
    """``rlep top`` without a terminal, on one until ``q``, and on one until the run is stopped."""
    once = rlep("top", run).stdout  # no terminal: one frame
    assert "critical path: " in once
    assert "verifier-1" in once
    with on_terminal("top", str(run)) as shown, on_terminal("top", str(run)) as left:
        left.until("verifier-1")
        os.write(left.terminal, b"q")
        assert left.until_end() == 0
        assert f"{run} continues" in left.seen
        shown.until("verifier-1")
        os.kill(training.pid, signal.SIGINT)
        assert shown.until_end() == 0
        assert f"{run} has ended" in shown.seen


def check_last_step(status: dict[str, Any]) -> None:
    """The critical path's links lie in order within the step."""
    step = status["last_step"]
    assert step["path"][-1]["what"] == "load weights"
    assert {"generate", "update", "publish"} <= {link["what"] for link in step["path"]}
    times = [step["begin"], *(time for link in step["path"] for time in (link["begin"], link["end"])), step["end"]]
    assert times == sorted(times)
    assert set(step["idle"]) >= {"generator", "learner", "verifier"}


@dataclass
class Shown:
    """A command on a terminal of its own."""

    process: subprocess.Popen[bytes]
    terminal: int
    seen: str = ""

    def until(self, text: str) -> None:
        """Read until the terminal has shown ``text``."""
        wait_until(lambda: text in self.seen or not self.read(), f"{text!r} on the terminal")
        assert text in self.seen, self.seen

    def until_end(self) -> int:
        """Read until the process is gone; its exit status."""
        wait_until(lambda: not self.read(), "the end of the command")
        return self.process.wait(timeout=60)

    def read(self) -> bool:
        """Take what there is; False where the terminal has no user any more."""
        if select.select([self.terminal], [], [], 1.0)[0]:
            try:
                self.seen += os.read(self.terminal, 65536).decode(errors="replace")
            except OSError:  # Linux: the other side is closed
                return False
        return True


@contextmanager
def on_terminal(*words: str) -> Iterator[Shown]:
    """``rlep`` with a terminal of 200 columns."""
    ours, its = pty.openpty()
    termios.tcsetwinsize(its, (50, 200))
    environment = os.environ | {"TERM": "xterm"}
    process = subprocess.Popen(
        [sys.executable, "-m", "rlep", *words], stdin=its, stdout=its, stderr=its, env=environment
    )
    os.close(its)
    try:
        yield Shown(process, ours)
    finally:
        process.kill()
        process.wait()
        os.close(ours)


def states(status: dict[str, Any], role: str) -> dict[str, str]:
    """Actor → state of one role."""
    return {a["name"]: a["state"] for found in status["roles"] if found["role"] == role for a in found["actors"]}
