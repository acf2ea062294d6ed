"""How Sphinx builds the site: `sphinx-build -b html docs docs/_build`, after `pip install -e '.[docs]'`.

The pages of the reference are written by `reference_pages` first, and `lean_styles` drops what no page needs.
Nothing of the site asks another host for anything.
"""

from __future__ import annotations

import os
import re
import shutil
import sys
from pathlib import Path

from docutils import nodes
from sphinx import addnodes
from sphinx.application import Sphinx

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE))
paths = (str(HERE), str(HERE.parent / "benchmarks"), os.environ.get("PYTHONPATH", ""))
os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, paths))  # of code cells
os.environ["PATH"] = os.pathsep.join((os.path.dirname(sys.executable), os.environ["PATH"]))

import lean_styles  # noqa: E402
import reference_pages  # noqa: E402
import vitreous  # noqa: E402
from reference_pages.names import public_names  # noqa: E402

project = "Vitreous"
author = "the authors of Vitreous"
copyright = author
version = release = vitreous.__version__

extensions = [
    "myst_nb",  # Markdown; pages with code cells are run, and fail the build if a cell does
    "sphinx_design",
    "sphinx_copybutton",
    "sphinx.ext.autodoc",
    "sphinx.ext.napoleon",
    "sphinx_gallery.gen_gallery",
    "mathml",
]
source_suffix = {".md": "myst-nb", ".rst": "restructuredtext"}
nb_execution_mode = "force"
nb_execution_in_temp = True
nb_execution_raise_on_error = True
nb_execution_show_tb = True
nb_output_stderr = "remove"  # warnings of libraries; what fails is shown
sphinx_gallery_conf = {
    "examples_dirs": "gallery",
    "gallery_dirs": "tutorials/gallery",
    "filename_pattern": "/plot_",
    "abort_on_example_error": True,
    "write_computation_times": False,
    "show_memory": False,
    "show_signature": False,
    "download_all_examples": False,
    "within_subsection_order": "ExampleTitleSortKey",
    "image_srcset": [],
    "reset_modules": ("matplotlib",),
}
myst_enable_extensions = ["colon_fence", "deflist", "dollarmath", "attrs_inline"]
myst_heading_anchors = 4
exclude_patterns = ["_build", "images", "templates", "gallery", "**/*.ipynb"]
templates_path = ["templates"]
suppress_warnings = ["myst.header", "ref.python"]  # names that a package exports again have two places

default_role = "code"  # docstrings write `name`
autodoc_member_order = "bysource"
autodoc_typehints = "signature"
autodoc_default_options = {"no-value": True}
add_module_names = False
copybutton_prompt_text = "$ "

html_math_renderer = "mathml"
html_domain_indices = False
html_theme = "pydata_sphinx_theme"
html_title = "Vitreous"
html_static_path = ["static"]
html_css_files = ["icons.css", "site.css"]
html_favicon = "static/icon.svg"
html_context = {"default_mode": "auto"}
html_show_sourcelink = False
html_copy_source = False
html_show_search_summary = False  # it would fetch every page that is found, which a page opened as a file may not
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
    """Write the generated pages before the sources are read, and drop what no page needs from what was built."""
    app.connect("config-inited", lambda *_: reference_pages.write(HERE / "reference" / "generated"))
    app.connect("source-read", lambda _, page, source: _name_thumbnails(page, source))
    app.connect("doctree-read", lambda _, tree: _drop_foreign_types(tree))
    app.connect("build-finished", lambda app, _: _finish(Path(app.outdir)), priority=900)  # after the theme


def _name_thumbnails(page: str, source: list[str]) -> None:
    """Give the pictures of the gallery's index a text: sphinx-gallery leaves it empty."""
    if page == "tutorials/gallery/index":
        thumbnail = re.compile(r"(_thumb\.png\n +:alt:)(.*?thumbnail-title\">)(.*?)</div>", re.DOTALL)
        source[0] = thumbnail.sub(r"\1 Figure: \3\2\3</div>", source[0])


def _drop_foreign_types(tree: nodes.document) -> None:
    """Turn links to types of other packages into text: looking for each of them takes a fifth of a build's time."""
    ours = {name for names in public_names().values() for name in names}
    for link in list(tree.findall(addnodes.pending_xref)):
        if link.get("reftype") in ("class", "exc", "obj") and link["reftarget"].rpartition(".")[2] not in ours:
            link.replace_self(link.children)


def _finish(built: Path) -> None:
    """Drop what no page loads."""
    static = built / "_static"
    shutil.rmtree(static / "vendor", ignore_errors=True)  # the icon font, and its scripts below
    for unused in [*static.glob("scripts/fontawesome.js*"), *static.glob("webpack-macros.html")]:
        unused.unlink()
    lean_styles.lean_styles(built)
