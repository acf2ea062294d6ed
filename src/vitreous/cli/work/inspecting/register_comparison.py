"""`vitreous inspect --register-neurons`: maps, norms and accuracy with and without a test-time register.

Shapes: n images, C channels, H x W pixels.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor

from vitreous.cli.work.inspecting.labelled_sample import Labelled, sample
from vitreous.inspection.explain import ModelInMemory, explain
from vitreous.inspection.maps.attention import RawAttention
from vitreous.inspection.maps.base import MapMethod
from vitreous.inspection.registers.effect import RegisterEffect, register_effect
from vitreous.model.vit import VisionTransformer
from vitreous.predictor import Classifier
from vitreous.report.inspection.results import ImageResult

__all__ = ["add_register_maps", "compare_registers"]

_SCORED = 300  # labelled images


def compare_registers(
    classifier: Classifier, images: Tensor, data: Labelled | None, *, max_neurons: int, batch_size: int
) -> tuple[RegisterEffect, VisionTransformer]:
    """Move outlier tokens to a test-time register; return the effect and the changed model.

    Args:
        classifier: The model.
        images: Normalised images to find the neurons with, (n, C, H, W).
        data: Labelled images to score, or None. Images of classes that the model does not have are left out, and of
            several labels those that it does not have; a model without classes scores none.
        max_neurons: Largest number of neurons.
        batch_size: Images per pass.
    """
    labelled = None
    if data is not None and classifier.classes:
        labelled = _labelled(classifier, data)
    return register_effect(classifier.model, images, labelled, max_neurons=max_neurons, batch_size=batch_size)


def _labelled(classifier: Classifier, data: Labelled) -> tuple[Tensor, Tensor] | None:
    """Return images (n, C, H, W) with their classes (n,), or several labels (n, K), among those of the model.

    None if the data has several labels for an image and the model one, or no image has a label of the model.
    """
    several, places = classifier.info.multilabel is not None, {name: k for k, name in enumerate(classifier.classes)}
    if data.data.several and not several:
        return None
    drawn = sample(classifier, data.scored, _SCORED, "score", seed=3)
    names = data.data.classes
    if several:
        has = drawn.labels if data.data.several else np.eye(len(names), dtype=np.int64)[drawn.labels]
        labels = torch.zeros(len(has), len(places), dtype=torch.long)
        for k, name in enumerate(names):
            if name in places:
                labels[:, places[name]] = torch.from_numpy(has[:, k])
        return (drawn.images, labels) if labels.any() else None
    found = [places.get(names[int(label)]) for label in drawn.labels]
    known = [n for n, place in enumerate(found) if place is not None]
    return drawn.images[known], torch.tensor([found[n] for n in known], dtype=torch.long)


def add_register_maps(
    classifier: Classifier, changed: VisionTransformer, results: Sequence[ImageResult], methods: Sequence[MapMethod]
) -> list[ImageResult]:
    """Return the results with maps of the changed model beside those of the model, of the same classes.

    Attention of the last block is added to the methods, since outliers show in it most.
    """
    other, found = ModelInMemory(changed, classifier.info, classifier.device), []
    shown = list({each.kind: each for each in (RawAttention(), *methods)}.values())
    for result in results:
        have, pairs = {each.method: each for each in result.maps}, []
        for method in shown:
            target = result.maps[0].target if classifier.classes else None
            before = have.get(method.kind) or explain(classifier, result.pixels, target, method)
            after = explain(other, result.pixels, before.target if classifier.classes else None, method)
            pairs.append((replace(before, name=result.name), replace(after, name=result.name)))
        found.append(replace(result, register_maps=tuple(pairs)))
    return found
