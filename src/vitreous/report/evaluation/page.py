"""The evaluation as one self-contained HTML page, section by section, light or dark as the reader's system.

Names of files, classes and models are untrusted: they are escaped and isolated from the direction of the surrounding
text, and the page runs no script but its own.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np

from vitreous.errors import pluralize
from vitreous.files.text import html_text
from vitreous.report.document import document, safe
from vitreous.report.evaluation.charts import reliability_charts, risk_chart, score_title
from vitreous.report.evaluation.matrix import LARGEST, matrix_figure
from vitreous.report.evaluation.results import EvaluationResult
from vitreous.report.evaluation.robustness_section import robustness_section
from vitreous.report.evaluation.sheets import PAIR_IMAGES, image_sheets, mapped, plain_sheet, shown
from vitreous.report.evaluation.stages_section import stages_section
from vitreous.report.evaluation.tables import (
    SCORE_TITLES,
    class_table,
    headline_table,
    name,
    numeric,
    scrolled,
    share,
    table,
)
from vitreous.report.evaluation.thumbnails import ClassMap, ImageOf, Thumbnails

__all__ = ["page"]

_MOST_SLICES = 400

Section = tuple[str, str, Callable[[EvaluationResult, Thumbnails], Iterator[str]]]


def page(
    result: EvaluationResult,
    image: ImageOf | None = None,
    *,
    class_map: ClassMap | None = None,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> Iterator[str]:
    """Yield the page in parts.

    `image` returns an image of the data for a thumbnail; None shows none. `class_map` adds, beside each image of the
    sheets, the evidence for the predicted class. `progress` is called while thumbnails and maps are made.
    """
    thumbs = Thumbnails(image, class_map)
    thumbs.prepare(shown(result), list(mapped(result)), progress)
    title = f"Evaluation of {result.given.model} on {result.given.data}"
    yield from document(__package__, title, _content(result, thumbs))


def _content(result: EvaluationResult, thumbs: Thumbnails) -> Iterator[str]:
    given, sections = result.given, list(_sections(result))
    yield f"<h1>Evaluation of {safe(given.model)}</h1>\n"
    count = f"{pluralize(len(given.names), 'image')} of {pluralize(len(given.classes), 'class', 'classes')}"
    yield f'<p class="soft">{safe(given.data)}, {safe(given.split)}: {count}.</p>\n'
    for note in (*given.notes, *result.detailed.notes):
        yield f"<p>{html_text(note[:1].upper() + note[1:], 4000)}.</p>\n"
    links = "".join(f'<li><a href="#{key}">{title}</a></li>' for key, title, _ in sections)
    yield f'<nav aria-label="Sections"><ul>{links}</ul></nav>\n'
    for key, title, content in sections:
        yield f'<section aria-labelledby="{key}">\n<h2 id="{key}">{title}</h2>\n'
        yield from content(result, thumbs)
        yield "</section>\n"


def _sections(result: EvaluationResult) -> Iterator[Section]:
    yield "scores", "Scores", _scores
    if result.given.stages:
        yield "stages", "Stages", stages_section
    if result.comparison is not None:
        yield "comparison", "Comparison", _comparison
    yield "classes", "Classes", _classes
    yield "confusion", "Confusion", _confusion
    if result.slices:
        yield "slices", "Slices", _slices
    yield "calibration", "Calibration", _calibration
    yield "selection", "Abstention", _selection
    if result.conformal:
        yield "sets", "Prediction sets", _conformal
    if result.given.robustness is not None:
        yield "robustness", "Robustness", robustness_section
    yield "images", "Images", image_sheets


def _scores(result: EvaluationResult, thumbs: Thumbnails) -> Iterator[str]:
    yield headline_table(result)
    yield '<p class="soft">Intervals at 95%: of top-1 and top-5 by Wilson, of AUC and average precision by the '
    yield "infinitesimal jackknife, of the others by 1,000 resamples of the images within their classes. They say how "
    yield "far the scores would vary with other images of the same kind.</p>\n"


def _comparison(result: EvaluationResult, thumbs: Thumbnails) -> Iterator[str]:
    if (found := result.comparison) is None:
        return
    test = found.test
    yield f"<p>This model minus {safe(found.other)}, on the same images. {pluralize(test.only_a, 'image')} only this "
    yield f"model classifies correctly, {test.only_b:,} only the other. McNemar's test of equal accuracy: p = "
    yield f"{test.p_value:.3g}.</p>\n"
    rows = (
        (
            f'<th scope="row">{SCORE_TITLES[key]}</th>',
            numeric(each.difference.value, "+.4f"),
            f'<td class="n">{each.difference.low:+.4f} to {each.difference.high:+.4f}</td>',
            numeric(each.p_value, ".3g"),
        )
        for key, each in found.differences.items()
    )
    headings = (("score", False), ("difference", True), ("95% interval", True), ("p", True))
    caption = (
        "Intervals: a paired bootstrap of 2,000 resamples. p: 2,000 random swaps between the models. "
        "Of log loss, Brier and ECE, less is better."
    )
    yield scrolled("Comparison", table(caption, headings, rows))


def _classes(result: EvaluationResult, thumbs: Thumbnails) -> Iterator[str]:
    yield from class_table(result)


def _confusion(result: EvaluationResult, thumbs: Thumbnails) -> Iterator[str]:
    count = len(result.given.classes)
    yield "<p>Rows are true classes, columns are predictions."
    if (result.order != np.arange(count)).any():
        yield " Classes that are confused with each other stand together."
    yield "</p>\n"
    if count > LARGEST:
        yield f"<p>The matrix of {count:,} classes is too large to draw; evaluation.json has it.</p>\n"
    else:
        yield from matrix_figure(result)
    if not result.pairs:
        yield "<p>Every image is classified correctly.</p>\n"
        return
    yield '<h3>Most confused pairs</h3>\n<div class="pairs">\n'
    for pair in result.pairs:
        true, predicted = (safe(result.given.classes[k]) for k in (pair.true, pair.predicted))
        images = pluralize(len(pair.images), "image")
        yield f'<div class="pair"><p>{true} predicted as {predicted}: {images}, {pair.share:.1%} of the class</p>'
        if thumbs.image is not None:
            yield from plain_sheet(result, thumbs, pair.images[:PAIR_IMAGES])
        yield "</div>\n"
    yield "</div>\n"


def _slices(result: EvaluationResult, thumbs: Thumbnails) -> Iterator[str]:
    yield "<p>Scores by the further columns of the manifest, the least accurate value first. Fewer than 30 images say "
    yield "little; these are marked.</p>\n"
    found = result.slices[:_MOST_SLICES]
    if len(found) < len(result.slices):
        yield f"<p>The first {len(found):,} of {len(result.slices):,}; evaluation.json has all.</p>\n"
    rows = (
        (
            name(each.column),
            name(each.value + (" (few)" if each.small else "")),
            numeric(each.n, ",d"),
            share(each.accuracy.value),
            f'<td class="n">{each.accuracy.low:.1%} to {each.accuracy.high:.1%}</td>',
            numeric(each.macro_recall),
            numeric(each.log_loss),
        )
        for each in found
    )
    texts = ("images", "accuracy", "95% interval", "recall, macro", "log loss")
    headings = [("column", False), ("value", False), *((text, True) for text in texts)]
    yield scrolled("Slices", table("", headings, rows, sortable=True))


def _calibration(result: EvaluationResult, thumbs: Thumbnails) -> Iterator[str]:
    crossed, found = result.given.scaled is not None, result.calibration
    yield "<p>A calibrated model is right as often as its confidence says: the dots, larger with more "
    yield "images, lie on the dashed line. "
    if crossed:
        yield "The temperature was fitted on these images, so each half is measured with that of the other half."
    yield "</p>\n"
    diagrams = reliability_charts(result.reliability, found.temperature, crossed)
    yield f'<div class="charts">{"".join(diagrams)}</div>\n'
    if result.held_out is not None and result.given.held_out is not None:
        where, raw, _ = result.given.held_out
        yield f"<p>On the {safe(where)}, {pluralize(len(raw), 'image')} on which no temperature was "
        yield "fitted:</p>\n"
        diagrams = reliability_charts(result.held_out, found.temperature, crossed=False)
        yield f'<div class="charts">{"".join(diagrams)}</div>\n'
    before, after = result.errors
    pairs = (
        ("ECE, bins of equal width", before.equal_width, after.equal_width),
        ("ECE, bins of equally many images", before.equal_mass, after.equal_mass),
        ("Class-wise calibration error", before.class_wise, after.class_wise),
        ("Log loss", found.log_loss_before, found.log_loss_after),
        ("Brier score", found.brier_before, found.brier_after),
    )
    rows = ((f'<th scope="row">{title}</th>', *(numeric(value, ".4f") for value in values)) for title, *values in pairs)
    headings = (("error", False), ("without temperature", True), ("with temperature", True))
    yield scrolled("Calibration errors", table("Less is better.", headings, rows))


def _selection(result: EvaluationResult, thumbs: Thumbnails) -> Iterator[str]:
    yield "<p>If the model abstains where a score is low, fewer of the accepted predictions are wrong. A good score "
    yield "has a low curve: AURC is the area below it, AUGRC the same for the share of all images that are accepted "
    yield "and wrong.</p>\n"
    yield risk_chart(result.selection)
    rows = (
        (
            f'<th scope="row">{score_title(each.score)}</th>',
            numeric(each.curve.aurc, ".5f"),
            numeric(each.curve.augrc, ".5f"),
            *(share(each.risk_at(part)) for part in (0.5, 0.8, 0.9)),
        )
        for each in result.selection
    )
    texts = ("AURC", "AUGRC", "risk at 50%", "at 80%", "at 90%")
    headings = [("score", False), *((text, True) for text in texts)]
    yield scrolled("Abstention", table("", headings, rows))


def _conformal(result: EvaluationResult, thumbs: Thumbnails) -> Iterator[str]:
    yield "<p>Instead of one class, a prediction set holds the true class with a chosen chance. Each half of the "
    yield "images is measured with the rule fitted on the other half. LAC gives the smallest sets, those of RAPS grow "
    yield f"with the difficulty of the image. {pluralize(result.conformal[0].images, 'image')} are used.</p>\n"
    rows = (
        (
            f'<th scope="row">{each.method.upper()}</th>',
            numeric(each.wanted, ".0%"),
            share(each.covered.value),
            f'<td class="n">{each.covered.low:.1%} to {each.covered.high:.1%}</td>',
            numeric(each.mean_size, ".2f"),
            numeric(each.median_size, "g"),
            share(each.single),
            share(each.empty),
        )
        for each in result.conformal
    )
    texts = ("wanted", "covered", "95% interval", "mean size", "median", "one class", "empty")
    headings = [("method", False), *((text, True) for text in texts)]
    yield scrolled("Prediction sets", table("", headings, rows))
