"""Advice that a run prints: a pretrained model for few images, class weights or sampling for imbalanced classes.

Advice is a sequence of sentences (strings) and commands (lists of words). It is given only if it would help.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import fields
from pathlib import Path

import numpy as np

from vitreous.checkpoint.hub import cached_commit, is_reachable
from vitreous.checkpoint.pretrained import LICENCES, ROWS
from vitreous.checkpoint.shipped import SHIPPED
from vitreous.data.config import DataConfig
from vitreous.errors import pluralize
from vitreous.evaluate.scoring.metrics import Scores
from vitreous.files.text import visible
from vitreous.train.setup import Setup

__all__ = ["closing_advice", "few_images", "imbalance_note"]

# Below these numbers of images pretrained features are better by a wide margin: arXiv 2010.11929 (figure 4) has ViTs
# trained from scratch behind ResNets up to millions of images, and arXiv 1805.08974 shows that the gain of pretraining
# shrinks as classes grow to hundreds of images.
_FEW, _FEW_PER_CLASS = 5000, 200
_SMALL_SIDE = 64  # pixels; models pretrained at 224 pixels transfer badly to smaller images
_GOOD = 0.95  # top-1 or mAP above which there is little to gain
_IMBALANCE = 5  # size of the largest class over that of the smallest
_F1_GAP = 0.05  # macro F1 this far below top-1: small classes are recognised worse


def few_images(setup: Setup, score: float | None = None) -> Iterator[str | list[str]]:
    """Advise fine-tuning instead of training from scratch, with the command, if there are few training images.

    Not if the score of the run, top-1 or mAP, is high already. Only if there is something to start from: a way to the
    hub, a model of the table in its cache, or for a run from random weights the backbone in the package.
    """
    images, classes = len(setup.data.splits["train"]), len(setup.data.classes)
    few = images < _FEW or images / classes < _FEW_PER_CLASS
    small = max(setup.data.median_size) < _SMALL_SIDE
    shipped = setup.config.tune.source == SHIPPED
    if (setup.pretrained is not None and not shipped) or not few or small or (score is not None and score >= _GOOD):
        return
    chosen: list[str] = []
    better = "a large pretrained one" if shipped else "a pretrained one"
    if not is_reachable():
        usable = [row for row in ROWS if row.linear is not None and LICENCES[row.licence].permissive]
        cached = [row for row in usable if cached_commit(row.hub_id, row.revision)]
        if not cached and shipped:
            return  # nothing else to start from
        if not cached:
            better = "the small backbone in this package, which saw ImageNet (research use),"
        chosen = ["--from", min(cached, key=lambda row: row.parameters).name if cached else SHIPPED]
    kinds = pluralize(classes, "label") if setup.data.several else pluralize(classes, "class", "classes")
    yield (
        f"{pluralize(images, 'training image')} of {kinds} are few for a Vision "
        f"Transformer {'from a small backbone' if shipped else 'from random weights'}. Fine-tuning {better} usually "
        "does far better:"
    )
    yield ["vitreous", "finetune", setup.config.data.source, *chosen, *_data_options(setup)]


def _data_options(setup: Setup) -> Iterator[str]:
    defaults, data = DataConfig(), setup.config.data
    for field in fields(DataConfig):
        value = getattr(data, field.name)
        if field.name not in ("source", "memory_gb", "workers") and value != getattr(defaults, field.name):
            yield f"--data.{field.name}={str(value).lower() if isinstance(value, bool) else value}"


def imbalance_note(setup: Setup) -> str | None:
    """Describe the class imbalance; None if there is little, or the run corrects for it or uses no labels."""
    if setup.config.balanced_sampling or setup.config.class_weights != "none" or setup.config.verb == "pretrain":
        return None
    if setup.data.several:  # an image counts for several, and neither remedy applies
        return None
    counts = np.bincount(setup.data.splits["train"].labels, minlength=len(setup.data.classes))
    low, high = int(counts.argmin()), int(counts.argmax())
    if counts[high] < _IMBALANCE * counts[low]:
        return None
    small, large = (f"{visible(setup.data.classes[k])} {counts[k]:,}" for k in (low, high))
    return (
        f"imbalanced ({large}, {small} training images): macro F1 weights all classes equally, top-1 does not. "
        "--class-weights effective or --balanced-sampling corrects for it"
    )


def closing_advice(setup: Setup, folder: Path, scores: Scores) -> Iterator[str | list[str]]:
    """Yield the advice at the end of a run, given the validation scores of the saved weights."""
    yield from few_images(setup, scores.top1)
    if imbalance_note(setup) is not None and scores.macro_f1 < scores.top1 - _F1_GAP:
        yield (
            f"macro F1 {scores.macro_f1:.2f} is far below top-1 {100 * scores.top1:.1f} %: small classes are "
            "recognised badly. Give them more weight, or use --balanced-sampling instead:"
        )
        yield ["vitreous", setup.config.verb, "--config", str(folder / "recipe.yaml"), "--class-weights", "effective"]
