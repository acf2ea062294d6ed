"""The figure of lost time by cause against the number of GPUs, in the colours of a theme."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import PercentFormatter

from scale.lost_time import Outcome
from vitreous.report.style import Theme

__all__ = ["draw"]

_GROUPS = {
    "small shares": ("small shares",),
    "stragglers": ("stragglers",),
    "exchange": ("exchange",),
    "store and decoding": ("store", "decoding"),
    "checkpoints, failures, preemption": ("checkpoints", "failures", "preemption"),
}


def draw(panels: Mapping[str, Sequence[Outcome]], figure: Figure, theme: Theme) -> None:
    """Draw a panel for each series of numbers of GPUs on an empty figure."""
    axes = figure.subplots(1, len(panels), sharey=True, squeeze=False)[0]
    for each, (name, outcomes) in zip(axes, panels.items(), strict=True):
        _panel(each, name, outcomes, theme)
    axes[0].set_ylabel("share of the GPUs' time that is lost")
    figure.legend(*axes[0].get_legend_handles_labels(), loc="outside lower center", ncols=len(_GROUPS))


def _panel(axes: Axes, name: str, outcomes: Sequence[Outcome], theme: Theme) -> None:
    places, bottom = range(len(outcomes)), [0.0] * len(outcomes)
    colours = (theme.blue, theme.orange, theme.green, theme.red, theme.muted)
    for (label, causes), colour in zip(_GROUPS.items(), colours, strict=True):
        shares = [max(0.0, sum(o.lost[cause] for cause in causes) / o.total) for o in outcomes]
        axes.bar(places, shares, 0.72, bottom, color=colour, label=label)
        bottom = [low + share for low, share in zip(bottom, shares, strict=True)]
    axes.set_xticks(places, [str(o.case.gpus) for o in outcomes])
    axes.set(title=name, xlabel="GPUs", ylim=(0, 1))
    axes.yaxis.set_major_formatter(PercentFormatter(1.0))
    axes.grid(axis="y")
    axes.set_axisbelow(True)
