"""``rlep console`` as a user starts and ends it."""

from __future__ import annotations

import signal
import subprocess
import sys
import urllib.error
import urllib.parse
import urllib.request
from http.cookiejar import CookieJar
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow


def command(*arguments: str | Path) -> list[str]:
    return [sys.executable, "-m", "rlep", "console", *map(str, arguments)]


def test_it_serves_with_the_token_of_the_printed_address_until_ctrl_c(tmp_path: Path) -> None:
    (tmp_path / "runs" / "one").mkdir(parents=True)
    (tmp_path / "runs" / "one" / "events.jsonl").write_text("")
    with subprocess.Popen(
        command(tmp_path / "runs", "--listen", "0"), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        try:
            assert process.stdout is not None
            address, _, token = process.stdout.readline().strip().partition("?token=")
            browser = urllib.request.build_opener(urllib.request.HTTPCookieProcessor(CookieJar()))
            with pytest.raises(urllib.error.HTTPError, match="401") as refused:
                browser.open(address, timeout=60)
            refused.value.close()
            for query in (f"?token={token}", ""):
                with browser.open(address + query, timeout=60) as page:
                    assert page.url == address
                    assert "/runs/runs~one" in page.read().decode()
            port = urllib.parse.urlsplit(address).port
            taken = subprocess.run(
                command(tmp_path, "--listen", str(port)), capture_output=True, text=True, check=False
            )
            process.send_signal(signal.SIGINT)
            output, errors = process.communicate(timeout=60)
        finally:
            process.kill()
    assert process.returncode == 0, errors
    assert output + errors == ""
    assert taken.returncode == 2
    assert f"--listen {port}: " in taken.stderr


def test_it_names_a_missing_directory_or_pool(tmp_path: Path) -> None:
    for arguments, reason in (
        ((tmp_path / "nowhere",), "there is no such directory"),
        ((tmp_path, "--pool", tmp_path), "no embedded pool lies there"),
        ((tmp_path, "--listen", "0.0.0.0:0"), "the console is for this machine alone: 127.0.0.1 or localhost"),
        ((tmp_path, "--listen", "here"), "address 'here' is not HOST:PORT"),
        ((tmp_path, "--pool", "redis://:canary@127.0.0.1/0"), "holds a password"),
    ):
        done = subprocess.run(command(*arguments), capture_output=True, text=True, check=False, timeout=120)
        assert done.returncode == 2
        assert reason in done.stderr
        assert "canary" not in done.stderr
