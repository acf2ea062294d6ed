"""What `vitreous inspect` computes and :func:`vitreous.inspect` returns.

Shapes: n images, C channels, H x W pixels, L blocks, (h, w) patches.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

import torch
from jsonargparse import Namespace
from torch import Tensor

from vitreous.cli.options.map_methods import chosen_methods
from vitreous.cli.options.model import load_model
from vitreous.cli.output.terminal import format_count, progress_bar
from vitreous.cli.work.evaluating.scoring import unreadable_note
from vitreous.cli.work.inspecting.labelled_sample import Labelled, Sample, open_labelled, sample
from vitreous.cli.work.inspecting.likeness import add_likeness
from vitreous.cli.work.inspecting.map_comparison import FEWEST, affordable, compare, compared_methods, seconds_per_image
from vitreous.cli.work.inspecting.register_comparison import add_register_maps, compare_registers
from vitreous.data.images.inputs import ImageInput, strip_name, to_source
from vitreous.data.images.reading import read_image
from vitreous.errors import ConfigError, DataError, UsageError, pluralize
from vitreous.inspection.attention_distance import attention_distance
from vitreous.inspection.depth import probe_by_depth
from vitreous.inspection.explain import explain
from vitreous.inspection.filters import patch_filters
from vitreous.inspection.maps.base import MapMethod
from vitreous.inspection.norms import token_norms
from vitreous.inspection.positions import position_scores, position_similarity
from vitreous.inspection.similarity import layer_similarity
from vitreous.predictions import input_name
from vitreous.predictor import Classifier
from vitreous.report.inspection.attention import head_maps, store
from vitreous.report.inspection.model import FEWEST_SCORED
from vitreous.report.inspection.page import MAX_ATTENTION_BYTES
from vitreous.report.inspection.results import Comparison, ImageResult, Inspection, Measure
from vitreous.train.config import parse_duration

__all__ = ["inspected"]

_TOP = 5  # classes shown for an image
_MEASURED = 64  # images of the measures of attention and tokens
_FEWEST_COMPARED_DEPTHS = 4  # images of CKA
_SEARCHED = 200, 2000  # fewest and most images that are searched for similar ones
_PROBED = 200, 600  # fewest and most images that linear probes are fitted to; half as many are scored


def inspected(options: Namespace, images: Sequence[ImageInput], classifier: Classifier | None = None) -> Inspection:
    """Run `vitreous inspect` on its parsed options.

    Args:
        options: Of the verb.
        images: To inspect; an image that cannot be read is reported in the result.
        classifier: A loaded classifier, instead of the model of the options.

    Raises:
        UsageError: If a method, block or class does not exist, or the budget is too small.
        DataError: If no image can be read, or the data cannot be used.
    """
    shown, seconds = chosen_methods(options), parse_duration(options.budget)
    classifier = load_model(options) if classifier is None else classifier
    if not classifier.classes:
        shown = [each for each in shown if not each.uses_class]
    layers = _layers(options.layers, classifier.model.config.depth)
    target = _target(options.target, classifier.classes)
    data = open_labelled(classifier, options.data, options.data_dir, options.split) if options.data else None
    results, inputs, failures = _images(classifier, images, shown, layers, target)
    notes = list(unreadable_note(data.data)) if data else []
    compared = compared_methods(shown) if classifier.classes else []
    drawn = _draw(classifier, data, inputs, compared, seconds=seconds, batch_size=options.batch_size)
    comparison = _compare(classifier, compared, data, inputs, drawn, batch_size=options.batch_size)
    if not classifier.classes and (images or data is not None):
        notes.append(
            "The model has no classification head: there are no probabilities and no maps of a class, and map methods "
            "are not compared."
        )
    elif comparison is None and images:
        notes.append(
            f"Map methods are not compared: that needs labelled images (--data), or {FEWEST} images to inspect."
        )
    searched = None
    if data is not None:
        count = int(seconds / seconds_per_image(classifier, options.batch_size) / 2)
        searched = sample(classifier, data.searched, _within(count, _SEARCHED), "search", seed=1)
    if results:
        results = add_likeness(classifier, results, inputs, data, searched, batch_size=options.batch_size)
    basis = drawn.images if drawn is not None else torch.stack(inputs) if inputs else None
    measures = dict(_measures(classifier, basis, notes, options.batch_size))
    if options.register_neurons and basis is not None:
        effect, changed = compare_registers(
            classifier, basis[:_MEASURED], data, max_neurons=options.register_neurons, batch_size=options.batch_size
        )
        measures["test_time_register"] = effect
        if effect.moved:
            results = add_register_maps(classifier, changed, results, shown)
    if data is not None and searched is not None and (depth := _depth(classifier, data, searched, notes)) is not None:
        measures["depth"] = depth
    return Inspection(
        model=str(options.model),
        description=_describe(classifier),
        classes=classifier.classes,
        images=tuple(results),
        measures=measures,
        comparison=comparison,
        failures=tuple(failures),
        notes=tuple(notes),
    )


def _layers(given: Sequence[int], depth: int) -> list[int]:
    """Return the blocks whose attention is shown, ascending."""
    if wrong := [layer for layer in given if not -depth <= layer < depth]:
        names = ", ".join(map(str, wrong))
        raise UsageError(
            f"--layers has {names}, the model has {pluralize(depth, 'block')}: use {-depth} to {depth - 1}"
        )
    return sorted({layer % depth for layer in given}) or list(range(depth))


def _target(text: str | int | None, classes: Sequence[str]) -> str | int | None:
    """Return the class to explain: a name, or else a number."""
    is_number = isinstance(text, str) and text not in classes and text.isdecimal()
    return int(text) if is_number and text is not None else text


def _images(
    classifier: Classifier,
    images: Sequence[ImageInput],
    shown: Sequence[MapMethod],
    layers: Sequence[int],
    target: str | int | None,
) -> tuple[list[ImageResult], list[Tensor], list[tuple[str, str]]]:
    """Return the results of the readable images, their inputs (C, H, W), and the names of others with the reason."""
    results, inputs, failures = [], [], []
    with progress_bar("inspect") as update:
        for done, item in enumerate(images):
            update(done, len(images))
            name = input_name(item, done)
            try:
                pixels = read_image(to_source(item))
            except DataError as error:
                failures.append((name, strip_name(error, name)))
                continue
            maps = [explain(classifier, pixels, target, method=each) for each in shown]
            maps = [replace(each, name=name) for each in maps]
            one = classifier.pipeline(pixels).to(classifier.device)
            with torch.no_grad():
                values = classifier.model.intermediates(one[None], layers)
            results.append(
                ImageResult(
                    name=name,
                    pixels=pixels.convert("RGB"),
                    top=_top(classifier, values.logits),
                    maps=tuple(maps),
                    heads=head_maps(classifier.model, values),
                    attention_layers=tuple(layers),
                    attention=store(
                        values, MAX_ATTENTION_BYTES // len(images), classifier.model.config.has_class_token
                    ),
                )
            )
            inputs.append(one)
    if images and not results:
        name, reason = failures[0]
        raise DataError(f"none of the {len(images)} images can be read: {name}: {reason}")
    return results, inputs, failures


def _top(classifier: Classifier, logits: Tensor) -> tuple[tuple[str, float], ...]:
    """Return the most probable classes of one image with their probabilities; none without a head."""
    if not classifier.classes:
        return ()
    shares = classifier.info.probabilities(logits[0].float())
    order = shares.argsort(descending=True, stable=True)[:_TOP].tolist()
    return tuple((classifier.classes[n], float(shares[n])) for n in order)


def _draw(
    classifier: Classifier,
    data: Labelled | None,
    inputs: Sequence[Tensor],
    methods: Sequence[MapMethod],
    *,
    seconds: float,
    batch_size: int,
) -> Sample | None:
    """Draw as many labelled images as the budget pays for."""
    if data is None:
        return None
    if not methods:
        return sample(classifier, data.scored, _MEASURED, "draw")
    example = sample(classifier, data.scored, 1, "read").images if not inputs else inputs[0][None]
    count = affordable(classifier, methods, example, seconds, batch_size)
    return sample(classifier, data.scored, count, "draw")


def _compare(
    classifier: Classifier,
    methods: Sequence[MapMethod],
    data: Labelled | None,
    inputs: Sequence[Tensor],
    drawn: Sample | None,
    *,
    batch_size: int,
) -> Comparison | None:
    """Compare the methods on labelled images, or on the given ones if they are enough."""
    if not methods:
        return None
    if data is not None and drawn is not None and len(drawn.images) >= FEWEST:
        return compare(classifier, methods, drawn.images, data.title, batch_size)
    if data is None and len(inputs) >= FEWEST:
        return compare(classifier, methods, torch.stack(list(inputs)), "the images of this page", batch_size)
    return None


def _measures(
    classifier: Classifier, images: Tensor | None, notes: list[str], batch_size: int
) -> Iterator[tuple[str, Measure]]:
    """Yield the measures that the model has and the images (n, C, H, W) allow; say what is missing."""
    model = classifier.model
    try:
        yield "filters", patch_filters(model)
    except ConfigError as error:
        notes.append(f"No patch filters: {error}.")
    position = model.config.position
    if position.has_embedding:
        yield "position_similarity", position_similarity(model)
    if images is None:
        notes.append("Measures of attention and tokens need images: give IMAGES, or --data.")
        return
    images = images[:_MEASURED]
    if position.acts_in_attention:
        yield "position_scores", position_scores(model, images, batch_size)
    yield "attention_distance", attention_distance(model, images, batch_size)
    yield "token_norms", token_norms(model, images, batch_size)
    if len(images) >= _FEWEST_COMPARED_DEPTHS:
        yield "depth_similarity", layer_similarity(model, images, batch_size=batch_size)


def _depth(classifier: Classifier, data: Labelled, searched: Sample, notes: list[str]) -> Measure | None:
    """Fit linear probes at every depth and score them on other images; None, with a note, if there are too few.

    Images that are fitted to are never scored: in data of one split, those of even rows are fitted to, and the others
    scored.
    """
    same_split, most = data.searched is data.scored, _within(len(searched.rows), _PROBED)
    drawn = searched if same_split else sample(classifier, data.scored, most // 2, "probe", seed=2)
    fitted = [n for n, row in enumerate(searched.rows) if not (same_split and row % 2)][:most]
    scored = [n for n, row in enumerate(drawn.rows) if not same_split or row % 2][: most // 2]
    labels = searched.labels[fitted]
    if not scored or not (labels != labels[:1]).any() or (labels.ndim == 2 and not drawn.labels[scored].any()):
        kinds = "labels that some have and others do not" if labels.ndim == 2 else "at least two classes"
        notes.append(f"No accuracy by depth: that needs images of {kinds} to fit to, and others to score.")
        return None
    if len(scored) < FEWEST_SCORED:
        notes.append(
            f"Accuracy by depth is measured on {pluralize(len(scored), 'image')} only, which says little: "
            f"{FEWEST_SCORED} or more are needed to compare depths."
        )
    images, others = searched.images[fitted], drawn.images[scored]
    try:
        return probe_by_depth(classifier.model, images, labels, others, drawn.labels[scored])
    except DataError as error:  # of a few rare labels, all images that have one may be those that choose C
        notes.append(f"No accuracy by depth: {error}.")
        return None


def _within(count: int, limits: tuple[int, int]) -> int:
    """Return the count, or the nearest of its limits."""
    return min(max(count, limits[0]), limits[1])


def _describe(classifier: Classifier) -> str:
    c, (height, width) = classifier.model.config, classifier.pipeline.size
    size = format_count(sum(value.numel() for value in classifier.model.parameters()))
    h, w = height // c.grid[0], width // c.grid[1]
    return (
        f"{pluralize(c.depth, 'block')} of width {c.width} with {pluralize(c.heads, 'head')}, patches of {h} x {w} in "
        f"images of {height} x {width} pixels, position {c.position.kind}, pooling {c.pool.kind}, {size} parameters, "
        f"{pluralize(len(classifier.classes), 'class', 'classes') if classifier.classes else 'no classification head'}"
    )
