"""``huggingface_hub`` as a run can have it: each wait has an end, and nothing that it logs is secret."""

from __future__ import annotations

import logging
import re
import sys
from functools import cache
from typing import Any

from rlep.core.progress import Advance

MEGABYTE = 10**6
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
    """Set the client that all of ``huggingface_hub`` uses, and what becomes of its warnings and bars; once a process."""
    from huggingface_hub import get_session, set_client_factory
    from huggingface_hub.utils import disable_progress_bars  # type: ignore[attr-defined]

    given = get_session()
    make, hooks = type(given), given.event_hooks  # which hold to HF_HUB_OFFLINE
    ours: dict[str, list[Any]] = {
        "request": [*hooks["request"], _end_silence],
        "response": [*hooks["response"], _cut_pause],
    }
    set_client_factory(lambda: make(event_hooks=ours, follow_redirects=True))
    logging.getLogger("huggingface_hub").handlers[:] = [_Discreet()]
    if not sys.stderr.isatty():
        disable_progress_bars()


def bar_of(advance: Advance) -> type[Any]:
    """Return the class of bars for a download: that of the bytes on the disk moves ``advance``, by MB; none is shown."""
    from huggingface_hub.utils import tqdm  # type: ignore[attr-defined]

    class Bar(tqdm):  # type: ignore[misc]
        def __init__(self, *given: Any, **options: Any) -> None:
            self._bytes = 0 if options.get("name") == "huggingface_hub.snapshot_download" else None
            super().__init__(*given, **{**options, "disable": True})  # type: ignore[no-untyped-call]

        def update(self, n: float | None = 1) -> None:
            if self._bytes is not None:
                before, self._bytes = self._bytes, self._bytes + int(n or 0)
                advance(self._bytes // MEGABYTE - before // MEGABYTE)

    return Bar


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
