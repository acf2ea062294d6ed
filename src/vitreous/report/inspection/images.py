"""The part of the page about one image: its class maps, what each patch attends to, and what it resembles.

Shapes: (h, w) patches down and across, L blocks, H heads.
"""

from __future__ import annotations

import html
from collections.abc import Iterator
from typing import Any

import numpy as np

from vitreous.files.text import html_text
from vitreous.inspection.explain import map_method
from vitreous.inspection.explanation import Explanation
from vitreous.report.document import safe
from vitreous.report.drawing import data_uri, jpeg, magnitude_colours, png, reduced
from vitreous.report.inspection.results import Comparison, ImageResult, Neighbour
from vitreous.report.stage import Stage, map_layer, where_highest

__all__ = ["caution", "image_section"]

_IMAGE_SIDE = 448  # pixels of the longer side in the page
_THUMBNAIL_SIDE = 120
_SIGNED = 0.0  # maps with values below it have values that speak against the class


def image_section(number: int, result: ImageResult, comparison: Comparison | None) -> Iterator[str]:
    """Yield the section of image `number`, from 0."""
    photo = data_uri(jpeg(reduced(result.pixels, _IMAGE_SIDE)))
    stage = Stage.of(result.maps[0])
    # Once for all frames of the section: with every method, a page of eight images would exceed 6 MB otherwise.
    yield f'<section aria-labelledby="image-{number}" style="--photo:url({photo})">\n'
    yield f'<h2 id="image-{number}">{safe(_short(result.name))}</h2>\n'
    yield _probabilities(result)
    yield _opacity(number)
    yield '<div class="row">\n'
    yield f"<figure><figcaption>The image<small>{_size(result)}</small></figcaption>"
    yield _framed(stage, f'<span class="frame" style="{stage.input}"></span>') + "</figure>\n"
    yield from (_map_figure(each, stage, comparison) for each in result.maps)
    if result.colours is not None:
        yield _colours_figure(result, stage)
    yield "</div>\n"
    yield from _register_maps(result, stage)
    yield from _viewer(number, result)
    yield from _heads(result)
    yield from _neighbours(result)
    yield "</section>\n"


def caution(row: Any) -> str:
    """Return a marked remark unless a method is better than random maps."""
    return "" if row is None or row.verdict == "better than random" else f'<span class="warn">{row.verdict}</span>'


def _probabilities(result: ImageResult) -> str:
    if not result.top:
        return ""
    rows = "".join(
        f'<tr><th scope="row">{safe(label)}</th><td class="number">{share:.1%}</td>'
        f'<td><span class="bar" style="width:calc({share:.4f} * min(10rem, 25vw))"></span></td></tr>'
        for label, share in result.top
    )
    return f"<table><caption class='soft'>Most probable classes</caption><tbody>{rows}</tbody></table>\n"


def _opacity(number: int) -> str:
    return (
        f'<div class="controls live"><label for="opacity-{number}">Opacity of maps</label><span>'
        f'<input class="opacity-slider" id="opacity-{number}" type="range" min="0" max="100" step="5" value="60">'
        "<output>60 %</output></span></div>\n"
    )


def _map_figure(one: Explanation, stage: Stage, comparison: Comparison | None = None, prefix: str = "") -> str:
    method = map_method(one.method, **one.options)
    title = prefix + method.heading()
    about = f"for {safe(one.label)}, {one.probability:.1%}" if one.uses_class else "the same for every class"
    heading = f"{title}, {about}" if one.label else title
    low, high = float(one.patches.min()), float(one.patches.max())
    against = "; negative values speak against the class" if low < _SIGNED else ""
    against += f"; {method.remark()}" if method.remark() else ""
    remark = caution(comparison and comparison.row(one.method))
    of_class = f" for {html_text(one.label)}" if one.label else ""
    alt = f"{title}{of_class}: {where_highest(one.patches)}"
    return (
        f"<figure><figcaption>{heading} {remark}<small>{low:.3g} to {high:.3g}{against}</small></figcaption>"
        f"{_framed(stage, map_layer(one, stage, alt))}</figure>\n"
    )


def _framed(stage: Stage, *layers: str) -> str:
    """Return the frame with the image of the section; the layers lie above it."""
    return stage.frame(f'<span class="photo" style="{stage.image}"></span>', *layers)


def _register_maps(result: ImageResult, stage: Stage) -> Iterator[str]:
    """Yield the maps without and with a test-time register, side by side."""
    if not result.register_maps:
        return
    yield "<h3>With a test-time register</h3>\n"
    yield '<p class="soft">Outlier tokens move to a register; <a href="#model">The model</a> says what else changes.'
    yield "</p>\n"
    yield '<div class="row pairs">\n'
    for before, after in result.register_maps:
        yield _map_figure(before, stage, prefix="Without: ")
        yield _map_figure(after, stage, prefix="With: ")
    yield "</div>\n"


def _colours_figure(result: ImageResult, stage: Stage) -> str:
    pixels = (255 * np.clip(np.asarray(result.colours, np.float64), 0, 1)).round().astype(np.uint8)
    layer = f'<img class="exact" src="{data_uri(png(pixels))}" style="{stage.input}" alt="Colours of the patches">'
    note = "patches with similar features have similar colours; joint for all images of this page"
    return f"<figure><figcaption>Patch features<small>{note}</small></figcaption>{stage.frame(layer)}</figure>\n"


def _viewer(number: int, result: ImageResult) -> Iterator[str]:
    """Yield the interactive view of attention, which the script of the page fills in."""
    store = result.attention
    (h, w), of = store.grid, result.maps[0].grid
    stage = Stage.of(result.maps[0], (h * store.joined / of[0], w * store.joined / of[1]))
    label = f"Patches of {html_text(_short(result.name))}, {h} by {w}: arrow keys choose the patch"
    canvas = f'<canvas class="map" width="{w}" height="{h}" style="{stage.input}" aria-hidden="true"></canvas>'
    pad = (
        f'<div class="patches" tabindex="0" role="application" aria-label="{label}" aria-describedby="said-{number}" '
        f'style="{stage.input}"><span class="cursor" hidden></span></div>'
    )
    yield "<h3>What a patch attends to</h3>\n"
    yield '<p class="soft live">Point at a patch, or focus the image and use the arrow keys. '
    yield f"{html.escape(store.left_out)}</p>\n"
    yield "<noscript><p>This view needs scripts; the page loads nothing from outside.</p></noscript>\n"
    yield f'<div class="viewer row" data-image="{number}">'
    yield f'<figure class="wide">{_framed(stage, canvas, pad)}</figure><div><div class="controls">'
    yield _slider("block", number, "Block", len(store.layers) - 1, len(store.layers) - 1)
    yield f"{_slider('head', number, 'Head', len(store.heads), 0)}</div>"
    if store.prefix:
        buttons = (f'<button type="button" data-token="{n}">{name}</button>' for n, name in enumerate(store.prefix))
        yield f'<div class="live">{"".join(buttons)}</div>'
    yield f'<p class="said" id="said-{number}" aria-live="polite"></p></div></div>\n'


def _slider(name: str, number: int, title: str, high: int, value: int) -> str:
    fixed = " disabled" if high == 0 else ""
    return (
        f'<label for="{name}-{number}">{title}</label><span><input class="{name}-slider" id="{name}-{number}" '
        f'type="range" min="0" max="{high}" step="1" value="{value}"{fixed}><output></output></span>'
    )


def _heads(result: ImageResult) -> Iterator[str]:
    """Yield the attention of the tokens that the pooling reads, by block and head."""
    layers, H = result.attention_layers, result.heads.shape[1]
    yield "<h3>Attention by block and head</h3>\n"
    yield '<p class="soft">What the tokens that the pooling reads attend to. Each map has its own scale.</p>\n'
    yield '<div class="scroll" tabindex="0" role="region" aria-label="Attention by block and head">'
    names = "".join(f'<th scope="col">head {head}</th>' for head in range(H))
    yield f'<table class="heads"><thead><tr><td></td>{names}</tr></thead><tbody>\n'
    for layer, maps in zip(layers, result.heads, strict=True):
        cells = "".join(
            f'<td><img class="exact" src="{data_uri(png(magnitude_colours(one, 0)))}" alt="{where_highest(one)}"></td>'
            for one in maps
        )
        yield f'<tr><th scope="row">block {layer}</th>{cells}</tr>\n'
    yield "</tbody></table></div>\n"


def _neighbours(result: ImageResult) -> Iterator[str]:
    if result.neighbours:
        yield "<h3>Most similar labelled images</h3>\n"
        yield '<p class="soft">By the cosine of the features that a head reads.</p>\n'
        yield '<ul class="likes">'
        yield from (f"<li>{_likeness(each)}</li>" for each in result.neighbours)
        yield "</ul>\n"
    if result.patch_neighbours:
        yield "<h3>Most similar patches</h3>\n"
        yield '<p class="soft">For the patches with the highest values of the first map.</p>\n<ul class="likes">'
        for each in result.patch_neighbours:
            places = [f"row {row + 1}, column {column + 1}" for row, column in (each.patch, each.other)]
            yield f"<li>{_likeness(each.found)}<br>its {places[1]} resembles {places[0]} here</li>"
        yield "</ul>\n"


def _likeness(each: Neighbour) -> str:
    image = ""
    if each.image is not None:
        image = f'<img src="{data_uri(jpeg(reduced(each.image, _THUMBNAIL_SIDE)))}" alt="">'
    return f"{image}<b>{safe(each.label)}</b> {each.similarity:.3f}<br>{safe(_short(each.name))}"


def _size(result: ImageResult) -> str:
    one = result.maps[0]
    height, width = one.input_size
    return f"{result.pixels.width} x {result.pixels.height} pixels; dashed: the {width} x {height} that the model sees"


def _short(name: str) -> str:
    """Return the end of a path."""
    return "/".join(name.split("/")[-2:])
