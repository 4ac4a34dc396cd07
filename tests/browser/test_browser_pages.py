"""Every page in a browser: what others wrote stays text, and anybody can read it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from playwright.sync_api import Browser, BrowserContext, expect
from starlette.routing import Match

from rlep.view.app import Console
from tests.browser.browser_scene import Served, Watched, grave, logged_in, paths_of, unfold
from tests.unit.view.console_scene import ATTACKS

PAGES = (
    "runs", "choose", "compare", "run", "finished", "name", "step", "wrong", "group", "prompt", "episodes",
    "evaluation", "samples", "played", "actors", "none", "pool", "studies", "study", "pools", "named", "stored",
)  # fmt: skip

WRITTEN = ("run", "group", "prompt", "episodes", "samples", "played", "actors", "study", "named", "stored")
"""Those that show the beginning of what a model, a policy or a study is called or wrote."""

REFUSED = """
() => new Promise((done) => {
    const refused = [];
    document.addEventListener("securitypolicyviolation", (event) => {
        refused.push(event.effectiveDirective);
        if (refused.length === 3) done(refused.sort());
    });
    const script = document.createElement("script");
    script.textContent = "window.ran = 1";
    document.body.append(script);
    document.body.insertAdjacentHTML("beforeend", "<b onclick='window.ran = 2'>x</b><img src='//evil.example/x'>");
    document.body.lastElementChild.previousElementSibling.click();
})
"""
"""Does in a page what escaping keeps others from; the directives that refuse it."""


@pytest.fixture(scope="module")
def context(browser: Browser, served: Served) -> Iterator[BrowserContext]:
    with logged_in(browser, served) as made:
        yield made


@pytest.fixture(scope="module", params=["light", "dark"])
def inspected(browser: Browser, served: Served, request: pytest.FixtureRequest) -> Iterator[BrowserContext]:
    """One whose pages let axe-core in, which the policy would refuse."""
    with logged_in(browser, served, bypass_csp=True, color_scheme=request.param) as made:
        yield made


def test_these_are_all_pages(served: Served) -> None:
    paths = paths_of(served.runs)
    assert tuple(paths) == PAGES
    routes = [one for one in Console([]).routes() if not one.path.startswith(("/static/", "/runs/{run}/live"))]
    for route in routes:
        scopes = [{"type": "http", "method": "GET", "path": path.partition("?")[0]} for path in paths.values()]
        assert any(route.matches(scope)[0] == Match.FULL for scope in scopes), route.path


@pytest.mark.parametrize("name", PAGES)
def test_what_others_wrote_is_text(context: BrowserContext, served: Served, name: str) -> None:
    page = context.new_page()
    watched = Watched(page)
    answer = page.goto(served.address + paths_of(served.runs)[name])
    assert answer is not None
    assert answer.status == 200
    expect(page.locator("h1")).to_be_visible()
    unfold(page)
    watched.assert_harmless(served.address)
    assert name not in WRITTEN or ATTACKS[0] in page.locator("main").inner_text()
    page.close()


@pytest.mark.parametrize("name", [*PAGES, "missing"])
def test_everybody_can_read_it(inspected: BrowserContext, served: Served, name: str) -> None:
    page = inspected.new_page()
    page.goto(served.address + paths_of(served.runs).get(name, "/nothing"))
    unfold(page)
    assert grave(page) == []
    page.close()


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_everybody_can_read_that_the_token_is_asked_for(browser: Browser, served: Served, scheme: str) -> None:
    context = browser.new_context(bypass_csp=True, color_scheme=scheme)  # type: ignore[arg-type]
    page = context.new_page()
    page.goto(served.address)
    expect(page.get_by_text("Open the address that rlep console printed")).to_be_visible()
    assert grave(page) == []
    context.close()


def test_code_that_gets_into_a_page_does_not_run(context: BrowserContext, served: Served) -> None:
    page = context.new_page()
    page.goto(served.address)
    with page.expect_event("requestfailed") as request:
        refused = page.evaluate(REFUSED)
    assert refused == ["img-src", "script-src-attr", "script-src-elem"]
    assert request.value.failure == "csp"
    assert page.evaluate("window.ran") is None
    page.close()


def test_an_episode_is_read_turn_by_turn_and_its_answers_are_unfolded(context: BrowserContext, served: Served) -> None:
    page = context.new_page()
    page.set_viewport_size({"width": 420, "height": 900})
    page.goto(served.address + paths_of(served.runs)["episodes"])
    first = page.locator("article").first
    expect(first.locator("h4")).to_have_text(
        ["Turn 1 3 tokens, then 3 of the environment", "Turn 2 3 tokens"], use_inner_text=False
    )
    answer = first.locator("details.answer")
    expect(answer.locator("pre")).to_be_hidden()
    answer.locator("summary").click()
    expect(answer.locator("pre")).to_contain_text(ATTACKS[-1])
    expect(answer.locator("pre")).not_to_contain_text("tool_response")
    expect(first.locator(".call dt")).to_have_count(1)
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")  # nothing stands out at the side
    page.close()
