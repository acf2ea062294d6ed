"""The report of a pretraining run: report.json for programs; a page, curves and images for people, light and dark.

report.json (format_version 1) has recipe, method, options, seed, device, precision, data, model, training, machine and
versions, as :mod:`vitreous.report.run_report` describes those that it shares; `features`, the measures of the saved
weights; `last_epoch`, the last row of metrics.csv; `pretrained_from`, the model that `--from` named, or null; and
`pictures`, the names of the figures beside it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

import numpy as np
import numpy.typing as npt
from matplotlib.figure import Figure

from vitreous.errors import pluralize
from vitreous.files.text import json_text, json_values
from vitreous.report.document import document, safe
from vitreous.report.drawing import data_uri
from vitreous.report.figures import PERCENT, draw_line, finish_axes, put_legend_below, subplots_of_curves
from vitreous.report.fonts import FontSet
from vitreous.report.image_grid import draw_image_grid
from vitreous.report.run_report import write_files
from vitreous.report.style import DARK, LIGHT, Theme, to_png

__all__ = ["Figures", "PretrainReport", "write_pretraining_report"]

Pixels = npt.NDArray[np.uint8]

_FORMAT_VERSION = 1
_CAPTIONS = {
    "curves": "Losses, probes on the validation split, and the number of dimensions that the features use, by epoch.",
    "reconstructions": "Validation images, what the model saw of them, and what it made of that.",
    "neighbours": "Validation images, and those whose features are most similar, with the cosine similarity.",
}


@dataclass(frozen=True)
class Figures:
    """The images of the figures, each (H, W, C) in uint8."""

    images: Sequence[Pixels]
    neighbours: Sequence[Sequence[Pixels]]  # of each image, the most similar first
    similarities: Sequence[Sequence[float]]  # cosines of their features
    visible: Sequence[Pixels] = field(default_factory=list)  # what the model saw; empty without reconstructions
    completed: Sequence[Pixels] = field(default_factory=list)


@dataclass(frozen=True)
class PretrainReport:
    """What a report shows."""

    name: str  # of the run
    about: str  # one line
    content: Mapping[str, Any]  # of report.json
    history: Sequence[Mapping[str, Any]]  # rows of metrics.csv
    figures: Figures


def write_pretraining_report(folder: Path, report: PretrainReport) -> None:
    """Write the figures, the page, and last report.json."""
    drawn: dict[str, tuple[bytes, bytes]] = {"curves": _both(_curves, report)}
    if report.figures.visible:
        drawn["reconstructions"] = _both(_reconstructions, report)
    drawn["neighbours"] = _both(_neighbours, report)
    files = {
        f"{name}{end}.png": png for name, both in drawn.items() for end, png in zip(("", "-dark"), both, strict=True)
    }
    html = "".join(document("vitreous.report.evaluation", f"Pretraining {report.name}", _content(report, drawn)))
    content = {"format_version": _FORMAT_VERSION, **report.content, "pictures": list(files)}
    text = json_text(json_values(content), indent=2) + "\n"
    write_files(folder, {**files, "report.html": html.encode(), "report.json": text.encode()})


def _content(report: PretrainReport, drawn: Mapping[str, tuple[bytes, bytes]]) -> Iterator[str]:
    yield f"<h1>Pretraining {safe(report.name)}</h1>\n<p>{safe(report.about)}</p>\n"
    for name, (light, dark) in drawn.items():
        yield f'<figure><picture><source media="(prefers-color-scheme: dark)" srcset="{data_uri(dark)}">'
        yield f'<img src="{data_uri(light)}" alt="{_CAPTIONS[name]}" style="max-width:100%;height:auto"></picture>'
        yield f"<figcaption>{_CAPTIONS[name]}</figcaption></figure>\n"


def _both(draw: Any, report: PretrainReport) -> tuple[bytes, bytes]:
    """Draw a figure for light and for dark pages."""
    drawn = []
    for theme in (LIGHT, DARK):
        with theme.applied(FontSet([])):
            drawn.append(draw(report, theme))
    return drawn[0], drawn[1]


def _curves(report: PretrainReport, theme: Theme) -> bytes:
    terms = [name for name in (report.history[-1] if report.history else {}) if name.startswith("val_")]
    terms = [name for name in terms if name != "val_loss" and not name.startswith(("val_knn", "val_linear"))]
    loss, probe, rank = subplots_of_curves((1, 1, 1), below=0.4 if terms else 0.0)
    draw_line(loss, report.history, "train_loss", "train", color=theme.orange)
    draw_line(loss, report.history, "val_loss", "validation", color=theme.blue)
    styles = ((theme.green, "--"), (theme.red, ":"), (theme.muted, "-."), (theme.text, (0, (1, 3))))
    for name, (color, style) in zip(terms, styles, strict=False):
        draw_line(loss, report.history, name, name.removeprefix("val_").replace("_", " "), color=color, linestyle=style)
    loss.set(title="Loss and its terms")
    for end, measure in (("", ""), ("_map", ", mAP")):
        draw_line(probe, report.history, f"val_knn{end}", f"k nearest neighbours{measure}", color=theme.blue)
        draw_line(probe, report.history, f"val_linear{end}", f"linear probe{measure}", color=theme.green)
    probe.set(title="Probes of the features (higher is better)" if probe.lines else "No labels: no probes")
    probe.yaxis.set_major_formatter(PERCENT)
    draw_line(rank, report.history, "effective_rank", "effective rank", color=theme.blue)
    draw_line(rank, report.history, "rankme", "RankMe", color=theme.green)
    rank.set(title="Dimensions that the features use")
    for axes in (loss, probe, rank):
        finish_axes(axes)
    if terms:
        put_legend_below(loss)
    title = f"{pluralize(len(report.history), 'epoch')} of pretraining"
    return to_png(cast(Figure, loss.figure), title, report.about, crop=False)


def _reconstructions(report: PretrainReport, theme: Theme) -> bytes:
    shown = report.figures
    figure = Figure(figsize=(1.4 * max(len(shown.images), 3) + 0.4, 4.8), layout="constrained")
    rows = (shown.images, shown.visible, shown.completed)
    draw_image_grid(figure.subplots(), rows, names=("image", "visible", "completed"))
    return to_png(figure, "Reconstructions", _CAPTIONS["reconstructions"])


def _neighbours(report: PretrainReport, theme: Theme) -> bytes:
    shown = report.figures
    rows = [[image, *others] for image, others in zip(shown.images, shown.neighbours, strict=True)]
    cosines = [["", *(f"{value:.2f}" for value in values)] for values in shown.similarities]
    columns = max(len(row) for row in rows)
    figure = Figure(figsize=(1.4 * max(columns, 3), 1.62 * len(rows) + 0.6), layout="constrained")
    heads = ("image", "most similar")[:columns]
    style: dict[str, Any] = {"fontsize": 9, "color": theme.muted}
    draw_image_grid(figure.subplots(), rows, cosines, heads=heads, space=0.12, **style)
    return to_png(figure, "Nearest neighbours", _CAPTIONS["neighbours"])
