r"""Safe output of untrusted text: names, labels and messages for terminals, CSV, JSON, YAML and HTML.

An untrusted name may contain terminal escape sequences, reverse the direction of a line, start a spreadsheet formula,
or be ten megabytes long. All output of the package goes through these functions:

===========  ====================================  ================================================================
terminal     :func:`visible`, :func:`printable`    control characters as escapes such as ``\x1b``; long names cut
CSV          :func:`csv_line`                      the same escapes; ``'`` before ``= + - @``; lists as JSON
JSON, YAML   :func:`json_text`, :func:`yaml_text`  the exact text, with the escapes of the format
HTML         :func:`html_text`                     as on a terminal, with markup escaped
===========  ====================================  ================================================================
"""

from __future__ import annotations

import html
import json
import math
import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any

__all__ = [
    "MAX_NAME_LENGTH",
    "csv_cell",
    "csv_line",
    "html_text",
    "json_text",
    "json_values",
    "printable",
    "visible",
    "yaml_text",
]

MAX_NAME_LENGTH = 200
"""Longest name, in characters, that is shown in full; a longer one loses its middle."""

_JOINERS = "\u200c\u200d"  # zero-width joiners: part of Persian and Indic words and of emoji, harmless elsewhere
_LONGEST_CELL = 32_000  # characters; spreadsheets allow 32,767
# https://owasp.org/www-community/attacks/CSV_Injection; `;` and `|` separate cells in some locales
_FORMULA = re.compile("(^|[;|])(?=[ \u200c\u200d]*[=+@\uff1d\uff0b\uff0d\uff20-])")
_QUOTED_IN_CSV = re.compile('[,;|"]')  # `;` and `|` separate cells in some locales
_NOT_ASCII = re.compile(r"[^\x20-\x7e\n]")


def visible(name: str, limit: int | None = MAX_NAME_LENGTH) -> str:
    """Return a name with everything invisible escaped as in a Python string literal.

    Escaped are control characters, direction marks, line separators, bytes that are not text, and leading and trailing
    spaces. Letters of every script and emoji stay. Beyond ``limit`` characters, a name loses its middle.
    """
    first, last = len(name) - len(name.lstrip(" ")), len(name.rstrip(" "))
    if first == 0 and last == len(name):
        return printable(name, limit)
    return _join(len(name), lambda n: "\\x20" if n < first or n >= last else _escape(name[n]), limit)


def printable(text: str, limit: int | None = None) -> str:
    """Escape a line of text as :func:`visible` does, except for leading and trailing spaces."""
    if text.isprintable() and (limit is None or len(text) <= limit):
        return text
    return _join(len(text), lambda n: _escape(text[n]), limit)


def csv_cell(text: str) -> str:
    """Return the content of a CSV cell that no spreadsheet takes for a formula.

    It is escaped by :func:`printable`; an apostrophe is put before ``= + - @`` at its start and after ``;`` or ``|``.
    """
    return _FORMULA.sub(r"\1'", printable(text, _LONGEST_CELL))


def csv_line(cells: Iterable[str | float | list[str]]) -> str:
    """Return a CSV row with its line feed; texts pass through :func:`csv_cell`, numbers are unchanged.

    A list of texts becomes JSON, from which ``json.loads`` returns the exact texts; it is never cut.
    """
    return ",".join(_csv_field(cell) for cell in cells) + "\n"


def json_text(value: Any, indent: int | None = None, ascii_only: bool = False) -> str:
    r"""Return a value as JSON that is safe to print; ``json.loads`` returns the exact text.

    Unprintable characters, or with ``ascii_only`` all beyond ASCII, become ``\uXXXX``; NaN and infinity become null.
    """

    def escape(match: re.Match[str]) -> str:
        if match[0].isprintable() and not ascii_only:
            return match[0]
        units = match[0].encode("utf-16-be", "surrogatepass").hex()
        return "".join(f"\\u{units[at : at + 4]}" for at in range(0, len(units), 4))

    text = json.dumps(json_values(value), ensure_ascii=False, allow_nan=False, indent=indent)
    return _NOT_ASCII.sub(escape, text)


def json_values(value: Any) -> Any:
    """Return a value of JSON types only.

    Sequences become lists, names text, and scalars of NumPy and PyTorch those of Python; NaN and infinity become None.
    """
    if isinstance(value, Mapping):
        return {str(key): json_values(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [json_values(item) for item in value]
    plain = value.item() if getattr(value, "shape", None) == () else value
    return None if isinstance(plain, float) and not math.isfinite(plain) else plain


def yaml_text(value: str | float | bool | None) -> str:
    r"""Return a scalar as YAML that is safe to print. Unlike JSON, YAML has ``\UXXXXXXXX`` beyond 16 bits."""
    text = json.dumps(value, ensure_ascii=False)
    return _NOT_ASCII.sub(
        lambda match: match[0] if match[0].isprintable() else match[0].encode("unicode_escape").decode("ascii"), text
    )


def html_text(text: str, limit: int | None = MAX_NAME_LENGTH) -> str:
    """Return :func:`visible` text with markup escaped."""
    return html.escape(visible(text, limit))


def _join(length: int, piece: Callable[[int], str], limit: int | None) -> str:
    """Join pieces 0 to ``length`` - 1, without the middle if the result exceeds ``limit`` characters."""
    if limit is None or length <= limit:
        whole = "".join(map(piece, range(length)))
        if limit is None or len(whole) <= limit:
            return whole
    before = _take(limit // 2, map(piece, range(length)))
    after = _take(limit - limit // 2, map(piece, range(length - 1, len(before) - 1, -1)))
    omitted = length - len(before) - len(after)
    return f"{''.join(before)}...({omitted:,} more)...{''.join(reversed(after))}"


def _take(limit: int, pieces: Iterable[str]) -> list[str]:
    taken: list[str] = []
    for piece in pieces:
        limit -= len(piece)
        if limit < 0:
            break
        taken.append(piece)
    return taken


def _escape(char: str) -> str:
    """Escape an unprintable character; an undecodable byte of a file name becomes that byte."""
    if char.isprintable() or char in _JOINERS:
        return char
    code = ord(char)
    if 0xDC80 <= code <= 0xDCFF:  # os.fsdecode maps a byte that is not UTF-8 to this range
        return f"\\x{code - 0xDC00:02x}"
    return char.encode("unicode_escape").decode("ascii") if code >= 32 or char in "\t\n\r" else f"\\x{code:02x}"


def _csv_field(cell: str | float | list[str]) -> str:
    if isinstance(cell, list):  # begins with a bracket; in JSON, the separator before a formula can be escaped
        text = _FORMULA.sub(lambda match: f"\\u{ord(match[0]):04x}", json_text(cell))
    elif isinstance(cell, str):
        text = csv_cell(cell)
    else:
        return str(cell)
    return '"' + text.replace('"', '""') + '"' if _QUOTED_IN_CSV.search(text) else text
