"""Who gets an answer from the console, and what no request can reach."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest
from starlette.datastructures import Headers
from starlette.testclient import TestClient
from starlette.types import Message

from rlep.console.addresses import Addresses
from rlep.console.app import Console, console_app
from rlep.console.gate import COOKIE, HEADERS, MOST_SESSIONS, SESSION_S, Sessions, refused
from rlep.services.pool.rpc.access import Role
from tests.unit.console.console_scene import TOKEN, client_of, role_of


def addresses() -> list[str]:
    """One of every route."""
    values = {"{run}": "runs~a", "{step:int}": "1", "{group:int}": "0", "{prompt}": "x", "{name}": "console.js"}
    values |= {"{number:int}": "0", "{pool}": "pool", "{study}": "runs~s"}
    paths = []
    for route in Console([]).routes():
        path = route.path
        for name, value in values.items():
            path = path.replace(name, value)
        paths.append(path)
    return paths


def test_without_a_session_every_route_is_the_login_page(runs: Path) -> None:
    stranger = client_of(runs, logged_in=False)
    assert len(addresses()) == 20
    for path in [*addresses(), "/nothing/here", "/docs", "/openapi.json"]:
        answer = stranger.get(path)
        assert answer.status_code == 401, path
        assert "runs~a" not in answer.text.replace(f'value="{path}"', "")
        assert ("www-authenticate" in answer.headers) is path.startswith("/api/")
        if path.startswith("/api/"):
            assert answer.json()["code"] == 401
    stranger.cookies.set(COOKIE, "guessed")
    assert stranger.get("/").status_code == 401


def test_no_route_takes_anything_but_get(client: TestClient) -> None:
    assert all(route.methods == {"GET", "HEAD"} for route in Console([]).routes())
    for path in addresses():
        for method in ("POST", "PUT", "PATCH", "DELETE", "OPTIONS"):
            assert client.request(method, path).status_code == 405, (method, path)
    assert client.get("/docs").status_code == client.get("/openapi.json").status_code == 404


def test_the_token_becomes_a_cookie_that_scripts_and_other_sites_do_not_get(runs: Path) -> None:
    stranger = client_of(runs, logged_in=False)
    wrong = stranger.post("/login", data={"token": "wrong", "next": "/"})
    assert wrong.status_code == 401
    assert "set-cookie" not in wrong.headers
    right = stranger.post("/login", data={"token": f" {TOKEN}\n", "next": "/runs/runs~a?page=1"})
    assert (right.status_code, right.headers["location"]) == (303, "/runs/runs~a?page=1")
    cookie = right.headers["set-cookie"]
    assert "HttpOnly" in cookie
    assert "SameSite=strict" in cookie
    assert TOKEN not in cookie
    assert stranger.get("/").status_code == 200


@pytest.mark.parametrize(
    "onward", ["//evil.example", "https://evil.example", "/\\evil.example", "javascript:1", "/a\r\nX: 1"]
)
def test_a_login_leads_to_no_other_site(runs: Path, onward: str) -> None:
    answer = client_of(runs, logged_in=False).post("/login", data={"token": TOKEN, "next": onward})
    assert answer.headers["location"] == "/"


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
    assert client.post("/login", data={"token": TOKEN}, headers={"origin": origin}).status_code == 403
    assert client.get("/", headers={"sec-fetch-site": "cross-site", "sec-fetch-mode": "no-cors"}).status_code == 403


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
    answers = [client.get(path) for path in ("/", "/static/console.js", "/nowhere")]
    answers += [client_of(runs, logged_in=False).get("/"), client.get("/", headers={"host": "evil.example"})]
    for answer in answers:
        assert {name: answer.headers[name] for name in HEADERS} == HEADERS
    assert "unsafe" not in HEADERS["content-security-policy"]


def test_the_token_is_in_no_page_and_no_log(runs: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    client = client_of(runs)
    pages = [client.get(path).text for path in addresses() if not path.endswith("/live")]
    assert not any(TOKEN in text for text in [*pages, caplog.text])


def test_scripts_send_the_token_in_a_header(runs: Path) -> None:
    stranger = client_of(runs, logged_in=False)
    right = {"authorization": f"Bearer {TOKEN}"}
    for path in ("/api/runs", "/runs/runs~a"):
        answer = stranger.get(path, headers=right)
        assert answer.status_code == 200
        assert "set-cookie" not in answer.headers
        assert stranger.get(path, headers=right | {"host": "evil.example"}).status_code == 400
        assert stranger.get(path, headers=right | {"origin": "http://evil.example"}).status_code == 403
        assert stranger.post(path, headers=right).status_code == 405
        for wrong in (f"Basic {TOKEN}", TOKEN, "Bearer", "Bearer wrong", f"Bearer {TOKEN} {TOKEN}"):
            assert stranger.get(path, headers={"authorization": wrong}).status_code == 401
    assert TOKEN not in stranger.get("/api/runs", headers=right).text


def test_a_session_ends() -> None:
    now = [0.0]
    sessions = Sessions(lambda: now[0])
    name = sessions.open(Role.READ)
    assert (held := sessions.of(name)) is not None
    assert held.role == Role.READ
    assert sessions.of(None) is None
    now[0] = SESSION_S + 1.0
    assert sessions.of(name) is None


def test_logins_with_a_read_token_end_no_session_of_an_admin() -> None:
    sessions = Sessions()
    admin, first = sessions.open(Role.ADMIN), sessions.open(Role.READ)
    names = [sessions.open(Role.READ) for _ in range(MOST_SESSIONS)]
    assert sessions.of(admin) is not None
    assert sessions.of(first) is None  # the oldest of its own role
    assert all(sessions.of(name) is not None for name in names)


def test_a_long_login_is_not_read(runs: Path) -> None:
    assert client_of(runs, logged_in=False).post("/login", content=b"token=" + b"x" * 10_000).status_code == 413
    fields = {f"f{at}": "x" for at in range(9)}
    assert client_of(runs, logged_in=False).post("/login", data=fields).status_code == 413


def test_two_hosts_are_refused() -> None:
    hosts = [(b"host", b"127.0.0.1:7272"), (b"host", b"evil.example")]
    assert refused(Headers(raw=hosts[:1]), Addresses()) == ""
    assert refused(Headers(raw=hosts), Addresses()) == "Host is not this console's"


async def test_a_login_whose_sender_goes_is_no_error(runs: Path) -> None:
    heard: list[Message] = [{"type": "http.request", "body": b"token=", "more_body": True}, {"type": "http.disconnect"}]
    said: list[Message] = []

    async def receive() -> Message:
        return heard.pop(0)

    async def send(message: Message) -> None:
        said.append(message)

    scope = {
        "type": "http",
        "method": "POST",
        "path": "/login",
        "query_string": b"",
        "headers": [(b"host", b"127.0.0.1")],
    }
    await console_app([runs], role_of)(scope, receive, send)
    assert said[0]["status"] == 413
