"""What all figures share: light and dark colours, Matplotlib settings, and PNG output.

Figures are drawn on Figure objects without pyplot, so that they need no display and leave no global state. The hues
are Okabe and Ito's, which colour-blind readers tell apart (https://jfly.uni-koeln.de/color/).
"""

from __future__ import annotations

import io
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

import matplotlib as mpl
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from vitreous.report.fonts import FontSet

__all__ = ["DARK", "LIGHT", "Theme", "to_png"]

_DPI = 110


@dataclass(frozen=True)
class Theme:
    """Colours of a figure."""

    background: str
    text: str  # titles, labels and axes
    muted: str  # secondary text and neutral bars
    grid: str
    empty: str  # area without data, such as the border around an image
    blue: str
    orange: str
    green: str
    red: str

    def applied(self, fonts: FontSet, **settings: Any) -> AbstractContextManager[None]:
        """Return a context in which figures are drawn in these colours and fonts, with further Matplotlib settings."""
        shared: dict[Any, Any] = {
            "font.family": fonts.families,
            "font.size": 11,
            "text.parse_math": False,  # a `$` in a class name is a dollar sign
            "savefig.transparent": False,
            "axes.titlesize": 12,
            "axes.titlelocation": "left",
            "axes.spines.top": False,
            "axes.spines.right": False,
            "axes.unicode_minus": False,
            "legend.frameon": False,
            "lines.linewidth": 2.0,
            "grid.color": self.grid,
        }
        grounds = dict.fromkeys(("figure.facecolor", "savefig.facecolor", "axes.facecolor"), self.background)
        inked = ("axes.edgecolor", "axes.labelcolor", "text.color", "xtick.color", "ytick.color")
        inks = dict.fromkeys(inked, self.text)
        return mpl.rc_context(shared | grounds | inks | settings)


LIGHT = Theme(
    background="#FFFFFF",
    text="#1F2328",
    muted="#59636E",
    grid="#DDE1E6",
    empty="#F2F2F2",
    blue="#0072B2",
    orange="#E69F00",
    green="#009E73",
    red="#C24E00",
)
"""The colours on a light background."""
DARK = Theme(
    background="#0D1117",
    text="#E6EDF3",
    muted="#9DA7B3",
    grid="#30363D",
    empty="#21262D",
    blue="#3D94D1",
    orange="#E69F00",
    green="#35C49B",
    red="#FF7B3D",
)
"""The colours on a dark background."""


def to_png(figure: Figure, title: str, description: str = "", *, crop: bool = True) -> bytes:
    """Add a bold title at the top left and encode as PNG, with title and description in the metadata.

    ``crop`` cuts off what is empty around the figure, which draws it twice.
    """
    figure.suptitle(title, x=0.01, ha="left", fontsize=14, weight="bold")
    memory = io.BytesIO()
    metadata = {"Title": title, "Description": description} if description else {"Title": title}
    if crop:
        figure.savefig(memory, format="png", dpi=_DPI, bbox_inches="tight", pad_inches=0.15, metadata=metadata)
    else:
        figure.set_dpi(_DPI)
        FigureCanvasAgg(figure).print_png(memory, metadata=metadata)
    return memory.getvalue()
