"""Small HTML tables for notebooks: untrusted text is escaped, and the notebook's colours are kept, light or dark."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from vitreous.files.text import html_text

__all__ = ["html_bars", "html_table"]

_CELL = "text-align:left;padding:.15em 1em .15em 0;border-bottom:1px solid rgba(128,128,128,.35)"
_TABLE = "border-collapse:collapse;color:inherit;background:transparent;margin:.3em 0"


def html_table(title: str, rows: Iterable[Sequence[object]], headings: Sequence[str] = ()) -> str:
    """Return a table with a title; every cell is shown as text."""
    head = f"<thead><tr>{''.join(_cell('th', name) for name in headings)}</tr></thead>" if headings else ""
    return _table(title, head, (f"<tr>{''.join(_cell('td', cell) for cell in row)}</tr>" for row in rows))


def html_bars(title: str, fractions: Iterable[tuple[str, float]]) -> str:
    """Return a table of names and fractions in [0, 1], each with a bar of that length."""
    rows = []
    for name, fraction in fractions:
        width = f"{100 * min(max(fraction, 0.0), 1.0):.1f}"
        bar = f'<div style="width:10em"><div style="width:{width}%;height:.6em;background:#4a90d9"></div></div>'
        rows.append(f'<tr>{_cell("td", name)}{_cell("td", f"{fraction:.2%}")}<td style="{_CELL}">{bar}</td></tr>')
    return _table(title, "", rows)


def _table(title: str, head: str, rows: Iterable[str]) -> str:
    body = f"<tbody>{''.join(rows)}</tbody>"
    return f'<div><b>{html_text(title)}</b><table style="{_TABLE}">{head}{body}</table></div>'


def _cell(tag: str, content: object) -> str:
    scope = ' scope="col"' if tag == "th" else ""
    return f'<{tag}{scope} style="{_CELL}"><bdi>{html_text(str(content))}</bdi></{tag}>'
