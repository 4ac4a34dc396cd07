"""Check that a Ray dashboard answers at an address: directly on loopback, else by the proxies of the environment."""

from __future__ import annotations

import http.client
import json
import os
import ssl
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from urllib.parse import urlsplit

from rlep.core.errors import ConfigError, DeadlineExceeded

APPEAR_S = 15.0
"""For the dashboard of a head that has just been started."""
ANSWER_S = 5.0
"""Longest wait for one answer."""
LOOPBACK = ("localhost", "127.0.0.1", "::1")
REFUSED = (401, 403)
"""A dashboard's answers to a stranger: Ray's client then says what the token lacks."""


def check_dashboard(address: str, note: Callable[[str], None]) -> None:
    """Wait until a dashboard answers at this ``http(s)`` address; ``note`` is told once where it does not at once.

    On loopback, proxies of the environment are bypassed from here on, in this process.

    Raises:
        ConfigError: what answers is no dashboard.
        DeadlineExceeded: nothing answers within ``APPEAR_S``; a proxy on the way is named.
    """
    host = urlsplit(address).hostname or ""
    if host in LOOPBACK:
        for name in ("no_proxy", "NO_PROXY"):
            os.environ[name] = ",".join([*filter(None, [os.environ.get(name)]), host])
    until, noted = time.monotonic() + APPEAR_S, False
    while reason := _unanswered(address):
        if time.monotonic() > until:
            raise DeadlineExceeded(f"no Ray dashboard answers at {address}: {reason}{_on_the_way(address)}")
        if not noted:
            note(f"no Ray dashboard answers at {address} yet ({reason}); trying for {APPEAR_S:g} s")
            noted = True
        time.sleep(0.5)


def _unanswered(address: str) -> str:
    """Say why nothing answers; an empty string where a dashboard does. Raises ``ConfigError`` where something else does."""
    what = ""
    try:
        # An opener of its own: that of the module keeps the proxies that it met first.
        with urllib.request.build_opener().open(f"{address.rstrip('/')}/api/version", timeout=ANSWER_S) as answer:
            if "ray_version" not in json.loads(answer.read()):
                what = "its answer names no version of Ray"
    except urllib.error.HTTPError as error:
        error.close()
        if error.code not in REFUSED:
            what = f"it answers {error.code} to /api/version"
    except urllib.error.URLError as error:
        if not isinstance(error.reason, ssl.SSLError):  # Ray's client says what it thinks of a certificate
            return str(getattr(error.reason, "strerror", None) or error.reason)
    except ValueError:
        what = "its answer names no version of Ray"
    except (OSError, http.client.HTTPException) as error:
        return str(error) or type(error).__name__
    if what:
        raise ConfigError(
            f"{address} is not the address of a dashboard (http://HEAD:8265): {what}{_on_the_way(address)}"
        )
    return ""


def _on_the_way(address: str) -> str:
    """Name the proxy that requests go through and a way to bypass it; an empty string where there is none."""
    parts = urlsplit(address)
    host = parts.hostname or ""
    proxy = urllib.request.getproxies().get(parts.scheme)
    if proxy is None or urllib.request.proxy_bypass(host):
        return ""
    name = urlsplit(proxy)  # without a user and password that it may hold
    shown = f"{name.hostname}:{name.port}" if name.port else name.hostname
    return f" (asked through the proxy {shown} of {parts.scheme}_proxy: no_proxy={host} bypasses it)"
