"""The documentation site: ``make docs`` builds it into build/docs; every warning, broken link and broken anchor is an error."""

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
