"""The evaluation of several labels as one self-contained HTML page.

Names of files, labels and models are untrusted: they are escaped and isolated, as on the page of a single label.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from vitreous.errors import pluralize
from vitreous.files.text import html_text
from vitreous.report.document import document, safe
from vitreous.report.evaluation.robustness_section import robustness_content
from vitreous.report.evaluation.stages_section import stages_table
from vitreous.report.evaluation.tables import name, numeric, scrolled, share, table
from vitreous.report.evaluation.thumbnails import ClassMap, ImageOf, Thumbnails
from vitreous.report.multilabel.results import LabelResult, Slip, names_of
from vitreous.report.stage import Stage, map_layer, where_highest

__all__ = ["page"]

_STYLED_AS = "vitreous.report.evaluation"
_TITLES = {
    "mean_ap": ("mAP", "average precision, mean over the labels that an image has; needs no threshold"),
    "macro_f1": ("F1, macro", "mean over labels"),
    "micro_f1": ("F1, micro", "over all pairs of image and label"),
    "macro_precision": ("Precision, macro", "mean over labels"),
    "macro_recall": ("Recall, macro", "mean over labels"),
    "micro_precision": ("Precision, micro", "over all pairs of image and label"),
    "micro_recall": ("Recall, micro", "over all pairs of image and label"),
    "subset_accuracy": ("Subset accuracy", "images whose labels are all right"),
    "hamming_loss": ("Hamming loss", "share of wrong pairs of image and label; 0 is best"),
    "log_loss": ("Log loss", "mean binary cross-entropy in nats; 0 is best"),
}


def page(
    result: LabelResult,
    image: ImageOf | None = None,
    *,
    class_map: ClassMap | None = None,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> Iterator[str]:
    """Yield the page in parts; arguments as for the page of a single label, with maps of the labels in question."""
    thumbs = Thumbnails(image, class_map)
    slips = (*result.missed, *result.wrong)
    thumbs.prepare((slip.image for slip in slips), [(slip.image, slip.label) for slip in slips], progress)
    title = f"Evaluation of {result.given.model} on {result.given.data}"
    yield from document(_STYLED_AS, title, _content(result, thumbs))


def _content(result: LabelResult, thumbs: Thumbnails) -> Iterator[str]:
    given, scores = result.given, result.scores
    yield f"<h1>Evaluation of {safe(given.model)}</h1>\n"
    count = f"{pluralize(scores.n, 'image')}, {pluralize(len(given.classes), 'label')}"
    yield f'<p class="soft">{safe(given.data)}, {safe(given.split)}: {count}, {scores.mean_labels:.2f} on an image '
    yield "in the mean. An image may have several labels, or none.</p>\n"
    for note in given.notes:
        yield f"<p>{html_text(note[:1].upper() + note[1:], 4000)}.</p>\n"
    sections = {"Scores": _scores, "Labels": _labels, "Calibration": _calibration, "Images": _images}
    if result.slices:
        sections["Slices"] = _slices
    if result.differences:
        sections["Comparison"] = _comparison
    if (changed := given.robustness) is not None:
        sections["Robustness"] = lambda result, thumbs: robustness_content(changed, "mAP")
    if given.stages:
        sections["Stages"] = lambda result, thumbs: stages_table(given.stages)
    links = "".join(f'<li><a href="#{title.lower()}">{title}</a></li>' for title in sections)
    yield f'<nav aria-label="Sections"><ul>{links}</ul></nav>\n'
    for title, content in sections.items():
        yield f'<section aria-labelledby="{title.lower()}">\n<h2 id="{title.lower()}">{title}</h2>\n'
        yield from content(result, thumbs)
        yield "</section>\n"


def _scores(result: LabelResult, thumbs: Thumbnails) -> Iterator[str]:
    rows = []
    for key, (title, meaning) in _TITLES.items():
        found = result.intervals.get(key)
        between = f"{found.low:.4f} to {found.high:.4f}" if found is not None else ""
        value = f'<td class="n" data-key="{key}"><b>{getattr(result.scores, key):.4f}</b></td>'
        rows.append(
            (
                f'<th scope="row">{title}</th>',
                value,
                f'<td class="n">{between}</td>',
                f'<td class="why">{meaning}</td>',
            )
        )
    headings = (("score", False), ("value", True), ("95% interval", True), ("meaning", False))
    yield scrolled("Scores", table("", headings, rows), " scores")
    yield '<p class="soft">Intervals at 95%: percentiles of 200 resamples of the images.</p>\n'


def _labels(result: LabelResult, thumbs: Thumbnails) -> Iterator[str]:
    rows = (
        (
            name(label, scope=True),
            numeric(score.support, ",d"),
            numeric(score.predicted, ",d"),
            numeric(threshold),
            numeric(float("nan") if score.ap is None else score.ap),
            *(numeric(each) for each in (score.precision, score.recall, score.f1)),
        )
        for label, threshold, score in zip(
            result.given.classes, result.given.rule.thresholds, result.scores.per_label, strict=True
        )
    )
    texts = ("images", "given", "threshold", "AP", "precision", "recall", "F1")
    headings = [("label", False), *((text, True) for text in texts)]
    yield '<p class="soft hint">Select a heading to sort by it. An image is given a label whose probability is at '
    yield "least the threshold.</p>\n"
    yield scrolled("Scores of each label", table("", headings, rows, sortable=True), " tall")


def _calibration(result: LabelResult, thumbs: Thumbnails) -> Iterator[str]:
    before, after = result.calibration_error
    kinds = {
        "none": "The sigmoid of the outputs is not calibrated further.",
        "temperature": f"All outputs are divided by a temperature, {1 / result.given.rule.slopes[0]:.3f}.",
        "per label": "Each output has a slope and an offset of its own before the sigmoid.",
    }
    yield f"<p>{kinds[result.given.rule.calibration]} Calibration error of a label's probability, 15 bins, mean over "
    yield f"labels: {after:.4f}, and {before:.4f} without.</p>\n"


def _slices(result: LabelResult, thumbs: Thumbnails) -> Iterator[str]:
    rows = (
        (
            name(each.column),
            name(each.value),
            numeric(each.n, ",d"),
            numeric(each.mean_ap),
            numeric(each.micro_f1),
            share(each.subset_accuracy.value),
            f'<td class="n">{each.subset_accuracy.low:.1%} to {each.subset_accuracy.high:.1%}</td>',
            f"<td>{'few images: these scores say little' if each.small else ''}</td>",
        )
        for each in result.slices
    )
    texts = ("images", "mAP", "F1, micro", "all labels right", "95% interval")
    headings = [("column", False), ("value", False), *((text, True) for text in texts), ("remark", False)]
    yield scrolled("Scores of slices", table("", headings, rows, sortable=True), " tall")


def _comparison(result: LabelResult, thumbs: Thumbnails) -> Iterator[str]:
    assert result.given.other is not None
    yield f"<p>Compared with {safe(result.given.other[0])}, on the same images: the score of this model minus that of "
    yield "the other. Intervals at 95% and p-values are those of a paired bootstrap over images.</p>\n"
    rows = (
        (
            f'<th scope="row">{_TITLES[key][0]}</th>',
            f'<td class="n" data-key="against-{key}">{each.difference.value:+.4f}</td>',
            f'<td class="n">{each.difference.low:+.4f} to {each.difference.high:+.4f}</td>',
            f'<td class="n">{each.p_value:.3f}</td>',
        )
        for key, each in result.differences.items()
    )
    headings = (("score", False), ("difference", True), ("95% interval", True), ("p-value", True))
    yield scrolled("Comparison", table("", headings, rows))


def _images(result: LabelResult, thumbs: Thumbnails) -> Iterator[str]:
    for title, text, slips in (
        ("Missed labels", "Labels that an image has and is not given, the least probable first.", result.missed),
        ("Wrong labels", "Labels that an image is given and does not have, the most probable first.", result.wrong),
    ):
        if slips:
            yield f"<h3>{title}</h3>\n<p>{text}</p>\n"
            yield from _sheet(result, thumbs, slips)
    if thumbs.refusal:
        yield f'<p class="soft">Some images have no map: {html_text(thumbs.refusal, 1000)}.</p>\n'


def _sheet(result: LabelResult, thumbs: Thumbnails, slips: Sequence[Slip]) -> Iterator[str]:
    given = result.given
    yield f'<ol class="sheet{" mapped" if thumbs.has_maps else ""}">\n'
    for slip in slips:
        true, predicted = (
            ", ".join(names_of(given.classes, each[slip.image])) or "none"
            for each in (given.labels.cpu().bool(), result.present)
        )
        yield f'<li>{_views(thumbs, slip)}<span class="wrong">{safe(given.classes[slip.label])}, '
        yield f"{slip.probability:.0%}</span><span>true: {safe(true)}</span><span>given: {safe(predicted)}</span>"
        yield f'<span class="soft">{safe(given.names[slip.image])}</span></li>\n'
    yield "</ol>\n"


def _views(thumbs: Thumbnails, slip: Slip) -> str:
    """Return an image, and beside it the same under the map of the label."""
    image, one = thumbs.of(slip.image), thumbs.map_of(slip.image, slip.label)
    if image is None:
        return ""
    plain = f'<img class="thumb" src="{image.uri}" alt="" style="--ratio:{image.ratio:.5f}">'
    if one is None:
        return f'<div class="views">{plain}</div>' if thumbs.has_maps else plain
    stage = Stage.of(one)
    layer = map_layer(one, stage, f"Map of the label: {where_highest(one.patches)}")
    return f'<div class="views">{stage.draw(image.uri)}{stage.draw(image.uri, layer)}</div>'
