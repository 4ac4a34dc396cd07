"""``huggingface_hub`` as a run can have it: each wait has an end, and nothing that it logs is secret."""

from __future__ import annotations

import logging
import re
import sys
from functools import cache
from typing import Any

ANSWER_S = 60.0
"""Longest silence of a hub within an answer. ``huggingface_hub`` itself waits for ever for all but files."""
PATIENCE_S = 300
"""Longest pause that a hub may ask for (``Retry-After``), as long as a window of its rate limits."""
SECRETS = re.compile(r"(?<=://)[^/\s@]+@|\?[^\s'\"]+|hf_\w+|(?<=Bearer )[^\s'\"]+")
"""Credentials in an address, signatures of an address, tokens."""


def discreet(text: str) -> str:
    """Return ``text`` without what nobody else may read."""
    return SECRETS.sub("", text)


@cache
def prepare_client() -> None:
    """Set the client that all of ``huggingface_hub`` uses, and what becomes of its warnings; once a process."""
    from huggingface_hub import get_session, set_client_factory

    given = get_session()
    make, hooks = type(given), given.event_hooks  # which hold to HF_HUB_OFFLINE
    ours: dict[str, list[Any]] = {
        "request": [*hooks["request"], _end_silence],
        "response": [*hooks["response"], _cut_pause],
    }
    set_client_factory(lambda: make(event_hooks=ours, follow_redirects=True))
    logging.getLogger("huggingface_hub").handlers[:] = [_Discreet()]


def _end_silence(request: Any) -> None:
    stated = request.extensions.get("timeout", {})
    waits = {wait: stated.get(wait) or ANSWER_S for wait in ("connect", "read", "write", "pool")}
    request.extensions = {**request.extensions, "timeout": waits}


def _cut_pause(response: Any) -> None:
    asked = response.headers.get("Retry-After", "0")
    if not asked.isdigit() or int(asked) > PATIENCE_S:
        del response.headers["Retry-After"]  # so that it is tried again in seconds, a few times


class _Discreet(logging.Handler):
    """Warnings, such as of a download that is tried again, on standard error."""

    def emit(self, record: logging.LogRecord) -> None:
        sys.stderr.write(f"{discreet(record.getMessage())}\n")
