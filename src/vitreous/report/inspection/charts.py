"""Small charts over the blocks of a model, as SVG text in the colours of the page.

Text in a chart is never a name of the user, so that it needs no escaping. Shapes: L points along x.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from vitreous.report.svg import Axis, Plot

__all__ = ["Chart", "Series"]

_WIDTH, _HEIGHT = 420, 260
_MOST_TICKS = 16  # along x


@dataclass(frozen=True)
class Series:
    """Values over the blocks.

    Attributes:
        values: L values; NaN is not drawn.
        style: Class of the style sheet: `blue`, `orange`, `green` or `grey`.
        line: Whether points are joined.
        name: For the text of a point, such as "head 3".
        first: Position of the first value along x.
    """

    values: Sequence[float]
    style: str = "blue"
    line: bool = True
    name: str = ""
    first: int = 0


@dataclass(frozen=True)
class Chart:
    """A chart of series over the blocks.

    Attributes:
        series: What is drawn.
        y_label: Label of the y axis, with its unit.
        description: Text alternative of the chart.
        x_label: Label of the x axis.
        reference: A dashed level, or None.
        high: Top of the y axis; None leaves room for every value.
    """

    series: Sequence[Series]
    y_label: str
    description: str
    x_label: str = "block"
    reference: float | None = None
    high: float | None = None

    def svg(self) -> str:
        """Return the chart."""
        first = min(each.first for each in self.series)
        last = max(first + 1, *(each.first + len(each.values) - 1 for each in self.series))
        blocks = range(first, last + 1, -(-(last - first + 1) // _MOST_TICKS))
        ticks = _ticks(self._most)
        x = Axis(first - 0.5, last + 0.5, tuple(blocks), self.x_label)
        plot = Plot(x, Axis(0.0, self.high or ticks[-1], tuple(ticks), self.y_label), _WIDTH, _HEIGHT)
        parts = [self._draw(each, plot) for each in self.series]
        if self.reference is not None:
            parts.insert(0, plot.line([(x.low, self.reference), (x.high, self.reference)], "grey dashed"))
        return plot.svg(parts, self.description)

    @property
    def _most(self) -> float:
        values = [value for each in self.series for value in each.values if math.isfinite(value)]
        return self.high or max([*values, self.reference or 0.0], default=1.0)

    def _draw(self, series: Series, plot: Plot) -> str:
        points = [(series.first + n, value) for n, value in enumerate(series.values) if math.isfinite(value)]
        name = f"{series.name}, " if series.name else ""
        dots = (
            plot.dot((block, value), series.style, 3.5, f"{name}{self.x_label} {block}: {value:.3g}")
            for block, value in points
        )
        return (plot.line(points, series.style) if series.line else "") + "".join(dots)


def _ticks(most: float) -> list[float]:
    """Return round values from 0 to at least the largest one."""
    if not most > 0:
        return [0.0, 1.0]
    size = 10 ** math.floor(math.log10(most / 4))
    step = next(size * factor for factor in (1, 2, 2.5, 5, 10) if size * factor * 5 >= most)
    return [round(step * n, 12) for n in range(math.ceil(most / step - 1e-9) + 1)]
