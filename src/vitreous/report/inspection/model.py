"""The part of the page about the model: measures of its weights, attention and tokens, each as one figure.

Shapes: L blocks, H heads, (h, w) patches down and across, P prefix tokens, k filters.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from vitreous.errors import pluralize
from vitreous.inspection.attention_distance import AttentionDistance
from vitreous.inspection.depth import DepthProbe
from vitreous.inspection.filters import Filters
from vitreous.inspection.norms import TokenNorms
from vitreous.inspection.positions import OffsetScores, PositionSimilarity
from vitreous.inspection.registers.effect import RegisterEffect
from vitreous.inspection.similarity import LayerSimilarity
from vitreous.report.drawing import magnitude_colours, scaled
from vitreous.report.inspection.charts import Chart, Series
from vitreous.report.inspection.figures import chart_figure, image_figure
from vitreous.report.inspection.register import register_figures
from vitreous.report.inspection.results import Measure

__all__ = ["FEWEST_SCORED", "filter_montage", "model_figures", "montage"]

FEWEST_SCORED = 10
"""Scored images below which accuracies of depths are not comparable."""

_COLUMNS = 7  # of filters, as in the paper's figure


def model_figures(measures: Mapping[str, Measure]) -> Iterator[str]:
    """Yield a figure for each measure that has one."""
    for measure in measures.values():
        draw = _DRAW.get(type(measure))
        if draw is not None:
            yield from draw(measure)


def montage(tiles: npt.NDArray[np.uint8], columns: int, gap: int = 1) -> npt.NDArray[np.uint8]:
    """Return tiles (n, height, width, 3) in rows of so many, with gaps of grey, as one array (H, W, 3)."""
    n, height, width, _ = tiles.shape
    rows = -(-n // columns)
    sheet = np.full((rows * (height + gap) - gap, columns * (width + gap) - gap, 3), 128, np.uint8)
    for number, tile in enumerate(tiles):
        top, left = number // columns * (height + gap), number % columns * (width + gap)
        sheet[top : top + height, left : left + width] = tile
    return sheet


def filter_montage(filters: Filters) -> npt.NDArray[np.uint8]:
    """Return the filters, each scaled to its own range, as one array (H, W, 3)."""
    tiles = np.stack([scaled(each) for each in filters.images])  # k P_h P_w C
    tiles = tiles if tiles.shape[-1] == 3 else tiles[..., :1].repeat(3, -1)
    return montage((255 * tiles).round().astype(np.uint8), min(_COLUMNS, len(tiles)))


def _filters(filters: Filters) -> Iterator[str]:
    share = f"{filters.explained.sum():.0%} of the variance of the kernels"
    yield image_figure(
        "Patch filters",
        f"Principal components of the patch projection, {share}; each has its own scale",
        filter_montage(filters),
        f"{len(filters.images)} filters; the first explains {filters.explained[0]:.0%} of the variance",
    )


def _positions(found: PositionSimilarity) -> Iterator[str]:
    h, w = found.similarity.shape[:2]
    low, high = float(found.similarity.min()), float(found.similarity.max())
    tiles = magnitude_colours(found.similarity, low, high).reshape(h * w, h, w, 3)
    yield image_figure(
        "Similarity of position embeddings",
        f"One map for each patch: the cosine of its embedding with those of all patches, {low:.2f} to {high:.2f}",
        montage(tiles, w),
        f"{h} by {w} maps; mean similarity of neighbours in a row {_of_neighbours(found.similarity):.2f}",
    )


def _offsets(found: OffsetScores) -> Iterator[str]:
    scores = found.product if found.bias is None else found.product + found.bias
    mean = scores.mean(1)  # L (2h - 1) (2w - 1)
    tiles = np.stack([magnitude_colours(each) for each in mean])
    yield image_figure(
        "Attention scores by offset",
        "One map for each block, heads averaged: the mean score of two patches by their offset, 0 in the centre",
        montage(tiles, min(4, len(tiles))),
        f"{len(tiles)} maps of {tiles.shape[1]} by {tiles.shape[2]} offsets",
    )


def _distance(found: AttentionDistance) -> Iterator[str]:
    heads = found.distance.shape[1]
    span = f"{found.distance.min():.0f} to {found.distance.max():.0f} pixels"
    yield chart_figure(
        "Attention distance",
        "Mean distance between a patch and what it attends to, for each head; dashed: uniform attention. "
        f"{found.images} images",
        Chart(
            [Series(found.distance[:, n].tolist(), "blue", False, f"head {n}") for n in range(heads)],
            "distance, pixels",
            f"Attention distance of {pluralize(heads, 'head')} in {pluralize(len(found.distance), 'block')}, {span}",
            reference=found.uniform,
        ),
    )
    yield chart_figure(
        "Attention entropy",
        "Entropy of the attention of a patch as a share of its maximum, for each head; 1 is uniform attention",
        Chart(
            [Series(found.entropy_share[:, n].tolist(), "blue", False, f"head {n}") for n in range(heads)],
            "share of log T",
            f"Attention entropy, {found.entropy_share.min():.2f} to {found.entropy_share.max():.2f} of the maximum",
            high=1.0,
        ),
    )


def _norms(found: TokenNorms) -> Iterator[str]:
    outliers = found.outliers()
    share = float(outliers.share.max())
    text = f"up to {share:.2%} of the patches are outliers" if outliers.any else "no patch is an outlier"
    series = [Series(np.median(found.patches, (1, 2)).tolist(), "blue", True, "median patch")]
    series.append(Series(found.patches.max((1, 2)).tolist(), "orange", True, "largest patch"))
    if found.prefix_tokens:
        prefix = found.norms[:, :, : found.prefix_tokens].mean((1, 2)).tolist()
        series.append(Series(prefix, "green", True, "prefix tokens"))
    names = "blue: median patch, orange: largest patch" + (", green: prefix tokens" if found.prefix_tokens else "")
    yield chart_figure(
        "Token norms",
        f"Norms of tokens after each block: {names}; {text}",
        Chart(series, "norm", f"Token norms by block; {text}"),
    )


def _similarity(found: LayerSimilarity) -> Iterator[str]:
    for name, values in (("mean patch", found.patches), ("class token", found.class_token)):
        if values is not None:
            yield image_figure(
                f"Similarity of depths, {name}",
                "Linear CKA between the input of block 0 (top left) and the outputs of all blocks, 0 to 1. "
                f"{found.images} images",
                magnitude_colours(values, 0, 1),
                f"CKA of the first and the last depth {values[0, -1]:.2f}",
            )


def _depth(found: DepthProbe) -> Iterator[str]:
    token = "class token" if found.token == "class" else "mean of the patch tokens"
    name, unit = ("mAP", "mAP") if found.measure == "mean_ap" else ("Accuracy", "top-1 accuracy")
    remarks = [f"95 % interval at most ± {100 * found.margin:.0f} points"] if found.measure == "accuracy" else []
    remarks += ["too few to compare depths"] if found.scored_images < FEWEST_SCORED else []
    remark = f" ({'; '.join(remarks)})" if remarks else ""
    yield chart_figure(
        "Linear probe by depth",
        f"{name} of a linear classifier on the {token} at each depth; 0 is the input of the first block. "
        f"Fitted to {found.train_images:,} images, scored on {found.scored_images:,} others{remark}",
        Chart(
            [Series(found.accuracy, "blue", True, unit)],
            unit,
            f"{name} by depth: {', '.join(f'{value:.0%}' for value in found.accuracy)}",
            x_label="depth",
            high=1.0,
        ),
    )


def _of_neighbours(similarity: npt.NDArray[Any]) -> float:
    """Return the mean similarity of patches side by side; (h, w, h, w)."""
    h, w = similarity.shape[:2]
    pairs = [similarity[i, j, i, j + 1] for i in range(h) for j in range(w - 1)]
    return float(np.mean(pairs)) if pairs else 1.0


_DRAW: dict[type, Callable[[Any], Iterator[str]]] = {
    Filters: _filters,
    PositionSimilarity: _positions,
    OffsetScores: _offsets,
    AttentionDistance: _distance,
    TokenNorms: _norms,
    RegisterEffect: register_figures,
    LayerSimilarity: _similarity,
    DepthProbe: _depth,
}
