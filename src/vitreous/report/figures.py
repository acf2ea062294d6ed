"""Figures of a run: learning curves, confusion matrix and calibration. Each function returns a PNG.

The sheet of mistakes is in :mod:`vitreous.report.mistakes`. K classes.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
from matplotlib.axes import Axes
from matplotlib.colors import PowerNorm
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, MaxNLocator

from vitreous.data.sources.listing import pluralize
from vitreous.evaluate.calibration import Calibration, Reliability
from vitreous.evaluate.metrics import ConfusedPair, most_confused
from vitreous.report.fonts import FontSet
from vitreous.report.style import DARK, LIGHT, Theme, to_png

__all__ = ["draw_calibration", "draw_confusion", "draw_curves"]

_PERCENT = FuncFormatter(lambda share, _: f"{round(100 * share, 2):g} %")
_LEARNING_RATE = FuncFormatter(lambda rate, _: f"{rate:.4g}".replace("e-0", "e-"))  # in full: no exponent elsewhere
_MAX_COUNTED, _MAX_NAMED = 20, 40  # classes above which counts and names in a confusion matrix are unreadable
_PAIRS = 12
_MIN_IMAGES = 10  # in a confidence bin; with fewer, its accuracy is mostly chance


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
    `val_top1`, `val_macro_f1` and `lr`, in `precision`. Values that are absent, empty or not finite are skipped. The
    title quotes `saved`, the `top1` and `macro_f1` of the saved weights in float32; None takes those of `history`.
    """
    theme = DARK if dark else LIGHT
    in_precision = "" if precision == "float32" else f" in {precision}"
    with theme.applied(FontSet([])):
        figure = Figure(figsize=(12.5, 4.2), layout="constrained")
        loss, score, rate = figure.subplots(1, 3, width_ratios=[1.2, 1.2, 0.9])
        _line(loss, history, "train_loss", "train", color=theme.orange)
        _line(loss, history, "val_log_loss", "validation", color=theme.blue)
        loss.set(title=f"Loss{in_precision} (lower is better)", ylabel="cross-entropy, nats")
        _line(score, history, "val_top1", "top-1 accuracy", color=theme.blue)
        _line(score, history, "val_macro_f1", "macro F1", color=theme.green, linestyle="--")
        score.set(title=f"Validation score{in_precision} (higher is better)")
        score.yaxis.set_major_formatter(_PERCENT)
        _line(rate, history, "lr", "learning rate", color=theme.muted)
        rate.set(title="Learning rate")
        rate.yaxis.set_major_formatter(_LEARNING_RATE)
        rate.set_ylim(bottom=0)
        for axes in (loss, score, rate):
            axes.set_xlabel("epoch")
            axes.xaxis.set_major_locator(MaxNLocator(nbins=5, integer=True, min_n_ticks=1))
            axes.grid(axis="y", linewidth=0.8)
            if selected_epoch is not None:
                style: dict[str, Any] = {"color": theme.red, "linestyle": ":", "linewidth": 1.6, "zorder": 0}
                axes.axvline(selected_epoch, label="saved epoch", **style)
            if axes is not rate and axes.get_legend_handles_labels()[1]:
                axes.legend(loc="best")
        return to_png(figure, _curves_title(history, selected_epoch, saved, precision))


def draw_confusion(
    confusion: npt.NDArray[np.int64], classes: Sequence[str], split: str = "validation", *, dark: bool = False
) -> bytes:
    """Draw the confusion matrix (K, K) as a heat map, beside the most frequent mistakes where there are any.

    Rows are true classes, and scaled to their size. Counts are written for up to 20 classes, names for up to 40; with
    more, only the list of mistakes names classes.
    """
    theme, fonts = DARK if dark else LIGHT, FontSet(classes)
    pairs = most_confused(confusion, classes, _PAIRS)
    with theme.applied(fonts):
        if pairs:
            figure = Figure(figsize=(14, 7.2), layout="constrained")
            matrix, bars = figure.subplots(1, 2, width_ratios=[1.45, 1])
            _pair_bars(bars, pairs, fonts, theme)
        else:
            figure = Figure(figsize=(8.6, 7.4), layout="constrained")
            matrix = figure.subplots()
        _heat_map(matrix, confusion, [fonts.shorten(c, 24 if len(classes) <= 20 else 16) for c in classes], theme)
        wrong = f"{confusion.sum() - np.trace(confusion):,} wrong" if pairs else "no mistakes"
        images = pluralize(int(confusion.sum()), f"{split} image")
        return to_png(figure, f"{images}, {pluralize(len(classes), 'class', 'classes')}: {wrong}")


def draw_calibration(
    before: Reliability,
    after: Reliability,
    summary: Calibration,
    split: str = "validation",
    crossed: bool = False,
    *,
    dark: bool = False,
) -> bytes:
    """Draw reliability diagrams without and with the temperature, each above a histogram of the confidence.

    `crossed` says that `after` and `summary` are cross-fitted: each half of the images is scaled by the temperature
    that fits the other half.
    """
    theme = DARK if dark else LIGHT
    scaled = f"With temperature {summary.temperature:.2f}"
    note = "The saved temperature is fitted on the validation images, not on these."
    if summary.temperature == 1:
        note = "No temperature is saved: one fitted on half of the validation images does not improve the other half."
    if crossed:
        scaled = f"Cross-fitted temperature (saved: {summary.temperature:.2f})"
        note = (
            "The saved temperature is fitted on these images. To measure its effect on unseen images,\n"
            "each half of them is drawn here with the temperature that fits the other half."
        )
    titles = (
        f"As trained: off by {100 * summary.ece_before:.1f} points on average (ECE)",
        f"{scaled}: off by {100 * summary.ece_after:.1f} points",
    )
    with theme.applied(FontSet([])):
        figure = Figure(figsize=(12.5, 7.4), layout="constrained")
        grid = figure.subplots(2, 2, height_ratios=[3, 1], sharex=True, sharey="row", gridspec_kw={"wspace": 0.08})
        for (diagram, histogram), bins, title in zip(grid.T, (before, after), titles, strict=True):
            _reliability(diagram, bins, theme)
            diagram.set_title(title)
            _histogram(histogram, bins, theme)
        grid[0, 0].set_ylabel("accuracy")
        grid[1, 0].set_ylabel("images")
        legend = {name: art for axes in grid[0] for art, name in zip(*axes.get_legend_handles_labels(), strict=True)}
        figure.legend(list(legend.values()), list(legend), loc="outside lower center", ncols=len(legend), title=note)
        images = pluralize(summary.n, f"{split} image")
        return to_png(figure, f"When the model says 80 %, is it right 80 % of the time?   ({images})", note)


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


def _line(axes: Axes, history: Sequence[Mapping[str, Any]], key: str, label: str, **style: Any) -> None:
    if points := _points(history, key):
        marker = "o" if len(points) <= 25 else None
        axes.plot(*zip(*points, strict=True), label=label, marker=marker, markersize=4, **style)


def _curves_title(
    history: Sequence[Mapping[str, Any]], selected_epoch: int | None, saved: Mapping[str, float] | None, precision: str
) -> str:
    title = f"{pluralize(int(max((e for e, _ in _points(history, 'epoch')), default=0)), 'epoch')} of training"
    if selected_epoch is None:
        return title
    title += f"; saved: epoch {selected_epoch}"
    top1, macro_f1 = (
        dict(_points(history, f"val_{key}")).get(selected_epoch) if saved is None else saved[key]
        for key in ("top1", "macro_f1")
    )
    if top1 is not None and macro_f1 is not None:
        title += f" with validation top-1 {100 * top1:.1f} %, macro F1 {macro_f1:.2f}"
    return title + (" in float32" if saved is not None and precision != "float32" else "")


def _heat_map(axes: Axes, confusion: npt.NDArray[np.int64], names: Sequence[str], theme: Theme) -> None:
    """Draw the matrix with rows scaled to sum to 1; the row of a class without images stays grey."""
    k = len(names)
    support = confusion.sum(axis=1, keepdims=True)
    shares = np.ma.masked_invalid(np.where(support > 0, confusion / np.maximum(support, 1), np.nan))
    # The square root of the share keeps rare mistakes visible beside a diagonal near 1.
    image = axes.imshow(shares, cmap=theme.colormap(), norm=PowerNorm(0.5, 0, 1), aspect="equal")
    bar = axes.figure.colorbar(image, ax=axes, shrink=0.7, pad=0.02, ticks=[0, 0.01, 0.05, 0.1, 0.25, 0.5, 1])
    bar.ax.yaxis.set_major_formatter(_PERCENT)
    bar.set_label("share of the true class")
    bar.outline.set_visible(False)
    index = "" if k <= _MAX_NAMED else " (index)"
    axes.set(xlabel=f"predicted class{index}", ylabel=f"true class{index}")
    axes.set_title("Confusion matrix (correct predictions on the diagonal)")
    axes.spines[:].set_visible(False)
    if k <= _MAX_NAMED:
        size = 10 if k <= 12 else 8 if k <= 20 else 6.5
        axes.set_yticks(range(k), labels=names, fontsize=size)
        is_slanted = max(map(len, names)) * k > 50
        slant: dict[str, Any] = {"rotation": 45, "ha": "right", "rotation_mode": "anchor"} if is_slanted else {}
        axes.set_xticks(range(k), labels=names, fontsize=size, **slant)
        axes.tick_params(length=0)
    if k <= _MAX_COUNTED:
        size = 12 if k <= 6 else 10 if k <= 12 else 7.5
        for row, column in zip(*np.nonzero(confusion), strict=True):
            ink = LIGHT.background if (shares[row, column] > 0.35) == (theme is LIGHT) else LIGHT.text
            axes.text(column, row, f"{confusion[row, column]:,}", ha="center", va="center", color=ink, fontsize=size)


def _pair_bars(axes: Axes, pairs: Sequence[ConfusedPair], fonts: FontSet, theme: Theme) -> None:
    axes.set(title="Most frequent mistakes: true → predicted", xticks=[], yticks=[])
    axes.spines[:].set_visible(False)
    counts = [pair.count for pair in pairs]
    axes.barh(range(len(pairs)), counts, color=theme.red, height=0.3)
    for row, pair in enumerate(pairs):
        name = f"{fonts.shorten(pair.true, 28)} → {fonts.shorten(pair.predicted, 28)}"
        axes.text(0, row - 0.24, name, va="bottom", fontsize=10)
        share = f" {pair.count:,} ({100 * pair.share:.0f} %)"
        axes.text(pair.count, row, share, va="center", fontsize=10, color=theme.muted)
    axes.set_xlim(0, max(counts) * 1.25)  # space for the number after the longest bar
    axes.set_ylim(max(len(pairs), _PAIRS) - 0.5, -0.7)
    axes.set_xlabel("images, and their share of the true class", loc="left", color=theme.muted, fontsize=10)


def _reliability(axes: Axes, bins: Reliability, theme: Theme) -> None:
    """Draw accuracy by confidence as bars with their distance to the diagonal; bins with few images are paler."""
    width = np.diff(bins.edges)
    is_sure = bins.counts >= _MIN_IMAGES
    axes.plot([0, 1], [0, 1], color=theme.text, linestyle="--", linewidth=1.4, zorder=3, label="perfect calibration")
    for held, alpha, label in (
        (is_sure, 1.0, "accuracy"),
        ((bins.counts > 0) & ~is_sure, 0.45, f"accuracy, fewer than {_MIN_IMAGES} images"),
    ):
        if held.any():
            bars = (bins.edges[:-1][held], bins.accuracy[held], width[held])
            axes.bar(*bars, align="edge", color=theme.blue, alpha=alpha, edgecolor=theme.background, label=label)
    if is_sure.any():
        gaps = ((bins.edges[:-1] + width / 2)[is_sure], bins.accuracy[is_sure], bins.confidence[is_sure])
        label = "gap to the confidence (bar below the diagonal: too confident)"
        axes.vlines(*gaps, color=theme.red, linewidth=3, label=label)
    axes.set(xlim=(0, 1), ylim=(0, 1.02))
    axes.yaxis.set_major_formatter(_PERCENT)


def _histogram(axes: Axes, bins: Reliability, theme: Theme) -> None:
    widths = np.diff(bins.edges)
    axes.bar(bins.edges[:-1], bins.counts, widths, align="edge", color=theme.muted, edgecolor=theme.background)
    axes.set_xlabel("confidence of the prediction")
    axes.xaxis.set_major_formatter(_PERCENT)
    axes.yaxis.set_major_locator(MaxNLocator(nbins=3, integer=True))
