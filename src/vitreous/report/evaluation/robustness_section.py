"""The section of the page on changed images."""

from __future__ import annotations

from collections.abc import Iterator

from vitreous.files.text import html_text
from vitreous.report.evaluation.charts import corruption_charts, shift_charts
from vitreous.report.evaluation.results import EvaluationResult
from vitreous.report.evaluation.robustness import RobustnessResult
from vitreous.report.evaluation.tables import scrolled, share, table
from vitreous.report.evaluation.thumbnails import Thumbnails

__all__ = ["robustness_content", "robustness_section"]


def robustness_section(result: EvaluationResult, thumbs: Thumbnails) -> Iterator[str]:
    """Yield the accuracy under the corruptions of ImageNet-C and under shifts, as charts and as a table."""
    if result.given.robustness is not None:
        yield from robustness_content(result.given.robustness)


def robustness_content(found: RobustnessResult, score: str = "accuracy") -> Iterator[str]:
    """Yield the same of a result; the score, which is 1 minus the error, has this name."""
    summary = found.corruptions
    yield f"<p>{score[0].upper() + score[1:]} on {found.images:,} images, drawn at random, under the 15 corruptions of "
    yield f"ImageNet-C at severities 1 to 5 and under shifts, applied at {found.side} pixels. The dashed line is the "
    yield f"{score} without change, {1 - (summary.clean_error or 0):.1%}. The mean error over all corruptions is "
    yield f"{summary.mean_error:.1%}."
    if summary.mean_corruption_error is not None:
        other = f"<bdi>{html_text(found.baseline or '')}</bdi>"
        yield f" The mean corruption error (mCE) relative to {other} is {summary.mean_corruption_error:.1%}; below "
        yield "100% this model is the more robust."
    yield f'</p>\n<div class="charts">{"".join(corruption_charts(found, score))}</div>\n'
    ratios = summary.corruption_error
    rows = (
        (
            f'<th scope="row">{name.replace("_", " ")}</th>',
            *(share(error) for error in errors),
            share(summary.error[name]),
            *([share(ratios[name])] if ratios else []),
        )
        for name, errors in summary.errors.items()
    )
    headings = [("error of", False), *((str(n + 1), True) for n in range(len(summary.by_severity))), ("mean", True)]
    headings += [("relative", True)] if ratios else []
    drawn = table("", headings, rows, sortable=True)
    yield f"<details><summary>Errors as a table</summary>{scrolled('Errors', drawn)}"
    yield f"</details>\n<h3>Shifts</h3>\n<div class='charts'>{''.join(shift_charts(found, score))}</div>\n"
