"""Text from files on its way to people: names and labels with what a terminal or a page would obey made visible."""

from __future__ import annotations

__all__ = ["printable", "visible"]

_JOINERS = "\u200c\u200d"  # inside Persian and Indic words and inside emoji; alone they do nothing


def visible(name: str) -> str:
    """A name with what a terminal or a page would obey or hide made visible, as Python writes it in a string.

    That is: control characters, marks that turn the direction of text, separators of lines, bytes that are no text, and
    spaces at the ends. Letters of every script and emoji stay as they are, with the joiners that both need.
    """
    shown = printable(name)
    bare = shown.strip(" ")
    if not bare:
        return "\\x20" * len(shown)
    before, after = shown.index(bare), len(shown) - len(bare) - shown.index(bare)
    return "\\x20" * before + bare + "\\x20" * after


def printable(text: str) -> str:
    """A line for people, with all in it made visible as :func:`visible` does, but for its spaces."""
    return "".join(char if char.isprintable() or char in _JOINERS else _escaped(char) for char in text)


def _escaped(char: str) -> str:
    """One character as an escape; a byte that was no text as that byte."""
    code = ord(char)
    if 0xDC80 <= code <= 0xDCFF:  # how os.fsdecode keeps a byte that is not UTF-8
        return f"\\x{code - 0xDC00:02x}"
    return char.encode("unicode_escape").decode("ascii") if code >= 32 or char in "\t\n\r" else f"\\x{code:02x}"
