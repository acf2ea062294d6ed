"""What inspected images resemble: patches coloured by their features, and the nearest labelled images and patches."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from vitreous.cli.work.inspecting.labelled_sample import Labelled, Sample
from vitreous.errors import ConfigError, DataError
from vitreous.inspection.neighbours import nearest_images, nearest_patches
from vitreous.inspection.patch_colours import patch_colours
from vitreous.predictor import Classifier
from vitreous.report.drawing import reduced
from vitreous.report.inspection.results import ImageResult, Neighbour, PatchNeighbour

__all__ = ["add_likeness"]

_NEIGHBOURS = 6
_PATCHES = 3  # of an image, those with the highest values of its first map
_PATCH_NEIGHBOURS = 2
_SIDE = 160  # pixels of a thumbnail


def add_likeness(
    classifier: Classifier,
    results: Sequence[ImageResult],
    inputs: Sequence[Tensor],
    data: Labelled | None,
    searched: Sample | None,
    *,
    batch_size: int,
) -> list[ImageResult]:
    """Return the results with colours of patches, and with labelled images, also with neighbours.

    Args:
        classifier: The model.
        results: Of the inspected images.
        inputs: The images, normalised, (C, H, W) each.
        data: Labelled images, or None.
        searched: Those that are searched for neighbours, or None.
        batch_size: Images per forward pass.
    """
    queries = torch.stack(list(inputs))  # n C H W
    with contextlib.suppress(ConfigError):  # fewer than three patches or channels have no three components
        colours = patch_colours(classifier.model, queries, batch_size=batch_size).colours
        results = [replace(each, colours=one) for each, one in zip(results, colours, strict=True)]
    if data is None or searched is None:
        return list(results)
    near = nearest_images(classifier.model, queries, searched.images, count=_NEIGHBOURS, batch_size=batch_size)
    part = searched.images[: max(_NEIGHBOURS, len(searched.images) // len(results))]  # the budget is for all together
    found = []
    for number, result in enumerate(results):
        likes = zip(near.images[number], near.similarity[number], strict=True)
        neighbours = tuple(_neighbour(data, searched, int(n), float(similarity)) for n, similarity in likes)
        patches = _highest(result)
        similar = nearest_patches(
            classifier.model, queries[number], patches, part, count=_PATCH_NEIGHBOURS, batch_size=batch_size
        )
        patch_neighbours = tuple(
            PatchNeighbour(patch, (int(row), int(column)), _neighbour(data, searched, int(n), float(similarity)))
            for k, patch in enumerate(patches)
            for n, (row, column), similarity in zip(
                similar.images[k], similar.patches[k], similar.similarity[k], strict=True
            )
        )
        found.append(replace(result, neighbours=neighbours, patch_neighbours=patch_neighbours))
    return found


def _highest(result: ImageResult) -> list[tuple[int, int]]:
    """Return row and column of the patches with the highest values of the first map."""
    values = result.maps[0].patches
    order = np.argsort(-values, axis=None, kind="stable")[:_PATCHES]
    return [(int(n) // values.shape[1], int(n) % values.shape[1]) for n in order]


def _neighbour(data: Labelled, searched: Sample, n: int, similarity: float) -> Neighbour:
    row = int(searched.rows[n])
    image: Image.Image | None = None
    with contextlib.suppress(DataError):  # it was readable a moment ago
        image = reduced(searched.split.image(row), _SIDE)
    classes, labels = data.data.classes, searched.split.labels[row]
    if data.data.several:
        label = ", ".join(classes[k] for k in np.flatnonzero(labels)) or "no label"
    else:
        label = classes[int(labels)]
    return Neighbour(searched.split.name_of(row), label, similarity, image)
