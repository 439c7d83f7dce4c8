"""Sphinx's settings for the documentation site: `scripts/docs` builds it."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path[:0] = [str(Path(__file__).parent.parent), str(Path(__file__).parent)]

from graphcut.core.version import __version__  # noqa: E402 - the path comes first

project = "graphcut"
release = version = __version__
project_copyright = "the graphcut authors, Apache-2.0"

extensions = [
    "myst_parser",
    "sphinx.ext.autodoc",
    "sphinx.ext.autosummary",
    "sphinx.ext.napoleon",
    "generated",
]
exclude_patterns = ["_build"]
default_role = "literal"  # `name` in a docstring

myst_enable_extensions = ["colon_fence", "deflist"]
myst_heading_anchors = 3

autodoc_member_order = "bysource"
autodoc_typehints = "signature"
python_use_unqualified_type_names = True
python_maximum_signature_line_length = 80
toc_object_entries_show_parents = "hide"
autodoc_default_options = {"members": True, "undoc-members": False}
napoleon_use_ivar = True
napoleon_numpy_docstring = False

nitpicky = True
nitpick_ignore_regex = [("py:obj", r"typing\.Literal\[.*")]  # Sphinx divides it at its commas

html_theme = "furo"
html_title = f"graphcut {version}"
html_static_path = ["_static"]
html_css_files = ["wide.css"]
html_show_sourcelink = False
html_theme_options: dict[str, object] = {"footer_icons": []}
