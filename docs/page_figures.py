"""What the code cells of pages draw with: parts of the program's own pages, plots in light and dark, tables of pages.

Cells import it as `page_figures`; conf.py puts it on their path. Everything it returns follows the reader's choice of
light or dark.
"""

from __future__ import annotations

import base64
import html
import io
import os
import re
from collections.abc import Callable
from importlib.resources import files
from pathlib import Path

from bs4 import BeautifulSoup
from matplotlib.figure import Figure
from PIL import Image

from vitreous.report.fonts import FontSet
from vitreous.report.style import DARK, LIGHT, Theme, to_png

HERE = Path(__file__).resolve().parent

_COLOURS = re.compile(r":root \{ color-scheme: light dark; (.*?)\}", re.DOTALL)
_DARK = re.compile(r"@media \(prefers-color-scheme: dark\) \{ :root \{ (.*?)\}\s*\}", re.DOTALL)
_NUMBER = re.compile(r"[\d,.]+(?:e\d+)?")
_HOST = ":host { display: block; margin: 1rem 0; color: var(--text); font: 16px/1.5 system-ui, sans-serif }"


class Shown:
    """HTML as the output of a cell."""

    def __init__(self, text: str) -> None:
        self._text = text

    def _repr_html_(self) -> str:
        return self._text


def part(page: str | os.PathLike[str], *selectors: str, style: str = "") -> Shown:
    """Return the elements of a page of the program that CSS selectors name, in the page's own style.

    They are in a shadow tree, where the styles of the site and of the page do not meet. Colours come from outside. The
    rules of `style` come last.

    Raises:
        ValueError: If a selector finds nothing.
    """
    soup = BeautifulSoup(Path(page).read_text(encoding="utf-8"), "html.parser")
    found, given = [], ""
    for selector in selectors:
        elements = soup.select(selector)
        if not elements:
            raise ValueError(f"{page} has no element {selector}")
        found += [str(element) for element in elements]
        section = elements[-1].find_parent("section")
        given = (section and section.get("style")) or given  # such as the photograph behind maps
    own = "".join(element.string for element in soup.find_all("style"))
    own = _COLOURS.sub("", _DARK.sub("", own))
    return Shown(
        f'{_colours()}<div class="report-part"><template shadowrootmode="open"><style>{own}{_HOST}{style}</style>'
        f'<div class="row charts" style="{html.escape(given)}">{"".join(found)}</div></template></div>'
    )


def plot(draw: Callable[[Figure, Theme], None], title: str, alt: str, size: tuple[float, float] = (10, 4.6)) -> Shown:
    """Draw a figure once in light and once in dark colours.

    Args:
        draw: Draws on an empty figure, in the colours of a theme.
        title: What the figure has above it.
        alt: The text alternative.
        size: Width and height, in inches.
    """
    drawn = []
    for theme in (LIGHT, DARK):
        with theme.applied(FontSet([]), **{"text.parse_math": True}):  # powers on logarithmic axes
            figure = Figure(figsize=size, layout="constrained")
            draw(figure, theme)
            drawn.append(to_png(figure, title))
    return images(*drawn, alt)


def images(light: bytes, dark: bytes, alt: str) -> Shown:
    """Return a figure as two PNG files, one for light and one for dark."""
    return Shown(_image(light, alt, "light") + _image(dark, alt, "dark"))


def table(page: str, *columns: str) -> list[dict[str, str]]:
    """Return the first table of a page whose columns begin with these names, a dictionary for each row.

    Args:
        page: The Markdown file, from the folder of this module.
        columns: Names as the heading of the table has them.

    Raises:
        ValueError: If there is none.
    """
    lines = (HERE / page).read_text(encoding="utf-8").splitlines()
    for number, line in enumerate(lines):
        heading = _cells(line)
        if tuple(heading[: len(columns)]) == columns:
            rows = []
            for row in lines[number + 2 :]:
                if not row.startswith("|"):
                    return rows
                rows.append(dict(zip(heading, _cells(row), strict=True)))
            return rows
    raise ValueError(f"{page} has no table that begins with {', '.join(columns)}")


def number(text: str) -> float:
    """Return the first number of a cell, such as 88.4 of "88.4 % (88.2 to 89.5)"."""
    return float(_NUMBER.search(text)[0].replace(",", ""))


def _cells(line: str) -> list[str]:
    return [cell.strip() for cell in line.strip("|").split("|")]


def _image(content: bytes, alt: str, theme: str) -> str:
    small = io.BytesIO()  # 64 colours are enough for a plot, in a third of the bytes
    Image.open(io.BytesIO(content)).convert("RGB").quantize(64).save(small, "png", optimize=True)
    data = base64.b64encode(small.getvalue()).decode("ascii")
    return f'<img class="only-{theme}" src="data:image/png;base64,{data}" alt="{html.escape(alt)}">'


def _colours() -> str:
    """Return the colours of the program's pages as a style for both themes of the site."""
    style = files("vitreous.web").joinpath("shared.css").read_text("utf-8")
    light, dark = _COLOURS.search(style)[1], _DARK.search(style)[1]
    return f"<style>.report-part {{ {light} }} html[data-theme=dark] .report-part {{ {dark} }}</style>"
