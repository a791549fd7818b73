"""The site of these pages, which `make docs` builds without network into docs/_build."""

import sys
from pathlib import Path

import edl_horovod

sys.path.insert(0, str(Path(__file__).parent))

project = "edl_horovod"
release = edl_horovod.__version__
extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon", "from_code"]
exclude_patterns = ["_build"]

# The anchors of headings are those that code hosts make.
myst_heading_anchors = 4
# Docstrings mark code by single backticks.
default_role = "code"

html_theme = "furo"
html_show_copyright = False
html_copy_source = False
# A browser does not let a page of file:// load others for excerpts; titles need only the index.
html_show_search_summary = False
