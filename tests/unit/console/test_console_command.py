"""``rlep console`` as a user starts and ends it."""

from __future__ import annotations

import http.client
import json
import signal
import ssl
import subprocess
import sys
import urllib.error
import urllib.parse
import urllib.request
from http.cookiejar import CookieJar
from pathlib import Path

import pytest

from tests.services.pool.pool_servers import make_certificate

pytestmark = pytest.mark.slow


def command(*arguments: str | Path) -> list[str]:
    return [sys.executable, "-m", "rlep", "console", *map(str, arguments)]


def test_it_serves_with_a_token_that_it_made_until_ctrl_c(tmp_path: Path) -> None:
    (tmp_path / "runs" / "one").mkdir(parents=True)
    (tmp_path / "runs" / "one" / "events.jsonl").write_text("")
    token = tmp_path / "private" / "token"
    with subprocess.Popen(
        command(tmp_path / "runs", "--listen", "127.0.0.1:0", "--token-file", token),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        try:
            assert process.stdout is not None
            address = process.stdout.readline().strip()
            browser = urllib.request.build_opener(urllib.request.HTTPCookieProcessor(CookieJar()))
            with pytest.raises(urllib.error.HTTPError, match="401") as refused:
                browser.open(address, timeout=60)
            refused.value.close()
            assert token.stat().st_mode & 0o777 == 0o600
            secret = token.read_text().strip()
            form = urllib.parse.urlencode({"token": secret, "next": "/"}).encode()
            with browser.open(f"{address}/login", form, timeout=60) as page:
                assert "/runs/runs~one" in page.read().decode()
            process.send_signal(signal.SIGINT)
            output, errors = process.communicate(timeout=60)
        finally:
            process.kill()
    assert process.returncode == 0, errors
    assert errors.splitlines() == [f"log in with the token in {token}"]
    assert secret not in output + errors


def test_with_a_certificate_it_speaks_tls_and_nothing_else(tmp_path: Path) -> None:
    pair = make_certificate(tmp_path, "console")
    (tmp_path / "runs" / "one").mkdir(parents=True)
    (tmp_path / "runs" / "one" / "events.jsonl").write_text("")
    token = tmp_path / "token"
    tls = ("--tls-cert", pair.certificate_file, "--tls-key", pair.key_file, "--origin", "https://hub.example")
    with subprocess.Popen(
        command(tmp_path / "runs", "--listen", "127.0.0.1:0", "--token-file", token, *tls),
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    ) as process:
        try:
            assert process.stdout is not None
            address = process.stdout.readline().strip()
            assert address.startswith("https://127.0.0.1:")
            assert process.stdout.readline().strip() == "https://hub.example"
            trusting = ssl.create_default_context(cafile=str(pair.certificate_file))
            right = urllib.request.Request(f"{address}/api/runs")
            right.add_header("Authorization", f"Bearer {token.read_text().strip()}")
            with urllib.request.urlopen(right, timeout=60, context=trusting) as answer:
                assert [run["name"] for run in json.load(answer)["runs"]] == ["runs~one"]
            with pytest.raises(urllib.error.URLError, match="CERTIFICATE_VERIFY_FAILED"):
                urllib.request.urlopen(right, timeout=60)
            with pytest.raises((urllib.error.URLError, ConnectionError, http.client.HTTPException)):
                urllib.request.urlopen(address.replace("https", "http"), timeout=60)
            process.send_signal(signal.SIGINT)
            process.communicate(timeout=60)
        finally:
            process.kill()
    assert process.returncode == 0


def test_it_refuses_what_others_could_read_and_names_a_missing_directory(tmp_path: Path) -> None:
    for arguments, reason in (
        ((tmp_path, "--listen", "0.0.0.0:0"), "can be reached from other machines: it needs TLS"),
        ((tmp_path, "--tls-cert", "x"), "TLS needs --tls-cert and --tls-key together"),
        ((tmp_path, "--origin", "http://hub.example"), "is not of the form https://HOST"),
        ((tmp_path / "nowhere",), "there is no such directory"),
        ((tmp_path, "--pool", tmp_path), "no embedded pool lies there"),
        ((tmp_path, "--pool", "redis://:canary@127.0.0.1/0"), "holds a password"),
    ):
        done = subprocess.run(command(*arguments), capture_output=True, text=True, check=False, timeout=120)
        assert done.returncode == 2
        assert reason in done.stderr
        assert "canary" not in done.stderr
