r"""Text from files on its way out: names, labels and messages made harmless for a terminal, CSV, JSON and HTML.

What a stranger named may steer a terminal, turn the direction of a line, start a formula in a spreadsheet, or be ten
megabytes long. All that leaves this package goes through one of these functions:

=============  ==================================  ===================================================
destination    function                            what a reader gets back
=============  ==================================  ===================================================
terminal       :func:`visible`, :func:`printable`  escapes such as ``\x1b``; names of at most 200 columns
CSV            :func:`csv_line`                    the same escapes, long; ``'`` before ``= + - @``
JSON           :func:`json_text`                   exactly the text: ``json.loads`` undoes the escapes
HTML           :func:`html_text`                   as on a terminal, and escaped as markup
=============  ==================================  ===================================================
"""

from __future__ import annotations

import html
import json
import math
import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any

__all__ = ["LONGEST", "csv_cell", "csv_line", "html_text", "json_text", "printable", "visible", "yaml_text"]

LONGEST = 200
"""Characters of a name on a terminal or a page; of a longer one both ends are shown."""

_JOINERS = "\u200c\u200d"  # inside Persian and Indic words and inside emoji; alone they do nothing
_LONGEST_CELL = 32_000  # characters: spreadsheets hold 32,767 in a cell
# https://owasp.org/www-community/attacks/CSV_Injection: where a cell starts, and after what separates cells elsewhere
_FORMULA = re.compile("(^|[;|])(?=[ \u200c\u200d]*[=+@\uff1d\uff0b\uff0d\uff20-])")
_QUOTED_IN_CSV = re.compile('[,;|"]')  # `;` separates fields where the comma is the decimal point
_BEYOND_ASCII = re.compile(r"[^\x20-\x7e\n]")


def visible(name: str, limit: int | None = LONGEST) -> str:
    """A name with what a terminal or a page would obey or hide made visible, as Python writes it in a string.

    That is: control characters, marks that turn the direction of text, separators of lines, bytes that are no text, and
    spaces at the ends. Letters of every script and emoji stay as they are, with the joiners that both need.

    Args:
        name: Of a file, a class, or whatever else a file says.
        limit: The most characters; a longer name loses its middle, and says how many. None: all are kept.
    """
    first, last = len(name) - len(name.lstrip(" ")), len(name.rstrip(" "))
    if first == 0 and last == len(name):
        return printable(name, limit)
    return _within(len(name), lambda n: "\\x20" if n < first or n >= last else _escaped(name[n]), limit)


def printable(text: str, limit: int | None = None) -> str:
    """A line for people, with all in it made visible as :func:`visible` does, but for its spaces; by default whole."""
    if text.isprintable() and (limit is None or len(text) <= limit):
        return text
    return _within(len(text), lambda n: _escaped(text[n]), limit)


def csv_cell(text: str) -> str:
    """A text as the content of a cell of CSV, which a spreadsheet takes for text.

    What a terminal would obey is escaped as by :func:`printable`. A text that begins like a formula, with one of
    ``= + - @``, gets an apostrophe in front; so does what follows a ``;`` or ``|`` in it. Whoever needs the exact text
    reads it from JSON.
    """
    return _FORMULA.sub(r"\1'", printable(text, _LONGEST_CELL))


def csv_line(cells: Iterable[str | float]) -> str:
    """A row of CSV with its line feed; texts go through :func:`csv_cell`, numbers are written as they are."""
    return ",".join(_csv_field(cell) for cell in cells) + "\n"


def json_text(value: Any, indent: int | None = None, ascii_only: bool = False) -> str:
    r"""A value as JSON that any parser reads and no terminal obeys; what is read back is exactly what was written.

    Letters of every script stay readable unless ASCII is asked for; what is not printable is written as ``\uXXXX``. A
    number that JSON does not have, such as infinity, becomes null.
    """
    text = json.dumps(_finite(value), ensure_ascii=False, allow_nan=False, indent=indent)
    return _BEYOND_ASCII.sub(
        lambda found: found[0] if found[0].isprintable() and not ascii_only else _json_escape(found[0]), text
    )


def yaml_text(value: str | float | bool | None) -> str:
    r"""A scalar as YAML, tame as JSON is; beyond the first plane YAML has escapes of its own, ``\UXXXXXXXX``."""
    text = json.dumps(value, ensure_ascii=False)
    return _BEYOND_ASCII.sub(
        lambda found: found[0] if found[0].isprintable() else found[0].encode("unicode_escape").decode("ascii"), text
    )


def html_text(text: str, limit: int | None = LONGEST) -> str:
    """A name as the text of a page, without markup: visible, bounded as :func:`visible` does, and escaped."""
    return html.escape(visible(text, limit))


def _within(length: int, piece: Callable[[int], str], limit: int | None) -> str:
    """Join the pieces 0 to ``length`` - 1 of a text; where that is longer than the limit, without the middle."""
    if limit is None or length <= limit:
        whole = "".join(map(piece, range(length)))
        if limit is None or len(whole) <= limit:
            return whole
    before = _up_to(limit // 2, map(piece, range(length)))
    after = _up_to(limit - limit // 2, map(piece, range(length - 1, len(before) - 1, -1)))
    left_out = length - len(before) - len(after)
    return f"{''.join(before)}...({left_out:,} more)...{''.join(reversed(after))}"


def _up_to(limit: int, pieces: Iterable[str]) -> list[str]:
    """The first pieces, of at most so many characters together."""
    taken: list[str] = []
    for piece in pieces:
        limit -= len(piece)
        if limit < 0:
            break
        taken.append(piece)
    return taken


def _escaped(char: str) -> str:
    """One character, as an escape where a terminal would obey it; a byte that was no text as that byte."""
    if char.isprintable() or char in _JOINERS:
        return char
    code = ord(char)
    if 0xDC80 <= code <= 0xDCFF:  # how os.fsdecode keeps a byte that is not UTF-8
        return f"\\x{code - 0xDC00:02x}"
    return char.encode("unicode_escape").decode("ascii") if code >= 32 or char in "\t\n\r" else f"\\x{code:02x}"


def _json_escape(char: str) -> str:
    """One character as JSON writes it in ASCII: one or two units of UTF-16."""
    units = char.encode("utf-16-be", "surrogatepass").hex()
    return "".join(f"\\u{units[at : at + 4]}" for at in range(0, len(units), 4))


def _csv_field(cell: str | float) -> str:
    """A cell, quoted where it holds what separates fields in one country or another."""
    if not isinstance(cell, str):
        return str(cell)
    shown = csv_cell(cell)
    return '"' + shown.replace('"', '""') + '"' if _QUOTED_IN_CSV.search(shown) else shown


def _finite(value: Any) -> Any:
    """Plain JSON values: lists for sequences, texts for keys, None for numbers that JSON does not have."""
    if isinstance(value, Mapping):
        return {str(key): _finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
