"""What a run advises: a pretrained model where images are few, weights or sampling where classes are unlike in size.

A sentence is a text, a command the list of its words. Nothing is said where it would not help.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import fields
from importlib.util import find_spec
from pathlib import Path

import numpy as np

from vitreous.data.config import DataConfig
from vitreous.data.sources.listing import many
from vitreous.evaluate.metrics import Scores
from vitreous.files.text import visible
from vitreous.train.setup import Prepared

__all__ = ["PRETRAINED", "closing_advice", "few_images", "unlike_classes"]

PRETRAINED = "timm/vit_small_patch16_224.augreg_in21k"
"""A small model with good features that two CPU cores can fine-tune: ImageNet-21k, arXiv 2106.10270."""

# Below this, pretrained features do better by a wide margin: the recipe `folder` reaches 79.8 % on 2,934 photographs in
# five classes, far from what is known of fine-tuned models there, and arXiv 2010.11929 (figure 4) has ViTs from random
# weights behind ResNets up to millions of images. Per class, as arXiv 1805.08974 has it: what pretraining gains shrinks
# as classes grow to hundreds of images.
_FEW, _FEW_PER_CLASS = 5000, 200
_SMALL_SIDE = 64  # pixels: smaller images have little of what models of 224 pixels know
_GOOD = 0.95  # top-1 above which there is little to gain
_UNLIKE = 5  # times as many images in the largest class as in the smallest
_GAP = 0.05  # of macro F1 below top-1: the small classes are worse


def few_images(ready: Prepared, scores: Scores | None = None) -> Iterator[str | list[str]]:
    """Yield what a run from random weights on few images should be told: why, and the command that does better.

    Args:
        ready: What the run is made of.
        scores: Reached on the validation split; None before a training.
    """
    images, classes = len(ready.data.splits["train"]), len(ready.data.classes)
    few = images < _FEW or images / classes < _FEW_PER_CLASS
    small = max(ready.data.median_size) < _SMALL_SIDE
    if ready.start is not None or not few or small or (scores is not None and scores.top1 >= _GOOD):
        return
    yield (
        f"{many(images, 'training image')} of {many(classes, 'class', 'classes')} are few for a Vision Transformer "
        "from random weights. Fine-tuning a pretrained one usually does far better:"
    )
    if find_spec("huggingface_hub") is None:
        yield ["pip", "install", "vitreous[hub]"]
    yield ["vitreous", "finetune", ready.config.data.source, "--from", PRETRAINED, *_data_options(ready)]


def _data_options(ready: Prepared) -> Iterator[str]:
    """The options of the data that are not what they are where nothing is said."""
    plain, data = DataConfig(), ready.config.data
    for field in fields(DataConfig):
        value = getattr(data, field.name)
        if field.name not in ("source", "memory_gb", "workers") and value != getattr(plain, field.name):
            yield f"--data.{field.name}={str(value).lower() if isinstance(value, bool) else value}"


def unlike_classes(ready: Prepared) -> str | None:
    """What a run whose classes are unlike in size is told at its start; None where they are not, or it is seen to."""
    if ready.config.balanced_sampling or ready.config.class_weights != "none":
        return None
    counts = np.bincount(ready.data.splits["train"].labels, minlength=len(ready.data.classes))
    low, high = int(counts.argmin()), int(counts.argmax())
    if counts[high] < _UNLIKE * counts[low]:
        return None
    small, large = (f"{visible(ready.data.classes[k])} {counts[k]:,}" for k in (low, high))
    return (
        f"unlike in size ({large}, {small} training images): macro F1 counts all classes alike, top-1 does not. "
        "--class-weights effective or --balanced-sampling makes up for it"
    )


def closing_advice(ready: Prepared, folder: Path, scores: Scores) -> Iterator[str | list[str]]:
    """Yield the lines of advice at the end of a run.

    Args:
        ready: What the run was made of.
        folder: Of the run.
        scores: Of the saved weights on the validation split.
    """
    yield from few_images(ready, scores)
    if unlike_classes(ready) is not None and scores.macro_f1 < scores.top1 - _GAP:
        verb = "train" if ready.start is None else "finetune"
        yield (
            f"macro F1 {scores.macro_f1:.2f} is far below top-1 {100 * scores.top1:.1f} %: small classes are told "
            "badly. Give them more weight, or --balanced-sampling in its place:"
        )
        yield ["vitreous", verb, "--config", str(folder / "recipe.yaml"), "--class-weights", "effective"]
