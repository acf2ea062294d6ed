"""The frame of a self-contained page: the shared style, and a policy that forbids requests and every other script."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Iterator
from importlib.resources import files

from vitreous.files.text import html_text

__all__ = ["document", "safe"]


def document(package: str, title: str, content: Iterator[str]) -> Iterator[str]:
    """Yield a page in parts; `page.css` and `page.js` of a package are its own style, which comes last, and script.

    The title is untrusted text; the content is HTML.
    """
    style = "".join(files(name).joinpath(file).read_text("utf-8") for name, file in _styles(package))
    script = files(package).joinpath("page.js").read_text("utf-8")
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode("ascii")
    policy = f"default-src 'none'; img-src data:; style-src 'unsafe-inline'; script-src 'sha256-{digest}'"
    yield '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
    yield f'<meta http-equiv="Content-Security-Policy" content="{policy}">\n'
    yield '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
    yield '<meta name="color-scheme" content="light dark">\n<link rel="icon" href="data:,">\n'
    yield f"<title>{html_text(title)}</title>\n<style>\n{style}</style>\n</head>\n<body>\n<main>\n"
    yield from content
    yield f"</main>\n<script>{script}</script>\n</body>\n</html>\n"


def safe(text: str) -> str:
    """Return untrusted text as HTML: escaped, and isolated from the direction of the surrounding text."""
    return f"<bdi>{html_text(text)}</bdi>"


def _styles(package: str) -> tuple[tuple[str, str], tuple[str, str]]:
    return ("vitreous.web", "shared.css"), (package, "page.css")
