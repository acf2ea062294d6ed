"""The learning curves of a run, as a PNG."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, cast

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, MaxNLocator

from vitreous.errors import pluralize
from vitreous.report.fonts import FontSet
from vitreous.report.style import DARK, LIGHT, to_png

__all__ = ["PERCENT", "draw_curves", "draw_line", "finish_axes", "put_legend_below", "subplots_of_curves"]

PERCENT = FuncFormatter(lambda share, _: f"{round(100 * share, 2):g} %")
"""Formats a share as a percentage."""

_TERMS = (
    ("train_classification", "train, labels", "-"),
    ("train_reconstruction", "train, reconstruction", "--"),
    ("train_unlabelled", "the same, unlabelled", ":"),
    ("train_pseudo", "train, pseudo-labels", "--"),
)
"""Columns of metrics.csv with the terms of the training loss, if it has any, with labels and line styles."""

_LEARNING_RATE = FuncFormatter(lambda rate, _: f"{rate:.4g}".replace("e-0", "e-"))  # in full: no exponent elsewhere


def draw_curves(
    history: Sequence[Mapping[str, Any]],
    selected_epoch: int | None = None,
    saved: Mapping[str, float] | None = None,
    precision: str = "float32",
    *,
    dark: bool = False,
) -> bytes:
    """Draw losses, validation scores and learning rate by epoch.

    `history` has one or more rows per epoch with the keys `epoch` (counted from 1), `train_loss`, `val_log_loss`,
    `val_top1` or `val_mean_ap`, `val_macro_f1` and `lr`, in `precision`, and with the terms of the training loss if it
    has any. Values that are absent, empty or not finite are skipped. The title quotes `saved`, the `top1` or `mean_ap`
    and the `macro_f1` of the saved weights in float32; None takes those of `history`.
    """
    theme = DARK if dark else LIGHT
    in_precision = "" if precision == "float32" else f" in {precision}"
    with theme.applied(FontSet([])):
        has_terms = any(_points(history, key) for key, _, _ in _TERMS)
        loss, score, rate = subplots_of_curves((1.2, 1.2, 0.9), below=0.4 if has_terms else 0.0)
        draw_line(loss, history, "train_loss", "train", color=theme.orange)
        draw_line(loss, history, "val_log_loss", "validation", color=theme.blue)
        for key, label, line in _TERMS:
            draw_line(loss, history, key, label, color=theme.muted, linestyle=line)
        loss.set(title=f"Loss{in_precision} (lower is better)", ylabel="cross-entropy, nats")
        draw_line(score, history, "val_top1", "top-1 accuracy", color=theme.blue)
        draw_line(score, history, "val_mean_ap", "mAP", color=theme.blue)
        draw_line(score, history, "val_macro_f1", "macro F1", color=theme.green, linestyle="--")
        score.set(title=f"Validation score{in_precision} (higher is better)")
        score.yaxis.set_major_formatter(PERCENT)
        draw_line(rate, history, "lr", "learning rate", color=theme.muted)
        rate.set(title="Learning rate")
        rate.yaxis.set_major_formatter(_LEARNING_RATE)
        rate.set_ylim(bottom=0)
        for axes in (loss, score, rate):
            if selected_epoch is not None:
                style: dict[str, Any] = {"color": theme.red, "linestyle": ":", "linewidth": 1.6, "zorder": 0}
                axes.axvline(selected_epoch, label="saved epoch", **style)
            finish_axes(axes, with_legend=axes is not rate)
        if has_terms:
            put_legend_below(loss)
        title = _curves_title(history, selected_epoch, saved, precision)
        return to_png(cast(Figure, loss.figure), title, crop=False)


def _number(value: Any) -> float | None:
    """Return a finite number, or None; rows may come from a CSV file."""
    try:
        number = float(value)
    except (TypeError, ValueError):
        return None
    return number if math.isfinite(number) else None


def _points(history: Sequence[Mapping[str, Any]], key: str) -> list[tuple[float, float]]:
    """Return (epoch, value) of every row that has both."""
    pairs = ((_number(row.get("epoch")), _number(row.get(key))) for row in history)
    return [(epoch, value) for epoch, value in pairs if epoch is not None and value is not None]


def subplots_of_curves(widths: Sequence[float], below: float = 0.0) -> list[Axes]:
    """Return axes side by side, in a figure with room for their labels, and for so many inches more below them.

    A constrained layout would take more time than all else.
    """
    width, height = 12.5, 4.2 + below
    sides = {"left": 0.75 / width, "right": 1 - 0.2 / width, "wspace": 0.2}
    margins = {**sides, "bottom": (0.6 + below) / height, "top": 1 - 0.72 / height}
    figure = Figure(figsize=(width, height))
    return list(figure.subplots(1, len(widths), width_ratios=widths, gridspec_kw=margins))


def finish_axes(axes: Axes, *, with_legend: bool = True) -> None:
    """Give axes that have epochs below a grid and, if they show anything, a legend."""
    axes.set_xlabel("epoch")
    axes.xaxis.set_major_locator(MaxNLocator(nbins=5, integer=True, min_n_ticks=1))
    axes.grid(axis="y", linewidth=0.8)
    if with_legend and axes.get_legend_handles_labels()[1]:
        axes.legend(loc="best")


def put_legend_below(axes: Axes) -> None:
    """Put the legend below axes that have too many lines for one among them."""
    axes.legend(loc="upper center", bbox_to_anchor=(0.5, -0.18), ncols=3, fontsize=9, columnspacing=1.0)


def draw_line(axes: Axes, history: Sequence[Mapping[str, Any]], key: str, label: str, **style: Any) -> None:
    """Draw the values of a key by epoch, if there are any."""
    if found := _points(history, key):
        marker = "o" if len(found) <= 25 else None
        axes.plot(*zip(*found, strict=True), label=label, marker=marker, markersize=4, **style)


def _curves_title(
    history: Sequence[Mapping[str, Any]], selected_epoch: int | None, saved: Mapping[str, float] | None, precision: str
) -> str:
    title = f"{pluralize(int(max((e for e, _ in _points(history, 'epoch')), default=0)), 'epoch')} of training"
    if selected_epoch is None:
        return title
    title += f"; saved: epoch {selected_epoch}"
    main, label = ("mean_ap", "mAP") if "mean_ap" in (saved or ()) else ("top1", "top-1")
    share, macro_f1 = (
        dict(_points(history, f"val_{key}")).get(selected_epoch) if saved is None else saved[key]
        for key in (main, "macro_f1")
    )
    if share is not None and macro_f1 is not None:
        title += f" with validation {label} {100 * share:.1f} %, macro F1 {macro_f1:.2f}"
    return title + (" in float32" if saved is not None and precision != "float32" else "")
