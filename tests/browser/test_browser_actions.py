"""The buttons that change a run, against a program that stands for ``rlep``."""

from __future__ import annotations

from pathlib import Path

import pytest
from playwright.sync_api import Browser, expect

from rlep.console.app import console_app
from tests.browser.browser_scene import Watched, grave, logged_in, serving_here
from tests.unit.console.actions_scene import stub_actions, write_working
from tests.unit.console.console_scene import role_of


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_a_button_starts_a_command_whose_end_is_seen(browser: Browser, tmp_path: Path, scheme: str) -> None:
    run = write_working(tmp_path / "runs" / "a")
    app = console_app([run.parent], role_of, (), stub_actions(tmp_path))
    (tmp_path / "wait").touch()
    with (
        serving_here(app) as address,
        logged_in(browser, address, color_scheme=scheme, bypass_csp=scheme == "dark") as context,
    ):
        page = context.new_page()
        watched = Watched(page)
        page.goto(f"{address}/runs/runs~a/actors")
        page.get_by_label("Role").select_option("verifiers")
        page.get_by_label("Number").fill("3")
        page.get_by_role("button", name="Scale").focus()
        with (run / "events.jsonl").open("a") as events:  # the page is renewed, and keeps what was typed
            events.write('{"time": 2.0, "event": "actor_started", "step": null, "actor": "verifier-0"}\n')
        expect(page.get_by_role("row", name="verifier-0 at work")).to_be_visible()
        expect(page.get_by_label("Number")).to_have_value("3")
        expect(page.get_by_label("Role")).to_have_value("verifiers")
        expect(page.get_by_role("button", name="Scale")).to_be_focused()
        page.keyboard.press("Enter")
        command = page.locator("article").filter(
            has=page.get_by_role("heading", name=f"rlep scale verifiers 3 --run {run}")
        )
        expect(command).to_contain_text("at work")
        (tmp_path / "wait").unlink()
        expect(command).to_contain_text(": done")  # without a reload
        expect(command).to_contain_text("asked for scale verifiers 3")
        assert page.evaluate("window.ran") is None
        page.get_by_label("Actor").fill("generator-1")
        page.get_by_role("button", name="Drain").click()
        drained = page.locator("article").filter(has_text="rlep drain generator-1")
        expect(drained).to_contain_text(": done")
        page.get_by_label("Number").fill("none")
        if scheme == "dark":
            assert grave(page) == []
        else:
            watched.assert_harmless(address)
        page.get_by_role("button", name="Scale").click()
        expect(page.locator("main")).to_contain_text("The number is a whole number from 1 to 9999.")
