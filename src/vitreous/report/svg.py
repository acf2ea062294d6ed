"""Small charts as SVG text: axes, lines and bars in the colours of the page, at about one unit per CSS pixel.

Text in a chart is never a name of the user, so that it needs no escaping; captions and legends are HTML beside it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

__all__ = ["Axis", "Plot", "number"]

Points = Sequence[tuple[float, float]]

_LEFT, _RIGHT, _TOP, _BOTTOM = 58, 20, 10, 42  # margins of a plot


@dataclass(frozen=True)
class Axis:
    """The range of an axis, its ticks, and its label; shares are shown in percent."""

    low: float
    high: float
    ticks: tuple[float, ...]
    label: str = ""
    percent: bool = False

    def text(self, value: float) -> str:
        """Return the text of a tick."""
        return f"{100 * value:.3g}%" if self.percent else f"{value:g}"

    @staticmethod
    def share(high: float, label: str, steps: int = 5) -> Axis:
        """Return an axis of shares from 0 to a round number of at least `high`, in at most that many steps."""
        rounds = (0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.25, 0.5, 1.0)
        step = next(step for step in rounds if high / step <= steps)
        top = min(1.0, step * max(1, -int(-(high + 1e-9) // step)))
        ticks = tuple(round(step * n, 6) for n in range(int(top / step + 1e-9) + 1))
        return Axis(0.0, top, ticks, label, percent=True)


@dataclass(frozen=True)
class Plot:
    """A plot with two linear axes; every method returns a part for :meth:`svg`."""

    x: Axis
    y: Axis
    width: int = 360
    height: int = 250

    def at(self, x: float, y: float) -> tuple[str, str]:
        """Return the position of a point."""
        across = (x - self.x.low) / (self.x.high - self.x.low)
        up = (y - self.y.low) / (self.y.high - self.y.low)
        inner = self.width - _LEFT - _RIGHT, self.height - _TOP - _BOTTOM
        return number(_LEFT + across * inner[0]), number(self.height - _BOTTOM - up * inner[1])

    def line(self, points: Points, style: str, marks: bool = False) -> str:
        """Return a line through points, in the colour of a class of the style sheet."""
        places = [self.at(*point) for point in points]
        drawn = f'<polyline class="line {style}" points="{" ".join(map(",".join, places))}"/>'
        return drawn + "".join(self.dot(point, style) for point in points if marks)

    def dot(self, point: tuple[float, float], style: str, radius: float = 2.5, title: str = "") -> str:
        """Return a filled circle, with a text that appears on hover; the radius is in pixels."""
        x, y = self.at(*point)
        drawn = f'<circle class="dot {style}" cx="{x}" cy="{y}" r="{number(radius)}"'
        return f"{drawn}><title>{title}</title></circle>" if title else f"{drawn}/>"

    def bar(self, left: float, right: float, top: float, style: str, title: str) -> str:
        """Return a bar from 0 to `top` with a text that appears on hover."""
        (x0, y0), (x1, y1) = self.at(left, top), self.at(right, self.y.low)
        size = f'width="{number(float(x1) - float(x0) - 1)}" height="{number(float(y1) - float(y0))}"'
        return f'<rect class="bar {style}" x="{x0}" y="{y0}" {size}><title>{title}</title></rect>'

    def svg(self, parts: Iterable[str], description: str) -> str:
        """Return the whole drawing; `description` is its text alternative, without markup."""
        size = f'viewBox="0 0 {self.width} {self.height}"'
        return f'<svg {size} role="img" aria-label="{description}">{self._frame()}{"".join(parts)}</svg>'

    def _frame(self) -> str:
        parts = []
        for value in self.y.ticks:
            (x0, y), (x1, _) = self.at(self.x.low, value), self.at(self.x.high, value)
            parts.append(f'<path class="grid" d="M{x0} {y}H{x1}"/>')
            label = f'y="{number(float(y) + 4)}" text-anchor="end">{self.y.text(value)}'
            parts.append(f'<text class="tick" x="{_LEFT - 6}" {label}</text>')
        for value in self.x.ticks:
            x, y = self.at(value, self.y.low)
            label = f'text-anchor="middle">{self.x.text(value)}'
            parts.append(f'<text class="tick" x="{x}" y="{number(float(y) + 16)}" {label}</text>')
        (x0, y0), (x1, y1) = self.at(self.x.low, self.y.low), self.at(self.x.high, self.y.high)
        parts.append(f'<path class="axis" d="M{x0} {y0}H{x1}"/>')
        if self.x.label:
            middle = number((float(x0) + float(x1)) / 2)
            parts.append(f'<text x="{middle}" y="{self.height - 6}" text-anchor="middle">{self.x.label}</text>')
        if self.y.label:
            middle = number((float(y0) + float(y1)) / 2)
            turned = f'transform="rotate(-90 12 {middle})" text-anchor="middle"'
            parts.append(f'<text x="12" y="{middle}" {turned}>{self.y.label}</text>')
        return "".join(parts)


def number(value: float) -> str:
    """Return a coordinate to a tenth of a pixel."""
    return f"{value:.1f}".removesuffix(".0")
