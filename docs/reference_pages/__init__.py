"""The pages of the reference that are generated: `names` from docstrings, `options` from the parsers of the verbs.

`conf.py` calls `write` before a build. `tests/test_reference.py` compares what it writes with the package, without a
build.
"""

from __future__ import annotations

import shutil
from pathlib import Path

from reference_pages.names import name_pages
from reference_pages.options import option_pages

__all__ = ["write"]


def write(folder: Path) -> list[Path]:
    """Write all pages below a folder, which is emptied first; return their paths."""
    shutil.rmtree(folder, ignore_errors=True)
    written = []
    for name, text in {**name_pages(), **option_pages()}.items():
        page = folder / f"{name}.md"
        page.parent.mkdir(parents=True, exist_ok=True)
        page.write_text(text, encoding="utf-8")
        written.append(page)
    return written
