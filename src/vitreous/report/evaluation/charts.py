"""The charts of the page: reliability, risk and coverage, and robustness, each with a caption and a legend."""

from __future__ import annotations

import html
from collections.abc import Iterator, Sequence

import numpy as np

from vitreous.evaluate.trust.calibration import Reliability
from vitreous.evaluate.trust.selective import SelectionScore
from vitreous.report.evaluation.results import Selection
from vitreous.report.evaluation.robustness import RobustnessResult, ShiftCurve
from vitreous.report.svg import Axis, Plot

__all__ = ["corruption_charts", "reliability_charts", "risk_chart", "score_title", "shift_charts"]

_UNIT = (0.0, 0.25, 0.5, 0.75, 1.0)
_MOST_POINTS = 240  # of a curve: more than the pixels of a plot can show
_SMALL = (200, 150)  # pixels of a chart of many

_SHIFT_TITLES = {
    "scale": "Scale",
    "rotation": "Rotation",
    "brightness": "Brightness",
    "patch_shuffle": "Patch size, all shuffled",
    "patch_shuffle_fraction": "Share of patches shuffled",
}


def reliability_charts(pair: tuple[Reliability, Reliability], temperature: float, crossed: bool) -> Iterator[str]:
    """Yield the diagrams before and after temperature, each above the number of images in every bin."""
    titles = ["Without temperature", f"With temperature {temperature:.3f}{', cross-fitted' if crossed else ''}"]
    shown = zip(titles, pair, strict=True) if temperature != 1 else [("No temperature is set", pair[1])]
    most = max(float(diagram.counts.max()) for diagram in pair) / float(pair[0].counts.sum())
    for title, diagram in shown:
        total = int(diagram.counts.sum())
        plot = Plot(Axis(0, 1, _UNIT, percent=True), Axis(0, 1, _UNIT, "accuracy", percent=True))
        counts = Plot(
            Axis(0, 1, _UNIT, "confidence", percent=True), Axis.share(most, "images", steps=2), height=plot.height // 2
        )
        bars, columns = [], []
        for left, right, count, confidence, accuracy in zip(
            diagram.edges[:-1], diagram.edges[1:], diagram.counts, diagram.confidence, diagram.accuracy, strict=True
        ):
            if not count:
                continue
            text = f"{count:,} images of {left:.0%} to {right:.0%} confidence: {accuracy:.1%} correct, mean confidence "
            bars.append(plot.bar(left, right, accuracy, "blue", f"{text}{confidence:.1%}"))
            columns.append(counts.bar(left, right, count / total, "grey", f"{count:,} of {total:,} images"))
        diagonal = plot.line([(0, 0), (1, 1)], "grey dashed")
        dots = [
            plot.dot((c, a), "orange", 1.5 + 4.5 * float(np.sqrt(n / diagram.counts.max())))  # the area is the count
            for c, a, n in zip(diagram.confidence, diagram.accuracy, diagram.counts, strict=True)
            if n
        ]
        described = f"{title}: accuracy over confidence in 15 bins, calibration error {diagram.error:.4f}"
        drawn = plot.svg([*bars, diagonal, *dots], described)
        below = counts.svg(columns, f"Share of the images in each bin, {total:,} in all")
        caption = f"<figcaption><b>{title}</b><br>ECE {diagram.error:.4f}</figcaption>"
        yield f'<figure class="chart">{caption}{drawn}{below}</figure>'


def risk_chart(selection: Sequence[Selection]) -> str:
    """Return the risk over coverage of every score, with the areas in the legend."""
    error = float(selection[0].curve.risk[-1])
    highest = max(float(each.curve.risk[len(each.curve.risk) // 20 :].max()) for each in selection)
    plot = Plot(
        Axis(0, 1, _UNIT, "coverage: images accepted", percent=True),
        Axis.share(min(1.0, 1.1 * max(highest, error, 0.005)), "risk: wrong of the accepted"),
        width=520,
        height=320,
    )
    lines, legend = [], []
    for number, each in enumerate(selection):
        n = len(each.curve.risk)
        kept = np.unique(np.linspace(0, n - 1, min(n, _MOST_POINTS)).round().astype(np.int64))
        kept = kept[each.curve.risk[kept] <= plot.y.high]
        points = list(zip(each.curve.coverage[kept].tolist(), each.curve.risk[kept].tolist(), strict=True))
        lines.append(plot.line(points, f"s{number}"))
        legend.append(f'<li><span class="key s{number}"></span>{score_title(each.score)}</li>')
    described = f"Risk over coverage of {len(selection)} scores; at full coverage the risk is {error:.1%}"
    return f'<figure class="chart wide">{plot.svg(lines, described)}<ul class="legend">{"".join(legend)}</ul></figure>'


def score_title(score: SelectionScore) -> str:
    """Return the name of a score in words."""
    order = f", p = {score.norm_order:g}" if score.norm_order else ""
    return score.name.replace("_", " ").replace("p norm", "p-norm") + order


def corruption_charts(found: RobustnessResult, score: str = "accuracy") -> Iterator[str]:
    """Yield one small chart for each corruption: the score over severity, dashed without corruption."""
    clean = 1 - (found.corruptions.clean_error or 0.0)
    for name, errors in found.corruptions.errors.items():
        severities = tuple(range(1, len(errors) + 1))
        ends = Axis(1, len(errors), severities), Axis(0, 1, (0, 0.5, 1), percent=True)
        plot = Plot(*ends, *_SMALL)
        points = [(float(s), 1 - error) for s, error in zip(severities, errors, strict=True)]
        title = name.replace("_", " ")
        text = ", ".join(f"{value:.1%}" for _, value in points)
        level = plot.line([(1, clean), (len(errors), clean)], "grey dashed")
        described = f"{title}: {score} at severities 1 to {len(errors)}: {text}"
        drawn = plot.svg([level, plot.line(points, "blue", marks=True)], described)
        yield f'<figure class="chart small"><figcaption>{html.escape(title)}</figcaption>{drawn}</figure>'


def shift_charts(found: RobustnessResult, score: str = "accuracy") -> Iterator[str]:
    """Yield one chart for each shift: the score over its parameter."""
    for name, curve in found.shifts.items():
        yield _shift_chart(_SHIFT_TITLES.get(name, name), curve, score)


def _shift_chart(title: str, curve: ShiftCurve, score: str) -> str:
    low, high = curve.values[0], curve.values[-1]
    ticks: list[float] = []
    for value in (low, high, curve.unchanged, *curve.values):  # those that the others leave room for
        if low <= value <= high and all(abs(value - tick) >= (high - low) / 6 for tick in ticks):
            ticks.append(value)
    axes = Axis(low, high, tuple(ticks), curve.unit), Axis(0, 1, (0, 0.5, 1), percent=True)
    plot = Plot(*axes, 260, 190)
    parts = [plot.line(list(zip(curve.values, curve.accuracy, strict=True)), "blue", marks=True)]
    if low <= curve.unchanged <= high:
        parts.insert(0, plot.line([(curve.unchanged, 0), (curve.unchanged, 1)], "grey dashed"))
    text = ", ".join(f"{value:g}: {share:.1%}" for value, share in zip(curve.values, curve.accuracy, strict=True))
    drawn = plot.svg(parts, f"{title}, {score} by {curve.unit}: {text}")
    return f'<figure class="chart medium"><figcaption>{title}</figcaption>{drawn}</figure>'
