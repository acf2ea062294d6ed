"""The pages of the reference that are generated: `names` from docstrings, `options` from the parsers of the verbs.

`conf.py` calls `write` before a build. `tests/test_reference.py` compares what it writes with the package, without a
build.
"""

from __future__ import annotations

from pathlib import Path

from reference_pages.names import name_pages
from reference_pages.options import option_pages

__all__ = ["write"]


def write(folder: Path) -> list[Path]:
    """Write all pages below a folder, remove others from it, and return their paths.

    A page that is the same already is left alone, so that the next build need not read it again.
    """
    pages = {folder / f"{name}.md": text for name, text in {**name_pages(), **option_pages()}.items()}
    for page in set(folder.rglob("*.md")) - set(pages):
        page.unlink()
    for page, text in pages.items():
        page.parent.mkdir(parents=True, exist_ok=True)
        if not page.is_file() or page.read_text(encoding="utf-8") != text:
            page.write_text(text, encoding="utf-8")
    return list(pages)
