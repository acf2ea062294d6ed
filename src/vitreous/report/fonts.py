"""Fonts and short labels for text in figures: class names of any script and length, whatever fonts are installed."""

from __future__ import annotations

import logging
import unicodedata
from collections.abc import Iterable
from functools import cache

# Matplotlib's notices about its font cache are of no use to someone who trains a model.
if logging.getLogger("matplotlib").level == logging.NOTSET:
    logging.getLogger("matplotlib").setLevel(logging.ERROR)

from matplotlib import font_manager, ft2font

from vitreous.files.text import printable, visible

__all__ = ["FontSet"]

_DEFAULT = "DejaVu Sans"  # bundled with Matplotlib: Latin, Greek, Cyrillic, Arabic, Hebrew, Armenian, Georgian and more


class FontSet:
    """Installed fonts that together draw all `texts` of a figure that are not known in advance, such as class names.

    `families` are in order of preference: the bundled font, then those with characters that it lacks.
    """

    def __init__(self, texts: Iterable[str]) -> None:
        needed = frozenset(map(ord, "".join(map(visible, texts)))) | {ord("…")}
        self.families, self._drawable = _select_fonts(needed - _characters(font_manager.findfont(_DEFAULT)))

    def shorten(self, text: str, width: int = 24) -> str:
        r"""Return `text` on one line of at most `width` columns, of which a CJK character takes two.

        A longer text is cut in the middle, because class names often differ at their ends. A character that no font
        has is written as an escape such as `\u82b1`.
        """
        line = " ".join(text.split())
        if len(line) > 4 * width:  # keep the loops below short: a name from a file can have millions of characters
            line = f"{line[: 2 * width]}…{line[-2 * width :]}"
        line = "".join(c if ord(c) in self._drawable or c == " " else _escape(c) for c in printable(line))
        if _columns(line) <= width:
            return line
        head, tail = line, ""
        while _columns(head) > width // 2:
            head = head[:-1]
        for character in reversed(line):
            if _columns(character + tail) > width - 1 - _columns(head):
                break
            tail = character + tail
        return f"{head}…{tail}"


def _select_fonts(missing: frozenset[int]) -> tuple[list[str], frozenset[int]]:
    """Return the default family plus installed ones that have `missing` characters, and all characters they draw."""
    families, drawable = [_DEFAULT], _characters(font_manager.findfont(_DEFAULT))
    for font in sorted(font_manager.fontManager.ttflist, key=lambda f: (f.name, f.fname)):
        if missing <= drawable:
            break
        is_regular = font.style == "normal" and font.weight in (400, "normal", "regular", "book")
        if not is_regular or font.name.startswith((".", "Last Resort")) or font.name in families:
            continue
        characters = _characters(font.fname)
        if characters & missing - drawable and font_manager.findfont(font.name) == font.fname:
            families.append(font.name)
            drawable |= characters
    return families, drawable


@cache
def _characters(path: str) -> frozenset[int]:
    """Return the code points that a font file can draw; none for bitmap fonts (colour emoji) and damaged files."""
    try:
        font = ft2font.FT2Font(path)
        return frozenset(font.get_charmap()) if font.scalable else frozenset()
    except (OSError, RuntimeError):
        return frozenset()


def _escape(character: str) -> str:
    code = ord(character)
    return character.encode("ascii", "backslashreplace").decode("ascii") if code > 126 else f"\\x{code:02x}"


def _columns(text: str) -> int:
    """Return the width of `text` in columns of a fixed-width font."""
    return sum(0 if unicodedata.combining(c) else 1 + (unicodedata.east_asian_width(c) in "WF") for c in text)
