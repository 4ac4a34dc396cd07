"""A console in a browser while runs work and end, and while it is killed itself."""

from __future__ import annotations

import hashlib
import platform
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, BrowserContext, Page, expect

from rlep.driver.run_directory import Facts, RunDirectory
from tests.browser.browser_scene import Served, logged_in, paths_of, serving
from tests.unit.driver.driver_values import TOKENIZER, config_of

MARK = "document.watched = true"
HOLDER = """
import sys
from pathlib import Path
from rlep.metrics.logs import EventLog
with EventLog(Path(sys.argv[1])) as events:
    events.log("run_started")
    print("begun", flush=True)
    sys.stdin.read()
"""
"""Holds the lock of a run as its driver does."""


@pytest.fixture
def context(browser: Browser, served: Served) -> Iterator[BrowserContext]:
    with logged_in(browser, served) as made:
        yield made


@pytest.fixture
def working(served: Served, tmp_path: Path) -> Iterator[RunDirectory]:
    """A run of two steps whose driver is at work."""
    directory = served.runs / tmp_path.name
    store = RunDirectory(directory, config_of(run={"directory": str(directory)}), Facts("train", "model", TOKENIZER))
    store.events.log("run_started")
    for step in range(2):
        log(store, step)
    yield store
    store.close()


def log(store: RunDirectory, step: int) -> None:
    """The line of a step, by the driver's own writer."""
    numbers = {"rollout/accuracy": 0.25 + step / 16, "time/step": 2.0 + step, "time/generate": 1.0}
    store.metrics.log(step, numbers | {"actors/alive/generator": 1, "actors/restarts/generator": step})


def opened(context: BrowserContext, address: str) -> Page:
    """The page, marked: a page that is loaded again loses the mark."""
    page = context.new_page()
    page.goto(address)
    page.evaluate(MARK)
    return page


def steps_of(page: Page) -> list[str]:
    """First cells of the table of steps."""
    return page.locator("#steps .wide tbody tr td:first-child").all_text_contents()  # also while they are folded


def points(page: Page, title: str) -> int:
    """Points of the first curve of a picture."""
    path = page.locator("figure").filter(has_text=title).locator("polyline").first.get_attribute("points")
    return len((path or "").split())


def test_a_run_grows_while_it_is_watched(context: BrowserContext, served: Served, working: RunDirectory) -> None:
    page = opened(context, f"{served.address}/runs/runs~{working.path.name}")
    assert steps_of(page) == ["1", "0"]
    assert points(page, "Correct responses") == 2
    page.locator("#steps summary").click()
    link = page.get_by_role("link", name="Actors")
    link.focus()
    for step in (2, 3):
        log(working, step)
        expect(page.locator(".big").filter(has_text=f"{step + 1} of")).to_be_visible()
        assert steps_of(page) == [str(one) for one in range(step, -1, -1)]
        assert points(page, "Correct responses") == step + 1
    assert page.evaluate("document.watched")
    expect(page.locator("#steps")).to_have_attribute("open", "")  # what the reader opened stays so
    expect(link).to_be_focused()
    working.events.log("run_finished", 4)
    expect(page.locator("h1 .finished")).to_be_visible()
    page.close()


def test_the_page_of_actors_grows_too(context: BrowserContext, served: Served, working: RunDirectory) -> None:
    page = opened(context, f"{served.address}/runs/runs~{working.path.name}/actors")
    expect(page.get_by_role("row", name=re.compile("^step 3 s 2.5 s "))).to_be_visible()
    log(working, 2)
    expect(page.get_by_role("row", name=re.compile("^step 4 s 3 s "))).to_be_visible()
    working.events.log("actor_started", actor="generator-7")
    expect(page.get_by_role("row", name=re.compile("^generator-7 at work "))).to_be_visible()
    assert page.evaluate("document.watched")
    page.close()


def test_a_page_that_nobody_sees_gives_its_connection_back(
    context: BrowserContext, served: Served, working: RunDirectory
) -> None:
    hide = "(hidden) => { Object.defineProperty(document, 'hidden', { value: hidden, configurable: true });"
    hide += " document.dispatchEvent(new Event('visibilitychange')); }"
    address = f"{served.address}/runs/runs~{working.path.name}"
    pages = [opened(context, address) for _ in range(5)]  # a browser has six connections to one address
    for page in pages[1:]:
        page.evaluate(hide, True)
    pages += [opened(context, address) for _ in range(2)]
    log(working, 2)
    for page in pages[1:5]:
        page.evaluate(hide, False)
        expect(page.locator(".big").filter(has_text="3 of")).to_be_visible()
        page.evaluate(hide, True)
    for page in pages:
        page.close()


def test_from_a_prompt_to_its_group_the_pool_and_back(context: BrowserContext, served: Served) -> None:
    page = context.new_page()
    prompt = served.address + paths_of(served.runs)["prompt"]
    page.goto(prompt)
    page.locator("tbody a[href*='/groups/']").first.click()
    expect(page.get_by_role("heading", name="Replays")).to_be_visible()
    page.get_by_role("link", name="this prompt in other steps").click()
    expect(page).to_have_url(prompt)
    page.get_by_role("link", name="Pool", exact=True).click()
    expect(page.get_by_role("heading", name="Coverage")).to_be_visible()
    page.locator(f"a[href$='{prompt.rpartition('/')[2]}']").first.click()
    expect(page).to_have_url(prompt)
    expect(page.get_by_role("columnheader", name="Verifier")).to_be_visible()
    for _ in range(4):
        page.go_back()
    expect(page).to_have_url(prompt)
    page.locator("tbody a[href*='/groups/']").first.click()
    for title, key in (
        ("Step [0-9], group 0", "j"),
        ("Step [0-9], group 1", "u"),
        ("Step [0-9]", "u"),
        ("runs~a failed", "u"),
    ):
        expect(page.locator("h1")).to_have_text(re.compile(f"^{title}$"))
        page.wait_for_load_state()  # keys work once the script is there
        page.keyboard.press(key)
    expect(page.locator("h1")).to_have_text("Runs")
    page.close()


def test_a_run_whose_driver_is_killed_is_said_to_be_dead(
    context: BrowserContext, served: Served, tmp_path: Path
) -> None:
    run = served.runs / tmp_path.name
    run.mkdir()
    (run / "config.json").write_text("{}")
    (run / "manifest.json").write_text(f'{{"host": "{platform.node()}"}}')
    command = [sys.executable, "-c", HOLDER, str(run / "events.jsonl")]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as driver:
        try:
            assert driver.stdout is not None
            assert driver.stdout.readline() == "begun\n"
            page = opened(context, f"{served.address}/runs/runs~{run.name}")
            expect(page.locator("h1 .running")).to_be_visible()
            driver.send_signal(signal.SIGKILL)
            driver.wait(timeout=60)
            expect(page.locator("h1 .dead")).to_be_visible()
        finally:
            driver.kill()
    expect(page.get_by_text("it was killed")).to_be_visible()
    assert page.evaluate("document.watched")
    page.goto(served.address)
    expect(page.get_by_role("row").filter(has_text=run.name).locator("td.dead")).to_be_visible()
    page.close()


def test_a_killed_console_says_so_and_touches_no_run(browser: Browser, working: RunDirectory) -> None:
    before = tree(working.path)
    with serving(working.path) as console, logged_in(browser, console) as context:
        page = opened(context, f"{console.address}/runs/{working.path.name}")
        assert steps_of(page) == ["1", "0"]
        console.process.kill()
        console.process.wait(timeout=60)
        expect(page.get_by_role("status")).to_contain_text("The console does not answer")
        assert steps_of(page) == ["1", "0"]
        assert page.evaluate("document.watched")
    assert tree(working.path) == before
    log(working, 2)  # its driver goes on


def test_a_crosshair_has_the_values_and_dragging_enlarges(
    context: BrowserContext, served: Served, working: RunDirectory
) -> None:
    for step in range(2, 9):
        log(working, step)
    page = opened(context, f"{served.address}/runs/runs~{working.path.name}")
    chart = page.locator("figure").filter(has_text="Correct responses").locator("svg[data-hover]").first
    box = chart.bounding_box()
    assert box is not None
    middle = box["y"] + box["height"] / 2
    page.mouse.move(box["x"] + box["width"] * (66 + 640 / 2) / 720, middle)  # half way from step 0 to step 8
    tip = page.locator(".tip")
    expect(tip).to_contain_text("step 4")
    expect(tip).to_contain_text("Correct fresh responses: 50 %")
    spot = tip.bounding_box()
    assert spot is not None
    assert box["y"] <= spot["y"] < box["y"] + box["height"]
    page.mouse.down()
    page.mouse.move(box["x"] + box["width"] * (66 + 640 * 3 / 4) / 720, middle)
    page.mouse.up()
    page.wait_for_url(re.compile("low=4"))
    expect(page.locator("svg[data-low='4']").first).to_be_visible()
    page.close()


def test_a_reader_chooses_light_or_dark_and_it_stays(context: BrowserContext, served: Served) -> None:
    page = context.new_page()
    page.goto(served.address)
    button = page.get_by_role("button", name="Theme")
    for shown in ("light", "dark"):
        button.click()
        expect(button).to_have_text(f"Theme: {shown}")
    dark = page.evaluate("getComputedStyle(document.body).backgroundColor")
    page.goto(f"{served.address}/studies")
    expect(page.get_by_role("button", name="Theme")).to_have_text("Theme: dark")
    assert page.evaluate("getComputedStyle(document.body).backgroundColor") == dark == "rgb(15, 18, 24)"
    page.close()


def tree(directory: Path) -> dict[str, tuple[int, int, str]]:
    """Every entry: inode, time of change and content."""
    return {
        str(path): (
            path.stat().st_ino,
            path.stat().st_mtime_ns,
            hashlib.sha256(path.read_bytes()).hexdigest() if path.is_file() else "",
        )
        for path in [directory, *sorted(directory.rglob("*"))]
    }
