"""The page of an inspection: one HTML file that fetches nothing, light or dark as the reader's system.

Names of files and classes are untrusted and escaped.
"""

from __future__ import annotations

import base64
import math
from collections.abc import Iterator

from vitreous.evaluate.scoring.intervals import Interval
from vitreous.files.text import html_text, json_text, printable
from vitreous.inspection.explain import map_method
from vitreous.report.document import document, safe
from vitreous.report.drawing import viridis
from vitreous.report.inspection.images import caution, image_section
from vitreous.report.inspection.model import model_figures
from vitreous.report.inspection.results import Comparison, Inspection
from vitreous.report.stage import scale_legend

__all__ = ["MAX_ATTENTION_BYTES", "page"]

MAX_ATTENTION_BYTES = 2_200_000
"""Of the attention weights of all images of a page, before base64, so that a page of eight images stays below 6 MB."""


def page(result: Inspection) -> Iterator[str]:
    """Yield the page in parts."""
    yield from document(__package__, f"Inspection of {result.model}", _content(result))


def _content(result: Inspection) -> Iterator[str]:
    yield f'<h1>Inspection of {safe(result.model)}</h1>\n<p class="soft">{safe(result.description)}</p>\n'
    yield from (f"<p>{html_text(printable(note), None)}</p>\n" for note in result.notes)
    yield from _contents(result)
    yield scale_legend("in every map, whose range is in its caption")
    for number, image in enumerate(result.images):
        yield from image_section(number, image, result.comparison)
    if result.comparison is not None:
        yield from _comparison(result.comparison)
    if result.measures:
        yield '<section aria-labelledby="model">\n<h2 id="model">The model</h2>\n<div class="row">\n'
        yield from model_figures(result.measures)
        yield "</div>\n</section>\n"
    yield f'<script type="application/json" id="data">{_data(result)}</script>\n'


def _contents(result: Inspection) -> Iterator[str]:
    links = [(f"image-{n}", safe(image.name.split("/")[-1])) for n, image in enumerate(result.images)]
    links += [("faithfulness", "Faithfulness of the maps")] if result.comparison is not None else []
    links += [("model", "The model")] if result.measures else []
    items = "".join(f'<li><a href="#{target}">{text}</a></li>' for target, text in links)
    yield f'<nav aria-label="Contents"><ul>{items}</ul></nav>\n'


def _comparison(found: Comparison) -> Iterator[str]:
    yield '<section aria-labelledby="faithfulness">\n<h2 id="faithfulness">Faithfulness of the maps</h2>\n'
    yield f"<p>Whether a map ranks patches as the prediction depends on them, on {found.rows[0].images:,} images of "
    yield f"{safe(found.source)}, with 95 % intervals over images. SaCo is from -1 to 1; it compares the drop of the "
    yield "probability when groups of patches are removed. Deletion and insertion are areas under the probability as "
    yield "patches are removed or inserted, the most salient first. The last column is the rank correlation with maps "
    yield "of a model whose last half is drawn again: close to 1, a map hardly depends on what that half learned.</p>"
    yield '<div class="scroll" tabindex="0" role="region" aria-label="Faithfulness of the maps"><table>\n<thead><tr>'
    heads = (
        "method",
        "SaCo, higher is better",
        "deletion, lower",
        "insertion, higher",
        "verdict",
        "after randomisation",
    )
    yield "".join(f'<th scope="col">{name}</th>' for name in heads) + "</tr></thead>\n<tbody>\n"
    for row in found.rows:
        scores = "".join(
            f'<td class="number">{_interval(each)}</td>' for each in (row.saco, row.deletion, row.insertion)
        )
        is_control = row.method == "random"
        verdict = "control" if is_control else caution(row) or row.verdict
        title = map_method(row.method, **found.options.get(row.method, {})).heading()
        again = found.randomisation.get(row.method)
        yield f'<tr><th scope="row">{title}</th>{scores}<td>{verdict}</td>'
        yield f'<td class="number">{_interval(again) if again else ""}</td></tr>\n'
    yield "</tbody></table></div>\n</section>\n"


def _interval(value: Interval) -> str:
    if math.isnan(value.value):
        return "undefined"
    between = "" if math.isnan(value.low) else f' <span class="soft">{value.low:.3f} to {value.high:.3f}</span>'
    return f"{value.value:.3f}{between}"


def _data(result: Inspection) -> str:
    """Return the JSON that the script reads; `<` is escaped, so that no text ends the element."""
    images = [
        {
            "layers": image.attention.layers,
            "heads": image.attention.heads,
            "grid": image.attention.grid,
            "prefix": image.attention.prefix,
            "weights": image.attention.encoded(),
        }
        for image in result.images
    ]
    document = {"colours": base64.b64encode(viridis().tobytes()).decode("ascii"), "images": images}
    return json_text(document).replace("<", "\\u003c")
