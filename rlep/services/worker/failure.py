"""The words in which a user is told of an exception in code of their own."""

from __future__ import annotations

import errno
import os
import traceback

from rlep.core.printable import storable

MAX_REASON = 2000
"""Characters of a reason that are kept."""
_OWN_FILES = os.path.dirname(os.path.dirname(__file__)) + os.sep
"""A traceback is shown from below the last frame in these."""
_REFUSED = ("[Errno 1] Operation not permitted", "can't start new thread")
"""Words by which Python says that the limits of a worker refused a call."""
_NO_FILE = (errno.EACCES, errno.EFBIG)
"""Numbers of the errors by which they refuse to write."""
_MAX_FRAMES = 8
"""Innermost frames of a traceback that are shown."""


def failure_of(error: BaseException, section: str) -> str:
    """``Kind: message``, and a traceback of the user's own frames; ``section``: of the key that allows the network."""
    stack = traceback.extract_tb(error.__traceback__)
    own = [index for index, frame in enumerate(stack) if frame.filename.startswith(_OWN_FILES)]
    frames_below = stack[own[-1] + 1 :] if own else stack
    said = f"{type(error).__name__}: {_text_of(error)}"[:MAX_REASON] + missing_variable(error, f"{section}.variables")
    if any(words in said for words in _REFUSED):
        said += f" (functions start no processes and change no files; the network and threads need {section}.network = true)"
    if isinstance(error, OSError) and error.errno in _NO_FILE:
        said += " (functions change no files: what has to be written is written while the module is imported)"
    if frames_below:
        below = "".join(traceback.format_list(frames_below[-_MAX_FRAMES:]))
        said = f"{said}\nTraceback (most recent call last):\n{below}".rstrip()
    return storable(said)


def missing_variable(error: BaseException, key: str) -> str:
    """Name the key that passes an environment variable on, where the lack of one is the error; else empty."""
    stack = traceback.extract_tb(error.__traceback__)
    if isinstance(error, KeyError) and stack and stack[-1].filename == os.getenv.__code__.co_filename:
        return f" (workers get no secrets: name what yours may see in {key}, or after rlep grade --variable)"
    return ""


def _text_of(error: BaseException) -> str:
    try:
        return str(error)
    except BaseException as fault:  # noqa: BLE001 - the user's __str__ may raise as the user's function did
        return f"its text raises {type(fault).__name__}"
