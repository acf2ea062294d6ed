"""Make the built site smaller: the theme's style sheets keep the rules that a page or a script can use.

Three quarters of what the theme sends are the rules of Bootstrap and of an icon font for things that no page has.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

__all__ = ["lean_styles", "used_rules"]

_TOKEN = re.compile(r"""/\*.*?\*/|"(?:\\.|[^"\\])*"|'(?:\\.|[^'\\])*'|[{};]""", re.DOTALL)
_NESTED = ("@media", "@supports", "@layer", "@container")
_NAME = re.compile(r"[.#]((?:\\.|[\w-])+)")


def lean_styles(site: Path) -> None:
    """Rewrite the style sheets below `_static` of a built site; the names that pages and scripts contain are kept."""
    pages = (page.read_text(encoding="utf-8") for page in site.rglob("*.html"))
    names = {name for page in pages for text in re.findall(r'(?:class|id)="([^"]*)"', page) for name in text.split()}
    for script in (site / "_static").rglob("*.js"):
        names.update(re.findall(r"[\w-]+", script.read_text(encoding="utf-8")))
    for sheet in (site / "_static").rglob("*.css"):
        sheet.write_text(used_rules(sheet.read_text(encoding="utf-8"), names), encoding="utf-8")


def used_rules(css: str, names: set[str]) -> str:
    """Return a style sheet without the selectors that need a class or an id outside `names`, and without fonts."""
    kept = []
    for prelude, body in _rules(css):
        if body is None:
            kept.append(f"{prelude};")
        elif prelude.startswith(_NESTED):
            if inside := used_rules(body, names):
                kept.append(f"{prelude}{{{inside}}}")
        elif prelude.startswith("@"):
            kept += [] if prelude == "@font-face" else [f"{prelude}{{{body}}}"]
        elif selectors := [selector for selector in _selectors(prelude) if _can_match(selector, names)]:
            kept.append(f"{','.join(selectors)}{{{body}}}")
    return "\n".join(kept)


def _rules(css: str) -> Iterator[tuple[str, str | None]]:
    """Give what comes before the braces of each outer rule, and what is inside; a statement has no inside."""
    depth = start = opened = 0
    for token in _TOKEN.finditer(css):
        if token[0] == "{":
            depth += 1
            opened = token.start() if depth == 1 else opened
        elif token[0] == "}":
            depth -= 1
            if depth == 0:
                yield _bare(css[start:opened]), css[opened + 1 : token.start()]
                start = token.end()
        elif token[0] == ";" and depth == 0:
            yield _bare(css[start : token.start()]), None
            start = token.end()


def _bare(text: str) -> str:
    return re.sub(r"/\*.*?\*/", "", text, flags=re.DOTALL).strip()


def _selectors(prelude: str) -> list[str]:
    """Split a list of selectors at its commas, but not at those in parentheses, brackets and strings."""
    return re.findall(r"""(?:\((?:[^()]|\([^()]*\))*\)|\[[^\]]*\]|\\.|[^,(\[])+""", prelude)


def _can_match(selector: str, names: set[str]) -> bool:
    """Whether all classes and ids of a selector exist; those in parentheses, such as of :not(), are no condition."""
    outside = re.sub(r"\((?:[^()]|\([^()]*\))*\)|\[[^\]]*\]", "", selector)
    return all(re.sub(r"\\(.)", r"\1", name) in names for name in _NAME.findall(outside))
