"""Who gets an answer from the console, and what no request can reach."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest
from starlette.datastructures import Headers
from starlette.testclient import TestClient

from rlep.view.app import Console
from rlep.view.gate import HEADERS, refused
from tests.unit.view.console_scene import TOKEN, client_of


def addresses() -> list[str]:
    """One of every route."""
    values = {"{run}": "runs~a", "{step:int}": "1", "{group:int}": "0", "{prompt}": "x", "{name}": "view.js"}
    values |= {"{number:int}": "0", "{pool}": "pool", "{study}": "runs~s"}
    paths = []
    for route in Console([]).routes():
        path = route.path
        for name, value in values.items():
            path = path.replace(name, value)
        paths.append(path)
    return paths


def test_without_the_cookie_every_route_asks_for_the_printed_address(runs: Path) -> None:
    stranger = client_of(runs, logged_in=False)
    assert len(addresses()) == 16
    for path in [*addresses(), "/nothing/here", "/docs", "/openapi.json"]:
        for query in ("", "?token=", "?token=wrong", f"?token={TOKEN}&token={TOKEN}"):
            answer = stranger.get(path + query)
            assert answer.status_code == 401, path
            assert "runs~a" not in answer.text
            assert "set-cookie" not in answer.headers
    assert "Open the address that rlep console printed" in stranger.get("/").text
    other = client_of(runs)  # the cookie of a console that is gone
    stranger.cookies.update(other.cookies)
    assert stranger.get("/").status_code == 401


def test_no_route_takes_anything_but_get(client: TestClient) -> None:
    assert all(route.methods == {"GET", "HEAD"} for route in Console([]).routes())
    for path in addresses():
        for method in ("POST", "PUT", "PATCH", "DELETE", "OPTIONS"):
            assert client.request(method, path).status_code == 405, (method, path)
    assert client.get("/docs").status_code == client.get("/openapi.json").status_code == 404


def test_the_token_becomes_a_cookie_that_scripts_and_other_sites_do_not_get(runs: Path) -> None:
    stranger = client_of(runs, logged_in=False)
    right = stranger.get(f"/runs/runs~a?page=1&token={TOKEN}")
    assert (right.status_code, right.headers["location"]) == (303, "/runs/runs~a?page=1")
    cookie = right.headers["set-cookie"]
    assert "HttpOnly" in cookie
    assert "SameSite=lax" in cookie  # a strict one is not sent after a click on another site's page
    assert TOKEN not in cookie
    assert stranger.get("/").status_code == 200


@pytest.mark.parametrize("path", ["//evil.example/", "/%5cevil.example", "/a%0d%0aX:%201"])
def test_the_token_leads_to_no_other_site(runs: Path, path: str) -> None:
    client = client_of(runs, logged_in=False)
    answer = client.get(f"http://127.0.0.1:7272{path}?token={TOKEN}")
    assert answer.headers["location"] in ("/", "/%5Cevil.example")  # which is a path


@pytest.mark.parametrize(
    "host", ["evil.example", "evil.example:7272", "127.0.0.1.evil.example", "a@127.0.0.1", "", "[::1", "0.0.0.0"]
)
def test_a_foreign_host_is_refused(client: TestClient, host: str) -> None:
    assert client.get("/", headers={"host": host}).status_code == 400


@pytest.mark.parametrize("host", ["localhost:9000", "127.0.0.1:7272", "[::1]:7272"])
def test_a_forwarded_port_is_not_foreign(client: TestClient, host: str) -> None:
    assert client.get("/", headers={"host": host, "origin": f"http://{host}"}).status_code in (200, 401)


@pytest.mark.parametrize("origin", ["http://evil.example", "null", "http://127.0.0.1:9", "https://127.0.0.1:7272"])
def test_a_foreign_origin_is_refused(client: TestClient, origin: str) -> None:
    assert client.get("/", headers={"origin": origin}).status_code == 403


@pytest.mark.parametrize("site", ["cross-site", "same-site"])
@pytest.mark.parametrize("mode", ["no-cors", "cors", "same-origin", "websocket"])
def test_of_another_site_only_navigations_are_answered(client: TestClient, site: str, mode: str) -> None:
    asked = {"sec-fetch-site": site, "sec-fetch-mode": mode}
    assert all(client.get(path, headers=asked).status_code == 403 for path in ("/", "/runs/runs~a/live"))
    assert client.get("/", headers=asked | {"sec-fetch-mode": "navigate"}).status_code == 200


@pytest.mark.parametrize(
    "path",
    [
        "/runs/..%2f..%2fetc",
        "/runs/%252e%252e",
        "/runs/%2e%2e%2fa",
        "/runs/runs~a%00",
        "/runs/runs%2fa",
        "/runs//etc/passwd",
        "/static/..%2fgate.py",
        "/static/%2e%2e/gate.py",
        "/static/gate.py",
        "/runs/runs~a/steps/-1",
        "/runs/runs~a/steps/1/groups/99",
        "/runs/runs~a/",
    ],
)
def test_no_path_leads_out_of_the_runs(client: TestClient, path: str) -> None:
    assert client.get(path).status_code == 404


def test_every_answer_has_the_policy(client: TestClient, runs: Path) -> None:
    answers = [client.get(path) for path in ("/", "/static/view.js", "/nowhere")]
    answers += [client_of(runs, logged_in=False).get("/"), client.get("/", headers={"host": "evil.example"})]
    for answer in answers:
        assert {name: answer.headers[name] for name in HEADERS} == HEADERS
    assert "unsafe" not in HEADERS["content-security-policy"]


def test_the_token_is_in_no_page_and_no_log(runs: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    client = client_of(runs)
    pages = [client.get(path).text for path in addresses() if not path.endswith("/live")]
    own = [line.getMessage() for line in caplog.records if not line.name.startswith("httpx")]  # the browser's
    assert not any(TOKEN in text for text in [*pages, *own])


def test_two_hosts_are_refused() -> None:
    hosts = [(b"host", b"127.0.0.1:7272"), (b"host", b"evil.example")]
    assert refused(Headers(raw=hosts[:1])) == ""
    assert refused(Headers(raw=hosts)) == "Host is not this console's"
