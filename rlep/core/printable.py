"""Text that others wrote, made safe to show: no character of it moves a cursor, hides itself or turns the line around."""

from __future__ import annotations

import io
import re
from unicodedata import category

PLAIN = re.compile(r"[\n\t\x20-\x7e]*")


def printable(text: str) -> str:
    """Without control and formatting characters, which would steer a terminal: ``�`` instead; spaces and line ends stay."""
    if PLAIN.fullmatch(text):
        return text
    return "".join(one if one in "\n\t" or one.isprintable() or category(one) == "Zs" else "�" for one in text)


def marked(text: str) -> str:
    """The same with each such character named, e.g. ``⟨U+202E⟩``."""
    if text.isprintable():
        return text
    return "".join(one if one in "\n\t" or one.isprintable() else f"⟨U+{ord(one):04X}⟩" for one in text)


class PrintableStream(io.TextIOWrapper):
    """A text stream for a command's output: what is not printable is shown as ``�``, what the encoding lacks as ``?``."""

    def __init__(self, stream: io.TextIOWrapper) -> None:
        """Write where ``stream`` writes, which stays open beside it."""
        super().__init__(
            stream.buffer,
            encoding=stream.encoding,
            errors="replace",
            line_buffering=stream.line_buffering,
            write_through=True,  # nothing of one of the two streams overtakes what the other wrote before
        )
        stream.reconfigure(errors="replace")
        self.rich_proxied_file = stream
        """The stream that rich writes to instead of this: its colours and cursor movements are its own (``Terminal``)."""

    def write(self, text: str) -> int:
        """Write text from anywhere."""
        return super().write(printable(text))
