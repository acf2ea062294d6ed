"""Wrapping of hand-formatted text for narrow terminals. `vitreous --help` uses it, so it imports no dependencies."""

from __future__ import annotations

import re
import textwrap

__all__ = ["wrap"]

_TERM = re.compile(r"(?P<name> +\S+(?: \S+)* {2,})(?=\S)")  # an indented term and the gap before its explanation
_MAX_INDENT = 32  # columns; a wider term leaves no room for a hanging explanation
_COMMAND = "  vitreous "
_QUOTED = re.compile(r"`[^`\n]*`")
_NO_BREAK = "\N{NO-BREAK SPACE}"  # `textwrap` does not break there


def wrap(text: str, width: int) -> str:
    """Wrap long lines between words. Continuation lines are indented to the second column of the line, if it has one.

    Columns are at least two spaces apart. Commands on a line of their own and text in backticks stay whole, so that
    they can be copied.
    """
    return "\n".join(_wrap_line(line, width) for line in text.split("\n"))


def _wrap_line(line: str, width: int) -> str:
    term = _TERM.match(line)
    if len(line) <= width or (line.startswith(_COMMAND) and term is None):
        return line
    indent = term.end() if term and term.end() <= _MAX_INDENT else len(line) - len(line.lstrip())
    originals = {found[0].replace(" ", _NO_BREAK): found[0] for found in _QUOTED.finditer(line)}
    rest = _QUOTED.sub(lambda found: found[0].replace(" ", _NO_BREAK), line[indent:])
    rows = textwrap.wrap(rest, max(width - indent, 20), break_long_words=False, break_on_hyphens=False)
    wrapped = line[:indent] + f"\n{' ' * indent}".join(rows)
    for protected, original in originals.items():
        wrapped = wrapped.replace(protected, original)
    return wrapped
