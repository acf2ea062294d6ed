"""One figure of the page about the model: a title with a note, and an image or a chart."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from vitreous.report.drawing import data_uri, png
from vitreous.report.inspection.charts import Chart

__all__ = ["chart_figure", "image_figure"]


def image_figure(title: str, note: str, pixels: npt.NDArray[np.uint8], alt: str) -> str:
    """Return a figure of an array (H, W, 3), with its text alternative."""
    image = f'<img class="block exact" src="{data_uri(png(pixels))}" alt="{title}: {alt}">'
    return f"<figure><figcaption>{title}<small>{note}</small></figcaption>{image}</figure>\n"


def chart_figure(title: str, note: str, chart: Chart) -> str:
    """Return a figure of a chart, which has its own text alternative."""
    return f'<figure class="wide"><figcaption>{title}<small>{note}</small></figcaption>{chart.svg()}</figure>\n'
