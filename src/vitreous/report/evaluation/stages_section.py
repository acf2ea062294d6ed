"""The section of the page on the stages of a fine-tuning."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from vitreous.files.text import html_text
from vitreous.report.evaluation.results import EvaluationResult
from vitreous.report.evaluation.tables import name, numeric, scrolled, share, table
from vitreous.report.evaluation.thumbnails import Thumbnails

__all__ = ["stages_section", "stages_table"]


def stages_section(result: EvaluationResult, thumbs: Thumbnails) -> Iterator[str]:
    """Yield the score of each stage on the validation split, its time, and why others were skipped."""
    yield from stages_table(result.given.stages)


def stages_table(stages: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """Yield the same of the stages of report.json, which have `top1` or, of several labels, `mean_ap`."""
    rows, chosen = [], ""
    several = any("mean_ap" in stage for stage in stages)
    for stage in stages:
        chosen = stage["stage"] if stage["chosen"] else chosen
        done = stage["skipped"] is None
        remark = stage["detail"] if done else f"skipped: {stage['skipped']}"
        interval = f"{stage['low']:.1%} to {stage['high']:.1%}" if done else ""
        rows.append(
            (
                name(stage["stage"] + (" (saved)" if stage["chosen"] else "")),
                share(stage["mean_ap" if several else "top1"]) if done else "<td></td>",
                f'<td class="n">{interval}</td>',
                numeric(stage["seconds"], ".1f") if done else "<td></td>",
                f"<td>{html_text(remark, 1000)}</td>",
            )
        )
    yield f"<p>The best stage on these images is saved: {html_text(chosen)}. Choosing among stages raises its score "
    yield "here a little. Nearest neighbours are a reference: they vote with the features of all training images, "
    yield "which a model does not hold.</p>\n"
    headings = [
        ("stage", False),
        *((text, True) for text in ("mAP" if several else "top-1", "95% interval", "seconds")),
        ("remark", False),
    ]
    yield scrolled("Stages", table("", headings, rows))
