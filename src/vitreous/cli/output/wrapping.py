"""Help texts that are laid out by hand, fitted to narrow terminals. Light: `vitreous --help` uses it."""

from __future__ import annotations

import re
import textwrap

__all__ = ["wrapped"]

_COLUMNS = re.compile(r"(?P<name> +\S+(?: \S+)* {2,})(?=\S)")  # an indented term, and the gap before what it means
_WIDEST_TERM = 32  # columns; behind a wider one the continuation would have no room
_COMMAND = "  vitreous "
_QUOTED = re.compile(r"`[^`\n]*`")
_KEPT = "\N{NO-BREAK SPACE}"  # which `textwrap` does not break at


def wrapped(text: str, width: int) -> str:
    """Break long lines between words; what follows hangs under the text of the line's second column, if there is one.

    Commands on a line of their own, and what stands in backticks, stay whole, so that they can be copied.

    Args:
        text: Lines, of which the indented ones may have two columns, at least two spaces apart.
        width: Columns there are.
    """
    return "\n".join(_line(line, width) for line in text.split("\n"))


def _line(line: str, width: int) -> str:
    columns = _COLUMNS.match(line)
    if len(line) <= width or (line.startswith(_COMMAND) and columns is None):
        return line
    hang = columns.end() if columns and columns.end() <= _WIDEST_TERM else len(line) - len(line.lstrip())
    head = line[:hang]
    quoted = _QUOTED.sub(lambda found: found[0].replace(" ", _KEPT), line[hang:])
    rest = textwrap.wrap(quoted, max(width - hang, 20), break_long_words=False, break_on_hyphens=False)
    kept = {found[0].replace(" ", _KEPT): found[0] for found in _QUOTED.finditer(line)}
    broken = head + f"\n{' ' * hang}".join(rest)
    for changed, original in kept.items():
        broken = broken.replace(changed, original)
    return broken
