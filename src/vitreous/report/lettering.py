"""Text in pictures: class names of any alphabet and length, on machines that may lack the letters for it."""

from __future__ import annotations

import logging
import unicodedata
from collections.abc import Iterable
from functools import cache
from typing import Any

# "Building the font cache" and "created a temporary cache directory" tell the user of a run nothing to act on.
if logging.getLogger("matplotlib").level == logging.NOTSET:
    logging.getLogger("matplotlib").setLevel(logging.ERROR)

from matplotlib import font_manager, ft2font

from vitreous.files.text import printable, visible

__all__ = ["Lettering"]

_DEFAULT = "DejaVu Sans"  # comes with matplotlib: Latin, Greek, Cyrillic, Arabic, Hebrew, Armenian, Georgian and more


class Lettering:
    """Fonts for a set of texts, and the texts made fit for them.

    Args:
        texts: All that will be drawn and is not known beforehand, such as class names.

    Attributes:
        families: Font families for matplotlib, in order of preference: the bundled one, then installed ones that have
            letters it lacks.
    """

    def __init__(self, texts: Iterable[str]) -> None:
        wanted = frozenset(map(ord, "".join(map(visible, texts)))) | {ord("…")}
        self.families, self._drawable = _families(wanted - _letters(font_manager.findfont(_DEFAULT)))

    def label(self, text: str, width: int = 24) -> str:
        r"""Return `text` on one line of at most `width` columns, a CJK letter taking two.

        A longer one loses its middle, since the ends of class names tell them apart. A letter that no font has is
        written by its number, such as `\u82b1`.
        """
        line = " ".join(text.split())
        if len(line) > 4 * width:  # before each letter is measured: a name from a file may have millions
            line = f"{line[: 2 * width]}…{line[-2 * width :]}"
        line = printable(line)
        shown = "".join(c if ord(c) in self._drawable or c == " " else _escape(c) for c in line)
        if _columns(shown) <= width:
            return shown
        head, tail = shown, ""
        while _columns(head) > width // 2:
            head = head[:-1]
        for letter in reversed(shown):
            if _columns(letter + tail) > width - 1 - _columns(head):
                break
            tail = letter + tail
        return f"{head}…{tail}"

    def style(self, **settings: Any) -> dict[Any, Any]:
        """Return matplotlib settings: these, the fonts, and `$` meant as a dollar rather than as mathematics."""
        return {"font.family": self.families, "text.parse_math": False, **settings}


def _families(missing: frozenset[int]) -> tuple[list[str], frozenset[int]]:
    """Return the default family and installed ones that have `missing` letters, and all letters that they draw."""
    families, drawable = [_DEFAULT], _letters(font_manager.findfont(_DEFAULT))
    for font in sorted(font_manager.fontManager.ttflist, key=lambda f: (f.name, f.fname)):
        if missing <= drawable:
            break
        plain = font.style == "normal" and font.weight in (400, "normal", "regular", "book")
        if not plain or font.name.startswith((".", "Last Resort")) or font.name in families:
            continue
        letters = _letters(font.fname)
        if letters & missing - drawable and font_manager.findfont(font.name) == font.fname:
            families.append(font.name)
            drawable |= letters
    return families, drawable


@cache
def _letters(path: str) -> frozenset[int]:
    """Return the code points that a font file can draw; none for bitmap (colour emoji) and damaged fonts."""
    try:
        font = ft2font.FT2Font(path)
        return frozenset(font.get_charmap()) if font.scalable else frozenset()
    except (OSError, RuntimeError):
        return frozenset()


def _escape(letter: str) -> str:
    return letter.encode("ascii", "backslashreplace").decode("ascii") if ord(letter) > 126 else f"\\x{ord(letter):02x}"


def _columns(text: str) -> int:
    """Columns that a text takes on a grid of Latin letters."""
    return sum(0 if unicodedata.combining(c) else 1 + (unicodedata.east_asian_width(c) in "WF") for c in text)
