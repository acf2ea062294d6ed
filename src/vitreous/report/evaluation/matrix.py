"""The confusion matrix as SVG: rows are true classes, columns predictions, and the colour is the share of the row.

K classes, in an order that puts confused ones together. A row's shares sum to 1.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise

import numpy as np

from vitreous.files.text import html_text, json_text, visible
from vitreous.report.evaluation.results import EvaluationResult

__all__ = ["LARGEST", "matrix_figure"]

LARGEST = 2000
"""Most classes of a matrix that is drawn."""

_LEVELS = (0.0, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5)  # lower bounds of the colours
_COUNTED, _NAMED = 20, 60  # most classes with numbers in the cells, and with names at the rows
_LONGEST = 18  # characters of a name at a row
_MOST_CELLS = 50_000  # that can be pointed at


def matrix_figure(result: EvaluationResult) -> Iterator[str]:
    """Yield the matrix, its legend, and the data by which a script names the cell under the pointer or the keys."""
    order = result.order
    shown = result.confusion[np.ix_(order, order)]  # (K, K)
    support = shown.sum(axis=1)
    names = [visible(result.given.classes[k], 60) for k in order]
    k = len(names)
    cell = 34 if k <= _COUNTED else 14 if k <= _NAMED else max(900 / k, 0.45)
    left = 7 * min(_LONGEST, max(map(len, names))) + 12 if k <= _NAMED else 4
    side = cell * k
    rows, columns = np.nonzero(shown)
    shares = shown[rows, columns] / support[rows]
    levels = np.searchsorted(_LEVELS, shares, side="right") - 1
    wrong = int(shown.sum() - np.trace(shown))
    described = f"Confusion matrix of {k} classes: {wrong} of {int(shown.sum())} images are off the diagonal"
    size = f'viewBox="0 0 {left + side + 2:.0f} {left + side + 2:.0f}" width="{left + side + 2:.0f}"'
    yield '<div class="matrix" tabindex="0" role="group" aria-label="Confusion matrix: arrow keys go to the next '
    yield f'filled cell" data-left="{left}" data-cell="{cell:.4f}">'
    yield f'<svg {size} role="img" aria-label="{described}">'
    yield f'<rect class="empty" x="{left}" y="{left}" width="{side:.1f}" height="{side:.1f}"/>'
    mark = max(cell, 1.6)  # so that a cell of a large matrix is still visible
    for level in range(len(_LEVELS)):
        for style, right in (("hit", True), ("miss", False)):
            chosen = (levels == level) & ((rows == columns) == right)
            path = "".join(
                f"M{left + c * cell:.1f} {left + r * cell:.1f}h{mark:.1f}v{mark:.1f}h-{mark:.1f}z"
                for r, c in zip(rows[chosen], columns[chosen], strict=True)
            )
            if path:
                yield f'<path class="{style} l{level}" d="{path}"/>'
    if k <= _COUNTED:
        for r, c, level in zip(rows, columns, levels, strict=True):
            x, y = left + (c + 0.5) * cell, left + (r + 0.5) * cell + 4
            strong = ' class="on"' if level >= 5 else ""
            yield f'<text{strong} x="{x:.0f}" y="{y:.0f}" text-anchor="middle">{shown[r, c]}</text>'
    if k <= _NAMED:
        yield from _axis_names(names, left, cell)
    yield '<rect class="cursor" width="0" height="0"/></svg></div>'
    yield '<p class="readout" aria-live="polite">Point at a cell, or press an arrow key, to read it.</p>'
    yield _legend()
    kept = np.argsort(-shown[rows, columns], kind="stable")[:_MOST_CELLS]
    cells = [[int(rows[n]), int(columns[n]), int(shown[rows[n], columns[n]])] for n in kept]
    data = json_text({"names": names, "support": support.tolist(), "cells": cells}, ascii_only=True)
    data = data.replace("<", "\\u003c")  # a name cannot end the script
    yield f'<script type="application/json" id="cells">{data}</script>'


def _axis_names(names: list[str], left: int, cell: float) -> Iterator[str]:
    yield '<g class="names">'
    for n, name in enumerate(names):
        short = name if len(name) <= _LONGEST else f"{name[: _LONGEST - 1]}\u2026"
        middle = left + (n + 0.5) * cell
        yield f'<text x="{left - 6}" y="{middle + 4:.1f}" text-anchor="end">{html_text(short)}</text>'
        turned = f'transform="translate({middle + 4:.1f} {left - 6}) rotate(-90)"'
        yield f"<text {turned}>{html_text(short)}</text>"
    yield "</g>"


def _legend() -> str:
    bounds = [*_LEVELS, 1.0]
    texts = [f"{low:.0%} to {high:.0%}" for low, high in pairwise(bounds)]
    items = (
        f'<li><svg class="swatch" viewBox="0 0 30 14" aria-hidden="true">'
        f'<rect class="hit l{n}" width="14" height="14"/>'
        f'<rect class="miss l{n}" x="16" width="14" height="14"/></svg>{text}</li>'
        for n, text in enumerate(texts)
    )
    return f'<ul class="legend"><li>of the true class, right and wrong:</li>{"".join(items)}</ul>'
