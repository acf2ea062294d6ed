"""Quoting of commands that users paste into a shell."""

from __future__ import annotations

import os
import shlex
from collections.abc import Sequence

__all__ = ["shell_line"]


def shell_line(words: Sequence[str]) -> str:
    """Return a command line with quoted words; unprintable ones use the ``$'...'`` escapes of bash, zsh and ksh."""
    return " ".join(map(_quoted, words))


def _quoted(word: str) -> str:
    if word.isprintable():
        return shlex.quote(word)
    escaped = "".join(
        char if char.isprintable() and char not in "\\'" else "".join(f"\\x{byte:02x}" for byte in os.fsencode(char))
        for char in word
    )
    return f"$'{escaped}'"
