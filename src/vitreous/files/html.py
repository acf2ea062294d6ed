"""Small tables as HTML, as notebooks show them: text of users as text, in the reader's own colours, light or dark."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from vitreous.files.text import html_text

__all__ = ["html_bars", "html_table"]

_CELL = "text-align:left;padding:.15em 1em .15em 0;border-bottom:1px solid rgba(128,128,128,.35)"
_TABLE = "border-collapse:collapse;color:inherit;background:transparent;margin:.3em 0"


def html_table(title: str, rows: Iterable[Sequence[object]], headings: Sequence[str] = ()) -> str:
    """A table with a title; every cell is text, whatever it holds."""
    head = f"<thead><tr>{''.join(_cell('th', name) for name in headings)}</tr></thead>" if headings else ""
    body = "".join(f"<tr>{''.join(_cell('td', cell) for cell in row)}</tr>" for row in rows)
    return f'<div><b>{html_text(title)}</b><table style="{_TABLE}">{head}<tbody>{body}</tbody></table></div>'


def html_bars(title: str, shares: Iterable[tuple[str, float]]) -> str:
    """A table of names with their shares in [0, 1], each with a bar of that length."""
    rows = []
    for name, share in shares:
        width = f"{100 * min(max(share, 0.0), 1.0):.1f}"
        bar = f'<div style="width:10em"><div style="width:{width}%;height:.6em;background:#4a90d9"></div></div>'
        rows.append(f'<tr>{_cell("td", name)}{_cell("td", f"{share:.2%}")}<td style="{_CELL}">{bar}</td></tr>')
    return f'<div><b>{html_text(title)}</b><table style="{_TABLE}"><tbody>{"".join(rows)}</tbody></table></div>'


def _cell(tag: str, content: object) -> str:
    scope = ' scope="col"' if tag == "th" else ""
    return f'<{tag}{scope} style="{_CELL}"><bdi>{html_text(str(content))}</bdi></{tag}>'
