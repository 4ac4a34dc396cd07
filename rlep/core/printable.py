"""Text that others wrote, made safe to show: no character of it moves a cursor, hides itself or turns the line around."""

from __future__ import annotations

import re
from unicodedata import category

PLAIN = re.compile(r"[\n\t\x20-\x7e]*")


def printable(text: str) -> str:
    """Without control and formatting characters, which would steer a terminal: ``�`` instead; spaces and line ends stay."""
    if PLAIN.fullmatch(text):
        return text
    return "".join(mark if mark in "\n\t" or mark.isprintable() or category(mark) == "Zs" else "�" for mark in text)


def storable(text: str) -> str:
    """Text with a question mark for each character that has no UTF-8 form."""
    return text if text.isascii() else text.encode("utf-8", "replace").decode()


def marked(text: str) -> str:
    """Text with each such character named, e.g. ``⟨U+202E⟩``."""
    if text.isprintable():
        return text
    return "".join(mark if mark in "\n\t" or mark.isprintable() else f"⟨U+{ord(mark):04X}⟩" for mark in text)
