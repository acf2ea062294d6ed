"""The figure of the records: top-1 against minutes and against operations, with published results."""

from __future__ import annotations

from collections.abc import Sequence

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from vitreous.report.style import Theme

TUTORIAL = (28 + 17 / 60, 78.8, "tutorial, on a GPU")  # minutes, from its own log
PUBLISHED = (  # training operations, top-1 on test
    (2.9e14, 94.0, "airbench94, a CNN"),
    (2.0e15, 89.2, "CCT-2/3x2"),
    (2.8e15, 91.5, "CCT-4/3x2"),
)
MARKERS = "osv^XPD*"


def draw_records(figure: Figure, theme: Theme, points: Sequence[tuple[str, float, float, float]]) -> None:
    """Draw a line for each name through its points: name, minutes, training operations, top-1 in per cent."""
    axes = figure.subplots(1, 2, sharey=True)
    colours = (theme.blue, theme.orange, theme.green, theme.red)
    for place, name in enumerate(dict.fromkeys(point[0] for point in points)):
        own = sorted(point[1:] for point in points if point[0] == name)
        top1 = [row[2] for row in own]
        look = {"color": colours[place % len(colours)], "marker": MARKERS[place % len(MARKERS)]}
        look["linestyle"] = "-" if place < len(colours) else "--"
        axes[0].plot([row[0] for row in own], top1, label=name, **look)
        axes[1].plot([row[1] for row in own], top1, **look)
    _mark(axes[0], theme, *TUTORIAL)
    for result in PUBLISHED:
        _mark(axes[1], theme, *result)
    axes[0].set(xlabel="minutes, whole command", ylabel="top-1 on test, %", xlim=(0, 66))
    axes[1].set(xlabel="training operations", xscale="log", xlim=(4e13, 2e16))
    for axis in axes:
        axis.grid(axis="y")
        axis.set_axisbelow(True)
    figure.legend(*axes[0].get_legend_handles_labels(), loc="outside lower center", ncols=3, fontsize=8)


def _mark(axis: Axes, theme: Theme, x: float, y: float, name: str) -> None:
    """Mark a published result."""
    axis.plot([x], [y], "D", color=theme.muted, markersize=5)
    axis.annotate(name, (x, y), xytext=(7, 0), textcoords="offset points", fontsize=8, va="center")
