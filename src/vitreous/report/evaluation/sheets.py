"""The images of the page: sheets with class maps, and small ones without.

An image has no `alt` of its own, because its name follows as text, and a screen reader would say it twice.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from vitreous.errors import pluralize
from vitreous.files.text import html_text
from vitreous.report.document import safe
from vitreous.report.evaluation.results import EvaluationResult
from vitreous.report.evaluation.thumbnails import Thumbnail, Thumbnails
from vitreous.report.stage import Stage, map_layer, scale_legend, where_highest

__all__ = ["PAIR_IMAGES", "image_sheets", "mapped", "plain_sheet", "shown"]

PAIR_IMAGES = 4
"""Most images of a confused pair."""


def shown(result: EvaluationResult) -> Iterator[int]:
    """Yield the indices of all images on the page."""
    for pair in result.pairs:
        yield from pair.images[:PAIR_IMAGES]
    yield from (n for n, _ in mapped(result))


def mapped(result: EvaluationResult) -> Iterator[tuple[int, int]]:
    """Yield the indices of images with a class map, and the class: the predicted one."""
    sheets = result.sheets
    for n in (*sheets.worst, *sheets.uncertain, *sheets.random):
        yield n, int(result.predicted[n])


def image_sheets(result: EvaluationResult, thumbs: Thumbnails) -> Iterator[str]:
    """Yield the worst mistakes, the least certain images and a random sheet, each image beside its class map."""
    sheets = result.sheets
    wrong = int((result.predicted != result.given.labels.numpy()).sum())
    if thumbs.has_maps:
        yield "<p>Beside each image: where the model sees evidence for the class that it predicts, by its attention "
        yield "weighted with gradients. Parts that the model does not see are left as they are.</p>\n"
        yield scale_legend("in every map, each on its own scale")
    if thumbs.refusal:
        missing = "Some images have no class map" if thumbs.has_maps else "The images are shown without class maps"
        yield f'<p class="soft">{missing}: {html_text(thumbs.refusal, 1000)}.</p>\n'
    for title, text, indices in (
        ("Worst mistakes", f"Of {pluralize(wrong, 'mistake')}, those with the highest loss.", sheets.worst),
        ("Least certain", "The lowest probability of the predicted class, right or wrong.", sheets.uncertain),
        ("At random", "To see what the images are like: drawn at random with a fixed seed.", sheets.random),
    ):
        if indices:
            yield f"<h3>{title}</h3>\n<p>{text}</p>\n"
            yield from _sheet(result, thumbs, indices)


def plain_sheet(result: EvaluationResult, thumbs: Thumbnails, indices: Sequence[int]) -> Iterator[str]:
    """Yield images with their probability and name."""
    yield '<ol class="sheet">\n'
    for n in indices:
        name = safe(result.given.names[n].rsplit("/", 1)[-1])  # its folder is the class above
        probability = f"<span>{result.probability[n]:.0%}</span>"
        yield f'<li>{_image(thumbs.of(n))}{probability}<span class="soft">{name}</span></li>\n'
    yield "</ol>\n"


def _sheet(result: EvaluationResult, thumbs: Thumbnails, indices: Sequence[int]) -> Iterator[str]:
    given = result.given
    yield f'<ol class="sheet{" mapped" if thumbs.has_maps else ""}">\n'
    for n in indices:
        true, predicted = int(given.labels[n]), int(result.predicted[n])
        style = "" if true == predicted else ' class="wrong"'
        yield f"<li>{_views(thumbs, n, predicted)}<span>true: {safe(given.classes[true])}</span>"
        yield f"<span{style}>predicted: {safe(given.classes[predicted])}, {result.probability[n]:.0%}</span>"
        yield f'<span class="soft">{safe(given.names[n])}</span></li>\n'
    yield "</ol>\n"


def _views(thumbs: Thumbnails, n: int, predicted: int) -> str:
    """Return an image, and beside it the same under its class map."""
    image, one = thumbs.of(n), thumbs.map_of(n, predicted)
    if image is None or one is None:
        return f'<div class="views">{_image(image)}</div>' if image and thumbs.has_maps else _image(image)
    stage = Stage.of(one)
    layer = map_layer(one, stage, f"Class map: {where_highest(one.patches)}")
    return f'<div class="views">{stage.draw(image.uri)}{stage.draw(image.uri, layer)}</div>'


def _image(image: Thumbnail | None) -> str:
    if image is None:
        return ""
    return f'<img class="thumb" src="{image.uri}" alt="" style="--ratio:{image.ratio:.5f}">'
