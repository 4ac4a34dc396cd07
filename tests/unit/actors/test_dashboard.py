"""What ``rlep submit`` finds at an address before it lists what it would upload."""

from __future__ import annotations

import os

import pytest

from rlep.actors import dashboard
from rlep.actors.dashboard import check_dashboard
from rlep.core.errors import ConfigError, DeadlineExceeded
from tests.unit.actors.web_answers import answering

VERSION = b'{"ray_version": "2.60.0"}'


@pytest.fixture(autouse=True)
def no_proxies(monkeypatch: pytest.MonkeyPatch) -> None:
    """None but a test's own; what the check sets goes with the test."""
    for name in ("http_proxy", "https_proxy", "all_proxy", "no_proxy"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.upper(), raising=False)
    for name in ("no_proxy", "NO_PROXY"):
        monkeypatch.setenv(name, "")


@pytest.mark.parametrize("status", [200, 401, 403])
def test_a_dashboard_and_one_that_wants_a_token_are_found(status: int) -> None:
    with answering(VERSION, status) as address:
        check_dashboard(address, pytest.fail)


@pytest.mark.parametrize(
    ("body", "status", "reason"),
    [
        (b"<html>", 200, "its answer names no version of Ray"),
        (b"{}", 200, "its answer names no version of Ray"),
        (b"", 404, "it answers 404 to /api/version"),
        (b"", 503, "it answers 503 to /api/version"),
    ],
)
def test_what_is_no_dashboard_is_one_sentence(body: bytes, status: int, reason: str) -> None:
    with answering(body, status) as address, pytest.raises(ConfigError) as refused:
        check_dashboard(address, pytest.fail)
    assert str(refused.value) == f"{address} is not the address of a dashboard (http://HEAD:8265): {reason}"


def test_a_missing_one_is_said_at_once_and_given_up_after_the_deadline(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dashboard, "APPEAR_S", 0.1)
    noted: list[str] = []
    with pytest.raises(
        DeadlineExceeded, match=r"^no Ray dashboard answers at http://127\.0\.0\.1:1: Connection refused$"
    ):
        check_dashboard("http://127.0.0.1:1", noted.append)
    assert noted == ["no Ray dashboard answers at http://127.0.0.1:1 yet (Connection refused); trying for 0.1 s"]


def test_on_loopback_a_proxy_is_bypassed_for_what_follows_too(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []
    with answering(b"", 502, asked) as proxy, answering(VERSION) as address:
        monkeypatch.setenv("http_proxy", proxy)
        check_dashboard(address, pytest.fail)
    assert asked == []
    assert os.environ["no_proxy"] == os.environ["NO_PROXY"] == "127.0.0.1"


def test_elsewhere_the_proxy_is_named_without_its_password(monkeypatch: pytest.MonkeyPatch) -> None:
    with answering(b"", 502) as proxy:
        monkeypatch.setenv("http_proxy", proxy.replace("http://", "http://user:hidden@"))
        with pytest.raises(ConfigError) as refused:
            check_dashboard("http://head.invalid:8265", pytest.fail)
    port = proxy.rpartition(":")[2]
    assert str(refused.value) == (
        "http://head.invalid:8265 is not the address of a dashboard (http://HEAD:8265): it answers 502 to /api/version "
        f"(asked through the proxy 127.0.0.1:{port} of http_proxy: no_proxy=head.invalid bypasses it)"
    )
