"""Check that the server of a tracker answers, made before anything starts: the packages themselves try for minutes."""

from __future__ import annotations

import http.client
import ssl
import threading
import urllib.error
import urllib.request
from urllib.parse import urlsplit

from rlep.core.errors import ConfigError

ANSWER_S = 4.0
"""Longest wait for a server's first answer, whatever it is."""


def check_answers(sink: str, url: str, remedy: str) -> None:
    """Raise ``ConfigError``, which ends with ``remedy``, where nothing answers at an ``http(s)`` address within ``ANSWER_S``.

    Any answer will do: a login page, a refusal, an unknown certificate. Proxies of the environment are used, as the packages do.
    """
    url = without_user(url)
    if urlsplit(url).scheme not in ("http", "https"):
        return
    failures: list[str] = [f"no answer within {ANSWER_S:g} s"]

    def ask() -> None:
        failures[:] = _failure(url)

    asking = threading.Thread(
        target=ask, name="tracker-server", daemon=True
    )  # looking up a name has no deadline itself
    asking.start()
    asking.join(ANSWER_S)
    if failures:
        raise ConfigError(f"tracking.sinks has {sink!r}, but {url} does not answer ({failures[0]}): {remedy}")


def without_user(url: str) -> str:
    """``url`` without ``name:password@``: packages send that, urllib takes it for a part of the host, and it is a secret."""
    parts = urlsplit(url)
    return parts._replace(netloc=parts.netloc.rpartition("@")[2]).geturl()


def _failure(url: str) -> list[str]:
    """Why nothing answers; nothing where something does."""
    try:
        with urllib.request.build_opener().open(url, timeout=ANSWER_S):
            return []
    except urllib.error.HTTPError as answer:
        answer.close()
        return []
    except urllib.error.URLError as error:
        return [] if isinstance(error.reason, ssl.SSLError) else [str(error.reason)]
    except (OSError, ValueError, http.client.HTTPException) as error:
        return [str(error) or type(error).__name__]
