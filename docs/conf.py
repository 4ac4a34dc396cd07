"""The documentation site: ``make docs`` builds it into build/docs; every warning, broken link and broken anchor is an error.

Tables that the code holds stand on no page of the repository: they are made when the site is built (``scripts/tables.py``).
"""

import sys
from pathlib import Path

from sphinx.application import Sphinx

sys.path.insert(0, str(Path(__file__).parents[1]))

from scripts.tables import with_tables

project = "rlep"
author = "the rlep authors"
extensions = ["myst_parser"]
source_suffix = {".md": "markdown"}
exclude_patterns: list[str] = []

myst_enable_extensions = ["deflist"]
myst_heading_anchors = 3
nitpicky = True

html_theme = "furo"
html_title = "rlep"
html_show_copyright = False
html_copy_source = False


def insert_tables(_: Sphinx, __: str, source: list[str]) -> None:
    """Put the generated tables into a page as it is read."""
    source[0] = with_tables(source[0])


def setup(app: Sphinx) -> None:
    """Connect what changes pages as they are read."""
    app.connect("source-read", insert_tables)
