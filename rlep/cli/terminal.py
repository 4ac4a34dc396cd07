"""Streams and the console of commands: text of any origin comes out as text, without effects on the terminal."""

from __future__ import annotations

import io
import sys
from collections.abc import Iterable

from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment

from rlep.core.printable import printable


class Terminal(Console):
    """A console that reads no markup and passes on no control characters but its own."""

    def __init__(self, *, stderr: bool = False, soft_wrap: bool = False, width: int | None = None) -> None:
        """Write to standard output or error."""
        file = sys.stderr if stderr else sys.stdout
        while (beneath := getattr(file, "rich_proxied_file", None)) is not None:  # PrintableStream, or a live display
            file = beneath
        super().__init__(
            file=file, stderr=stderr, markup=False, soft_wrap=soft_wrap, width=width, highlight=False, emoji=False
        )

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
        """The segments of a renderable, their text printable."""
        for segment in super().render(renderable, options):
            yield segment if segment.control else Segment(printable(segment.text), segment.style)


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


def make_streams_printable() -> None:
    """Let standard output and error show what is printed as text, whoever prints it."""
    if isinstance(sys.stdout, io.TextIOWrapper):  # None where it was closed
        sys.stdout = PrintableStream(sys.stdout)
    if isinstance(sys.stderr, io.TextIOWrapper):
        sys.stderr = PrintableStream(sys.stderr)
