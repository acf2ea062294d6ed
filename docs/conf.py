"""How Sphinx builds the site: `sphinx-build -b html docs docs/_build`, after `pip install -e '.[docs]'`.

The pages of the reference are written by `reference_pages` first. Nothing of the site asks another host for anything.
"""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

from sphinx.application import Sphinx

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE))

import reference_pages  # noqa: E402
import vitreous  # noqa: E402

project = "Vitreous"
author = "the authors of Vitreous"
copyright = author
version = release = vitreous.__version__

extensions = ["myst_parser", "sphinx_design", "sphinx_copybutton", "sphinx.ext.autodoc", "sphinx.ext.napoleon"]
myst_enable_extensions = ["colon_fence", "deflist", "dollarmath", "attrs_inline"]
myst_heading_anchors = 4
exclude_patterns = ["_build", "images"]
suppress_warnings = ["myst.header", "ref.python"]  # names that a package exports again have two places

default_role = "code"  # docstrings write `name`
autodoc_member_order = "bysource"
autodoc_typehints = "signature"
autodoc_default_options = {"no-value": True}
add_module_names = False
copybutton_prompt_text = "$ "

html_theme = "pydata_sphinx_theme"
html_title = "Vitreous"
html_static_path = ["static"]
html_css_files = ["site.css"]
html_show_sourcelink = False
html_copy_source = False
html_theme_options = {
    "navbar_align": "left",
    "navbar_end": ["theme-switcher"],
    "footer_start": ["copyright"],
    "footer_end": [],
    "show_prev_next": False,
    "secondary_sidebar_items": ["page-toc"],
}
html_sidebars = {"index": []}


def setup(app: Sphinx) -> None:
    """Write the generated pages before the sources are read, and copy the figures that pages name in HTML."""
    app.connect("config-inited", lambda *_: reference_pages.write(HERE / "reference" / "generated"))
    app.connect("build-finished", lambda app, _: _copy_figures(Path(app.outdir)))


def _copy_figures(built: Path) -> None:
    shutil.copytree(HERE / "images", built / "images", dirs_exist_ok=True)
