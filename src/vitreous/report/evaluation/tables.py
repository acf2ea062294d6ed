"""The tables of the page. A cell is text, or a number with the value by which its column is sorted."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence

from vitreous.evaluate.scoring.intervals import Interval
from vitreous.files.text import html_text
from vitreous.report.evaluation.results import EvaluationResult

__all__ = ["SCORE_TITLES", "class_table", "headline_table", "name", "numeric", "scrolled", "share", "table"]


_MOST_ROWS = 2000  # of the table of classes; per_class.csv has all

_HEADLINE = (
    ("top1", "Top-1 accuracy", "images whose most probable class is the true one; also overall precision, recall, F1"),
    ("top5", "Top-5 accuracy", "images with the true class among the five most probable"),
    ("balanced_accuracy", "Balanced accuracy", "mean recall over the classes with images"),
    ("macro_precision", "Precision, macro", "mean over the classes that occur"),
    ("macro_recall", "Recall, macro", "mean over the classes that occur"),
    ("macro_specificity", "Specificity, macro", "mean over the classes that occur"),
    ("macro_f1", "F1, macro", "mean over the classes that occur"),
    ("mcc", "Matthews correlation", "-1 to 1; 0 is no better than chance"),
    ("macro_auc", "AUC, macro", "area under the one-vs-rest ROC curves, mean over classes"),
    (
        "macro_average_precision",
        "Average precision, macro",
        "area under the precision-recall curves, mean over classes",
    ),
    ("log_loss", "Log loss", "mean cross-entropy in nats; 0 is best"),
    ("brier", "Brier score", "0 to 2; 0 is best"),
    ("ece", "Calibration error (ECE)", "15 bins of equal width; 0 is best"),
)
_PERCENT = ("top1", "top5", "balanced_accuracy")
_UNBOUNDED = ("log_loss", "brier", "mcc")  # not within 0 to 1, so without a bar


SCORE_TITLES = {key: title for key, title, _ in _HEADLINE}
"""Names of the headline scores in words."""


def table(
    caption: str, headings: Sequence[tuple[str, bool]], rows: Iterable[Iterable[str]], *, sortable: bool = False
) -> str:
    """Return a table; a heading is a text and whether its column holds numbers."""
    head = "".join(f'<th scope="col"{" class=n" if right else ""}>{text}</th>' for text, right in headings)
    body = "".join(f"<tr>{''.join(row)}</tr>\n" for row in rows)
    style = ' class="sortable"' if sortable else ""
    label = f"<caption>{caption}</caption>" if caption else ""
    return f"<table{style}>{label}\n<thead><tr>{head}</tr></thead>\n<tbody>\n{body}</tbody>\n</table>\n"


def scrolled(label: str, content: str, style: str = "") -> str:
    """Return a table that scrolls where the page is narrow, by keyboard too; the label is without markup."""
    return f'<div class="scroll{style}" tabindex="0" role="region" aria-label="{label}">{content}</div>\n'


def name(text: str, scope: bool = False) -> str:
    """Return a cell of untrusted text; with `scope` the heading of its row."""
    tag = 'th scope="row"' if scope else "td"
    return f"<{tag}><bdi>{html_text(text)}</bdi></{tag[:2]}>"


def numeric(value: float, form: str = ".3f") -> str:
    """Return a cell with a number; an undefined one is a dash and is sorted last."""
    if math.isnan(value):
        return '<td class="n" data-v="">\u2013</td>'
    return f'<td class="n" data-v="{value:.6g}">{value:{form}}</td>'


def share(value: float) -> str:
    """Return a cell with a share in percent."""
    return numeric(value, ".1%")


def headline_table(result: EvaluationResult) -> str:
    """Return the scores of all images with their intervals."""
    rows = []
    for key, title, meaning in _HEADLINE:
        if (found := result.headline.get(key)) is None:
            continue
        form = ".2%" if key in _PERCENT else ".4f"
        between = f"{found.low:{form}} to {found.high:{form}}"
        bar = "" if key in _UNBOUNDED else _bar(found)
        value = f'<td class="n" data-key="{key}"><b>{found.value:{form}}</b></td>'
        explained = f'<td class="why">{meaning}</td>'
        rows.append(
            (f'<th scope="row">{title}</th>', value, f'<td class="n">{between}</td>', f"<td>{bar}</td>", explained)
        )
    headings = (("score", False), ("value", True), ("95% interval", True), ("0 to 1", False), ("meaning", False))
    return scrolled("Scores", table("", headings, rows), " scores")


def class_table(result: EvaluationResult) -> Iterator[str]:
    """Yield the scores of every class, or of the worst ones if there are very many."""
    scores, classes = result.detailed, result.given.classes
    predictions = result.confusion.sum(axis=0)
    order = list(range(len(classes)))
    if len(order) > _MOST_ROWS:
        order = sorted(order, key=lambda k: (scores.support[k] == 0, scores.f1[k]))[:_MOST_ROWS]
        yield f"<p>The {_MOST_ROWS:,} classes with the lowest F1 of {len(classes):,}; per_class.csv has all.</p>\n"
    columns = ("precision", "recall", "specificity", "f1", "auc", "average_precision")
    rows = (
        (
            name(classes[k], scope=True),
            numeric(int(scores.support[k]), ",d"),
            numeric(int(predictions[k]), ",d"),
            *(numeric(float(getattr(scores, column)[k])) for column in columns),
        )
        for k in order
    )
    texts = ("images", "predicted", "precision", "recall", "specificity", "F1", "AUC", "AP")
    headings = [("class", False), *((text, True) for text in texts)]
    yield '<p class="soft hint">Select a heading to sort by it.</p>\n'
    yield scrolled("Scores of each class", table("", headings, rows, sortable=True), " tall")


def _bar(found: Interval) -> str:
    low, high, value = (100 * min(max(each, 0.0), 1.0) for each in (found.low, found.high, found.value))
    line = '<path d="M0 6H100"/>'
    band = f'<rect x="{low:.2f}" y="3" width="{max(high - low, 0.6):.2f}" height="6"/>'
    dot = f'<circle cx="{value:.2f}" cy="6" r="2"/>'
    return (
        f'<svg class="ci" viewBox="-3 0 106 12" preserveAspectRatio="none" aria-hidden="true">{line}{band}{dot}</svg>'
    )
