"""Small charts over the blocks of a model, as SVG text in the colours of the page.

Text in a chart is never a name of the user, so that it needs no escaping. Shapes: L points along x.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

__all__ = ["Chart", "Series"]

_WIDTH, _HEIGHT = 420, 260
_LEFT, _RIGHT, _TOP, _BOTTOM = 52, 14, 12, 44  # margins of the plot, in the same units


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
        parts = [self._frame()]
        if self.reference is not None:
            (x0, y), (x1, _) = self._at(self._low_x, self.reference), self._at(self._high_x, self.reference)
            parts.append(f'<path class="dashed" d="M{x0} {y}H{x1}"/>')
        parts += [self._draw(each) for each in self.series]
        label = f'role="img" aria-label="{self.description}"'
        return f'<svg class="chart" viewBox="0 0 {_WIDTH} {_HEIGHT}" {label}>{"".join(parts)}</svg>'

    @property
    def _low_x(self) -> int:
        return min(each.first for each in self.series)

    @property
    def _high_x(self) -> int:
        return max(self._low_x + 1, *(each.first + len(each.values) - 1 for each in self.series))

    @property
    def _top(self) -> float:
        values = [value for each in self.series for value in each.values if math.isfinite(value)]
        most = max([*values, self.reference or 0.0], default=1.0)
        return self.high or _ticks(most)[-1]

    def _at(self, x: float, y: float) -> tuple[str, str]:
        across = (x - self._low_x + 0.5) / (self._high_x - self._low_x + 1)
        place = _LEFT + across * (_WIDTH - _LEFT - _RIGHT), _HEIGHT - _BOTTOM - y / self._top * _PLOT_HEIGHT
        return f"{place[0]:.1f}", f"{place[1]:.1f}"

    def _draw(self, series: Series) -> str:
        points = [
            (series.first + n, value, *self._at(series.first + n, value))
            for n, value in enumerate(series.values)
            if math.isfinite(value)
        ]
        line = " ".join(f"{x},{y}" for _, _, x, y in points)
        drawn = f'<polyline class="line {series.style}" points="{line}"/>' if series.line else ""
        name = f"{series.name}, " if series.name else ""
        return drawn + "".join(
            f'<circle class="dot {series.style}" cx="{x}" cy="{y}" r="3.5">'
            f"<title>{name}{self.x_label} {block}: {value:.3g}</title></circle>"
            for block, value, x, y in points
        )

    def _frame(self) -> str:
        parts = []
        for value in _ticks(self._top):
            y = self._at(0, value)[1]
            parts.append(f'<path class="rule" d="M{_LEFT} {y}H{_WIDTH - _RIGHT}"/>')
            parts.append(f'<text x="{_LEFT - 6}" y="{float(y) + 4:.1f}" text-anchor="end">{value:g}</text>')
        count = self._high_x - self._low_x + 1
        for block in range(self._low_x, self._high_x + 1, -(-count // 16)):
            x = self._at(block, 0)[0]
            parts.append(f'<text x="{x}" y="{_HEIGHT - _BOTTOM + 17}" text-anchor="middle">{block}</text>')
        middle_x, middle_y = (_LEFT + _WIDTH - _RIGHT) / 2, (_TOP + _HEIGHT - _BOTTOM) / 2
        parts.append(f'<text x="{middle_x}" y="{_HEIGHT - 6}" text-anchor="middle">{self.x_label}</text>')
        turned = f'transform="rotate(-90 13 {middle_y})" text-anchor="middle"'
        parts.append(f'<text x="13" y="{middle_y}" {turned}>{self.y_label}</text>')
        return "".join(parts)


_PLOT_HEIGHT = _HEIGHT - _TOP - _BOTTOM


def _ticks(most: float) -> list[float]:
    """Return round values from 0 to at least the largest one."""
    if not most > 0:
        return [0.0, 1.0]
    size = 10 ** math.floor(math.log10(most / 4))
    step = next(size * factor for factor in (1, 2, 2.5, 5, 10) if size * factor * 5 >= most)
    return [round(step * n, 12) for n in range(math.ceil(most / step - 1e-9) + 1)]
