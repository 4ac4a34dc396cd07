"""The only console that commands draw on: text of any origin comes out as text, without effects on the terminal."""

from __future__ import annotations

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
