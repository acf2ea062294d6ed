"""Figures of a run: learning curves, confusion matrix, calibration. Each function returns a PNG.

The sheet of mistakes is in :mod:`vitreous.report.mistakes`.

They draw on Figure objects without pyplot, so that they need no display and leave no state behind. Colours are Okabe
and Ito's, which colour-blind readers tell apart (https://jfly.uni-koeln.de/color/). K classes.
"""

from __future__ import annotations

import io
import math
from collections.abc import Mapping, Sequence
from typing import Any

import matplotlib as mpl
import numpy as np
import numpy.typing as npt
from matplotlib.axes import Axes
from matplotlib.colors import PowerNorm
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, MaxNLocator

from vitreous.data.sources.listing import many
from vitreous.evaluate.calibration import Calibration, Reliability
from vitreous.evaluate.metrics import most_confused
from vitreous.report.lettering import Lettering

__all__ = ["GREY", "RED", "STYLE", "as_png", "draw_calibration", "draw_confusion", "draw_curves"]

BLUE, ORANGE, GREEN, RED, GREY = "#0072B2", "#E69F00", "#009E73", "#D55E00", "#6E6E6E"
STYLE: dict[str, Any] = {
    "figure.facecolor": "white",
    "savefig.facecolor": "white",
    "savefig.transparent": False,
    "font.size": 11,
    "axes.titlesize": 12,
    "axes.titlelocation": "left",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.unicode_minus": False,
    "legend.frameon": False,
    "lines.linewidth": 2.0,
}
_PERCENT = FuncFormatter(lambda share, _: f"{round(100 * share, 2):g} %")
_DPI = 110
_NUMBERS_UP_TO, _NAMES_UP_TO = 20, 40  # classes: beyond, numbers and names in a confusion matrix are unreadable
_PAIRS = 12
_FEW = 10  # images in a bin of confidence, below which its accuracy is mostly chance


def draw_curves(
    history: Sequence[Mapping[str, Any]],
    selected_epoch: int | None = None,
    saved: Mapping[str, float] | None = None,
    precision: str = "float32",
) -> bytes:
    """Draw how a run learned: losses, validation scores and learning rate by epoch.

    Args:
        history: Rows of numbers, one or more an epoch, with the keys `epoch` (counted from 1), `train_loss`,
            `val_log_loss`, `val_top1`, `val_macro_f1` and `lr`. A value that is absent, empty or not finite is left
            out.
        selected_epoch: The epoch whose weights were saved; None marks none.
        saved: Scores of these weights in float32, `top1` and `macro_f1`, for the title; None takes those of the epoch.
        precision: That the scores of `history` were computed in.
    """
    said = "" if precision == "float32" else f" in {precision}"
    with mpl.rc_context(Lettering([]).style(**STYLE)):
        figure = Figure(figsize=(12.5, 4.2), layout="constrained")
        loss, score, rate = figure.subplots(1, 3, width_ratios=[1.2, 1.2, 0.9])
        _line(loss, history, "train_loss", "train", color=ORANGE)
        _line(loss, history, "val_log_loss", "validation", color=BLUE)
        loss.set(title=f"Loss{said} (lower is better)", ylabel="cross-entropy, nats")
        _line(score, history, "val_top1", "top-1 accuracy", color=BLUE)
        _line(score, history, "val_macro_f1", "macro F1", color=GREEN, linestyle="--")
        score.set(title=f"Validation score{said} (higher is better)")
        score.yaxis.set_major_formatter(_PERCENT)
        _line(rate, history, "lr", "learning rate", color=GREY)
        rate.set(title="Learning rate")
        rate.ticklabel_format(axis="y", style="sci", scilimits=(-2, 3))
        rate.set_ylim(bottom=0)
        for axes in (loss, score, rate):
            axes.set_xlabel("epoch")
            axes.xaxis.set_major_locator(MaxNLocator(integer=True, min_n_ticks=1))
            axes.grid(axis="y", color="#E3E3E3", linewidth=0.8)
            if selected_epoch is not None:
                axes.axvline(selected_epoch, color=RED, linestyle=":", linewidth=1.6, zorder=0, label="saved epoch")
            if axes is not rate and axes.get_legend_handles_labels()[1]:
                axes.legend(loc="best")
        return as_png(figure, _curves_title(history, selected_epoch, saved, precision))


def draw_confusion(confusion: npt.NDArray[np.int64], classes: Sequence[str], split: str = "validation") -> bytes:
    """Draw which classes are taken for which, as a heat map beside the most frequent kinds of mistake.

    Rows are scaled to the size of the true class. Counts are written up to 20 classes, names up to 40; beyond, the
    list of mistakes names the classes.

    Args:
        confusion: (K, K) counts, row = true class, column = predicted class.
        classes: The K class names.
        split: Name of the images that were counted, for the title.
    """
    lettering = Lettering(classes)
    k = len(classes)
    wrong = int(confusion.sum() - np.trace(confusion))
    with mpl.rc_context(lettering.style(**STYLE)):
        figure = Figure(figsize=(14, 7.2), layout="constrained")
        heat, bars = figure.subplots(1, 2, width_ratios=[1.45, 1])
        _heat_map(figure, heat, confusion, [lettering.label(c, 24 if k <= 20 else 16) for c in classes])
        pairs = most_confused(confusion, classes, _PAIRS)
        names = [" → ".join(lettering.label(name, 30) for name in (p.true, p.predicted)) for p in pairs]
        _pair_bars(bars, [(name, p.count, p.share) for name, p in zip(names, pairs, strict=True)])
        title = f"{many(int(confusion.sum()), f'{split} image')}, {k} classes: {wrong:,} wrong"
        return as_png(figure, title)


def draw_calibration(
    before: Reliability, after: Reliability, summary: Calibration, split: str = "validation", crossed: bool = False
) -> bytes:
    """Draw reliability diagrams without and with the temperature, each above a histogram of the confidence.

    Args:
        before: Bins at temperature 1.
        after: Bins at the fitted temperature.
        summary: The figures that the titles quote.
        split: Name of the images that were measured, for the title.
        crossed: Whether `after` and `summary` are of each half of them with the temperature that fits the other half.
    """
    with mpl.rc_context(Lettering([]).style(**STYLE)):
        figure = Figure(figsize=(11.5, 7.4), layout="constrained")
        grid = figure.subplots(2, 2, height_ratios=[3, 1], sharex=True, sharey="row")
        scaled = f"With temperature {summary.temperature:.2f}"
        if crossed:
            scaled = f"With a temperature, cross-fitted (saved: {summary.temperature:.2f})"
        heads = (
            f"As trained: off by {100 * summary.ece_before:.1f} points on average (ECE)",
            f"{scaled}: off by {100 * summary.ece_after:.1f} points",
        )
        for column, (bins, head) in enumerate(zip((before, after), heads, strict=True)):
            _reliability(grid[0, column], bins)
            grid[0, column].set_title(head)
            _histogram(grid[1, column], bins)
        grid[0, 0].set_ylabel("how often it is right")
        grid[1, 0].set_ylabel("pictures")
        labelled = {name: art for axes in grid[0] for art, name in zip(*axes.get_legend_handles_labels(), strict=True)}
        note = "The saved temperature is fitted on the validation images, not on these."
        if summary.temperature == 1:
            note = "No temperature is saved: one that fits half of the validation images does not help the other half."
        if crossed:
            note = (
                "The saved temperature is fitted on these images, so none of them is drawn with it:\n"
                "cross-fitted, each half of them is drawn with the temperature that fits the other half."
            )
        figure.legend(
            list(labelled.values()), list(labelled), loc="outside lower center", ncols=len(labelled), title=note
        )
        images = many(summary.n, f"{split} image")
        return as_png(figure, f"When the model says 80 %, is it right 80 % of the time?   ({images})", note)


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


def _line(axes: Axes, history: Sequence[Mapping[str, Any]], key: str, label: str, **look: Any) -> None:
    points = _points(history, key)
    if not points:
        return
    marker = "o" if len(points) <= 25 else None
    axes.plot(*zip(*points, strict=True), label=label, marker=marker, markersize=4, **look)


def _curves_title(
    history: Sequence[Mapping[str, Any]],
    selected_epoch: int | None,
    saved: Mapping[str, float] | None,
    precision: str,
) -> str:
    epochs = int(max((e for e, _ in _points(history, "epoch")), default=0))
    title = f"{many(epochs, 'epoch')} of training"
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


def _heat_map(figure: Figure, axes: Axes, confusion: npt.NDArray[np.int64], names: Sequence[str]) -> None:
    """Draw the matrix, rows scaled to sum to 1; a class without pictures stays grey."""
    k = len(names)
    support = confusion.sum(axis=1, keepdims=True)
    shares = np.ma.masked_invalid(np.where(support > 0, confusion / np.maximum(support, 1), np.nan))
    colours = mpl.colormaps["Blues"].with_extremes(bad="#D9D9D9")
    # The square root of the share: rare mistakes stay visible beside a diagonal near 1.
    image = axes.imshow(shares, cmap=colours, norm=PowerNorm(0.5, 0, 1), aspect="equal")
    bar = figure.colorbar(image, ax=axes, shrink=0.7, pad=0.02, ticks=[0, 0.01, 0.05, 0.1, 0.25, 0.5, 1])
    bar.ax.yaxis.set_major_formatter(_PERCENT)
    bar.set_label("share of the true class")
    bar.outline.set_visible(False)
    unit = "" if k <= _NAMES_UP_TO else ", by its number"
    axes.set(xlabel=f"predicted class{unit}", ylabel=f"true class{unit}")
    axes.set_title("Which class is taken for which (the diagonal is right)")
    axes.spines[:].set_visible(False)
    if k <= _NAMES_UP_TO:
        size = 10 if k <= 12 else 8 if k <= 20 else 6.5
        axes.set_yticks(range(k), labels=names, fontsize=size)
        slanted = max(map(len, names)) * k > 50
        turn: dict[str, Any] = {"rotation": 45, "ha": "right", "rotation_mode": "anchor"} if slanted else {}
        axes.set_xticks(range(k), labels=names, fontsize=size, **turn)
        axes.tick_params(length=0)
    if k <= _NUMBERS_UP_TO:
        for row, column in zip(*np.nonzero(confusion), strict=True):
            ink = "white" if shares[row, column] > 0.35 else "#222222"
            count = f"{confusion[row, column]:,}"
            axes.text(
                column,
                row,
                count,
                ha="center",
                va="center",
                color=ink,
                fontsize=12 if k <= 6 else 10 if k <= 12 else 7.5,
            )


def _pair_bars(axes: Axes, pairs: Sequence[tuple[str, int, float]]) -> None:
    """Draw one bar per kind of mistake, the most frequent on top."""
    axes.set_title("Most frequent mistakes: true → predicted")
    axes.spines[:].set_visible(False)
    axes.set_xticks([])
    axes.set_yticks([])
    if not pairs:
        axes.text(0.02, 0.9, "No mistakes.", transform=axes.transAxes, color=GREY)
        return
    counts = [count for _, count, _ in pairs]
    axes.barh(range(len(pairs)), counts, color=RED, height=0.3)
    for place, (name, count, share) in enumerate(pairs):
        axes.text(0, place - 0.24, name, va="bottom", fontsize=10)
        axes.text(count, place, f" {count:,} ({100 * share:.0f} %)", va="center", fontsize=10, color=GREY)
    axes.set_xlim(0, max(counts) * 1.25)  # room for the numbers after the longest bar
    axes.set_ylim(max(len(pairs), _PAIRS) - 0.5, -0.7)
    axes.set_xlabel("pictures, and their share of the true class", loc="left", color=GREY, fontsize=10)


def _reliability(axes: Axes, bins: Reliability) -> None:
    """Draw accuracy by confidence: bars, their distance to the diagonal, and bins of few pictures paler."""
    width = np.diff(bins.edges)
    sure = bins.counts >= _FEW
    few = (bins.counts > 0) & ~sure
    axes.plot([0, 1], [0, 1], color=GREY, linestyle="--", linewidth=1.4, label="what it should be")
    for held, alpha, label in ((sure, 1.0, "what it is"), (few, 0.35, f"fewer than {_FEW} pictures")):
        if held.any():
            axes.bar(
                bins.edges[:-1][held],
                bins.accuracy[held],
                width[held],
                align="edge",
                color=BLUE,
                alpha=alpha,
                edgecolor="white",
                label=label,
            )
    gap = bins.confidence[sure] - bins.accuracy[sure]
    middle = bins.edges[:-1][sure] + width[sure] / 2
    if sure.any():
        axes.vlines(
            middle,
            bins.accuracy[sure],
            bins.accuracy[sure] + gap,
            color=RED,
            linewidth=3,
            label="the difference: bars below the line mean too sure",
        )
    axes.set(xlim=(0, 1), ylim=(0, 1.02))
    axes.yaxis.set_major_formatter(_PERCENT)


def _histogram(axes: Axes, bins: Reliability) -> None:
    axes.bar(bins.edges[:-1], bins.counts, np.diff(bins.edges), align="edge", color=GREY, edgecolor="white")
    axes.set_xlabel("how sure the model says it is")
    axes.xaxis.set_major_formatter(_PERCENT)
    axes.yaxis.set_major_locator(MaxNLocator(nbins=3, integer=True))


def as_png(figure: Figure, title: str, text: str = "") -> bytes:
    """The figure under a title, which the file also says in words for programs and readers that see no images.

    Args:
        figure: Complete but for its title.
        title: Bold, on the left.
        text: What the figure says besides, for the file alone.
    """
    figure.suptitle(title, x=0.01, ha="left", fontsize=14, weight="bold")
    memory = io.BytesIO()
    told = {"Title": title, "Description": text} if text else {"Title": title}
    figure.savefig(memory, format="png", dpi=_DPI, bbox_inches="tight", pad_inches=0.15, metadata=told)
    return memory.getvalue()
