"""A role of a real run is scaled, and an actor drained, by the console's forms."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import httpx

from rlep.core.jsonl import read_lines
from tests.small import BASE, options, small_task
from tests.waiting import wait_until


def test_a_verifier_is_added_and_another_drained(tmp_path: Path) -> None:
    run = tmp_path / "runs" / "run"
    more = [f'run.directory="{run}"', "run.name=changed", "run.steps=10000", "cluster.cpus=4", "verifier.cpus=0.25"]
    overrides = [*small_task(tmp_path), *more, "data.evaluation=[]"]
    train = [sys.executable, "-m", "rlep", "train", str(BASE), *options(overrides)]
    token = tmp_path / "token"
    where = [str(run.parent), "--listen", "127.0.0.1:0", "--token-file", str(token), "--actions"]
    with (
        (tmp_path / "output.txt").open("w") as output,
        subprocess.Popen(train, stdout=output, stderr=output, start_new_session=True) as training,
    ):
        try:
            wait_until(lambda: (run / "contact.json").exists() or training.poll() is not None, "the run's start", 600)
            assert training.poll() is None, (tmp_path / "output.txt").read_text()
            console = [sys.executable, "-m", "rlep", "console", *where]
            with subprocess.Popen(console, stdout=subprocess.PIPE, text=True) as serving:
                try:
                    assert serving.stdout is not None
                    address = serving.stdout.readline().strip()
                    change(address, token.read_text().strip(), "scale", role="verifiers", count="2")
                    assert ("actor_started", "verifier-1") in happened(run)
                    change(address, token.read_text().strip(), "drain", actor="verifier-0")
                    assert ("actor_drained", "verifier-0") in happened(run)
                finally:
                    serving.terminate()
        finally:
            training.terminate()
            training.wait(timeout=120)


def change(address: str, token: str, what: str, **form: str) -> None:
    """Send a form of the page of actors as a browser does; returns when the command is done."""
    with httpx.Client(base_url=address, timeout=120) as browser:
        browser.post("/login", data={"token": token})
        page = "/runs/runs~run/actors"
        secret = re.search('name="csrf" value="([^"]+)"', browser.get(page).text)
        assert secret
        answer = browser.post(f"{page}/{what}", data={"csrf": secret[1]} | form)
        assert answer.status_code == 303, answer.text
        wait_until(lambda: ": at work</p>" not in browser.get(page).text, "the command's end", 600)
        shown = browser.get(page).text
        assert re.search(rf"rlep {what} [^<]*</h3><p>[^<]*: done</p>", shown), shown


def happened(run: Path) -> list[tuple[str, str | None]]:
    """Events and their actors."""
    return [(line["event"], line.get("actor")) for line in read_lines(run / "events.jsonl")]
