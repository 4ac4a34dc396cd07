"""A page taken apart, and what must be true of every page whatever a model wrote."""

from __future__ import annotations

import re
from html.parser import HTMLParser

from starlette.testclient import TestClient


class Found(HTMLParser):
    """Rows of cells, and the names of all elements and attributes."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.rows: list[list[str]] = []
        self.names: set[str] = set()
        self._cell = False
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.names |= {tag, *(name for name, _ in attrs)}
        if tag == "tr":
            self.rows.append([])
        self._cell = self._cell or tag in ("td", "th")
        if tag in ("td", "th"):
            self.rows[-1].append("")

    def handle_endtag(self, tag: str) -> None:
        self._cell = self._cell and tag not in ("td", "th")

    def handle_data(self, data: str) -> None:
        if self._cell:
            self.rows[-1][-1] += data


def page(client: TestClient, path: str) -> str:
    answer = client.get(path)
    assert answer.status_code == 200, path
    return answer.text


def assert_harmless(text: str) -> None:
    """No script, image, handler or link of anybody else's, and no character that hides or turns others."""
    names = Found(text).names
    assert not {name for name in names if name.startswith("on")}
    assert names & {"img", "iframe", "object", "style"} == set()
    assert re.findall("<script[^>]*>", text) == ['<script src="/static/view.js" defer>']
    assert not re.search("[\x00\x1b\u202e\u2066\u200b\ufeff]", text)
    assert "49\n" not in text
    for link in re.findall('href="([^"]*)"', text):
        assert link.startswith(("/", "?")), link
