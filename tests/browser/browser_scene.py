"""``rlep console`` in a process of its own, the runs that it shows, and a browser that is logged in."""

from __future__ import annotations

import asyncio
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import quote, urlsplit

import pyarrow.parquet as pq
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Browser, BrowserContext, ConsoleMessage, Dialog, Page, Request

from rlep.services.pool.embedded.redis_process import EmbeddedRedis
from tests.unit.view.actors_scene import write_files
from tests.unit.view.console_scene import ATTACK, write_run
from tests.unit.view.episode_scene import called, episode, give_turns
from tests.unit.view.pool_scene import asked as questions
from tests.unit.view.pool_scene import fill
from tests.unit.view.study_scene import write_study

WAIT_MS = 180_000
"""Longest wait for an event in a browser: far above what any takes on a loaded machine."""
HOSTILE = '"><img src=x onerror=window.ran=6> \u202e'
"""A name of a run directory."""


@dataclass(frozen=True)
class Served:
    """A console that answers."""

    address: str
    printed: str
    """With the token."""
    process: subprocess.Popen[str]
    runs: Path


def write_home(home: Path) -> Path:
    """Runs that failed, finished, lost actors and have a hostile name, a pool and a study; the directory above the runs."""
    runs = home / "runs"
    with ThreadPoolExecutor(1) as aside:  # the browser's driver has an event loop in this thread
        aside.submit(asyncio.run, write_run(runs / "a")).result()
        aside.submit(asyncio.run, write_run(runs / "b", 6, error=None)).result()
    shutil.copytree(runs / "a", runs / HOSTILE, ignore=shutil.ignore_patterns("checkpoints"))
    shutil.copytree(runs / "a", runs / "episodes", ignore=shutil.ignore_patterns("checkpoints"))
    give_turns(runs / "episodes", 0, [episode(f"{ATTACK}\n{called(ATTACK, **{ATTACK: ATTACK})}", ATTACK, ATTACK)])
    write_files(runs / "actors")
    write_study(runs / "s")
    with EmbeddedRedis(runs / "a" / "pool") as server:
        fill(server)
    return runs


def paths_of(runs: Path) -> dict[str, str]:
    """Every page of the console, by a name for it."""
    taught = pq.read_table(runs / "a" / "rollouts" / "step-000001.parquet").to_pylist()[0]["prompt_id"]
    asked = pq.read_table(runs / "a" / "samples" / "step-000002.parquet").to_pylist()[0]["prompt_id"]
    named = f"/runs/{quote('runs~' + HOSTILE, safe='~')}"
    return {
        "runs": "/",
        "choose": "/compare",
        "compare": f"/compare?run=runs~a&run=runs~b&run={quote('runs~' + HOSTILE)}",
        "run": "/runs/runs~a",
        "finished": "/runs/runs~b",
        "name": named,
        "step": "/runs/runs~a/steps/1",
        "wrong": "/runs/runs~a/steps/1?show=wrong",
        "group": "/runs/runs~a/steps/1/groups/2",
        "prompt": f"/runs/runs~a/prompts/{taught}",
        "episodes": "/runs/runs~episodes/steps/1/groups/0",
        "evaluation": "/runs/runs~a/evaluations/2",
        "samples": f"/runs/runs~a/evaluations/2?prompt={asked}",
        "played": f"/runs/runs~episodes/evaluations/2?prompt={asked}",
        "actors": "/runs/runs~actors/actors",
        "none": f"{named}/actors",
        "pool": "/runs/runs~a/pool",
        "studies": "/studies",
        "study": "/studies/runs~s",
        "pools": "/pools",
        "named": "/pools/0/pool",
        "stored": f"/pools/0/pool/prompts/{questions()[0].id}",
    }


@contextmanager
def serving(runs: Path, *options: str | Path) -> Iterator[Served]:
    """A console over ``runs`` for the time of the block."""
    command = [sys.executable, "-m", "rlep", "console", *map(str, [runs, "--listen", "0", *options])]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            printed = process.stdout.readline().strip()
            assert printed, "the console did not start"
            yield Served(printed.partition("/?")[0], printed, process, runs)
            process.terminate()
            process.wait(timeout=60)
        finally:
            process.kill()


@contextmanager
def logged_in(browser: Browser, served: Served, **options: object) -> Iterator[BrowserContext]:
    """A browser that has opened the printed address."""
    context = browser.new_context(**options)  # type: ignore[arg-type]
    context.set_default_timeout(WAIT_MS)
    page = context.new_page()
    page.goto(served.printed)
    assert page.url == f"{served.address}/"
    page.close()
    yield context
    context.close()


@dataclass
class Watched:
    """What a page did beside showing text."""

    page: Page
    asked: list[Request] = field(default_factory=list)
    said: list[str] = field(default_factory=list)
    """Dialogs, errors, and what the page's policy refused."""

    def __post_init__(self) -> None:
        self.page.on("request", self._ask)
        self.page.on("dialog", self._dismiss)
        self.page.on("pageerror", lambda error: self.said.append(str(error)))
        self.page.on("console", self._hear)

    def _ask(self, request: Request) -> None:
        self.asked.append(request)

    def _dismiss(self, dialog: Dialog) -> None:
        self.said.append(dialog.message)
        dialog.dismiss()

    def _hear(self, line: ConsoleMessage) -> None:
        if line.type == "error":
            self.said.append(line.text)

    def assert_harmless(self, address: str) -> None:
        """No code ran, nothing else was asked for, and no character hides or turns others."""
        assert self.page.evaluate("window.ran") is None
        assert self.said == []
        assert {urlsplit(one.url).netloc for one in self.asked} == {urlsplit(address).netloc}
        texts = self.page.locator("body").inner_text() + self.page.title()
        assert not re.search("[\x00\x1b\u202e\u2066\u200b\ufeff]", texts)
        assert not re.search(f"{1331 * 7919}|<class ", texts)  # no template was filled in


def unfold(page: Page) -> None:
    """Show what is folded away."""
    page.evaluate("document.querySelectorAll('details').forEach((one) => { one.open = true; })")


def grave(page: Page) -> list[str]:
    """What axe-core finds that is serious or critical: rule and element."""
    found = Axe().run(page).response["violations"]
    return [
        f"{one['id']}: {node['failureSummary']} {node['html'][:100]}"
        for one in found
        if one["impact"] in ("serious", "critical")
        for node in one["nodes"]
    ]
