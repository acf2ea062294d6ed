"""Labels that a trained model predicts once, before training, for images that have none (self-training).

From then on these images are training images like any others: augmented, mixed and smoothed (arXiv 1911.04252, with one
label for each image in place of a distribution). Validation and test keep the given labels.

Shapes: n labelled and m unlabelled images, K classes.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from vitreous.checkpoint.licence import recorded_licence
from vitreous.data.images.inputs import ImageInput
from vitreous.data.sources.image_data import ImageData, Split
from vitreous.data.sources.listing import UNLABELLED, first_ten, pluralize
from vitreous.data.sources.opening import fingerprint_of
from vitreous.engines.cache import digest
from vitreous.errors import ConfigError, DataError
from vitreous.predictions import Failure, Prediction
from vitreous.predictor import Classifier, load
from vitreous.train.config import RunConfig

__all__ = ["Predicted", "label_images"]

_BATCH = 64  # images that are predicted, and fetched from a store, at a time


@dataclass(frozen=True)
class Predicted:
    """What a run records of the labels that a model has predicted."""

    images: int  # m, before the least probability
    labelled: int  # those of them that training sees
    model: dict[str, Any]  # name, digest of the weights, and licence if its origin states one
    fingerprint: str  # of the m images
    labels: str  # hash of the labels of those that training sees

    def to_dict(self) -> dict[str, Any]:
        """Return the numbers and the fingerprint, as the report and the model file have them."""
        return {"images": self.images, "labelled": self.labelled, "fingerprint": self.fingerprint}

    def describe(self) -> str:
        """Say in one line how many images have been labelled, and by what."""
        number = "all" if self.labelled == self.images else f"{self.labelled:,}"
        return f"{pluralize(self.images, 'image')}, {number} labelled by {self.model['name']} and trained on"


def label_images(
    config: RunConfig, data: ImageData, device: torch.device, progress: Callable[[int, int], None]
) -> tuple[ImageData, Predicted]:
    """Have the model of ``aux.model`` label the unlabelled images, and add them to the split `train`.

    The prediction is that of `vitreous predict` in float32, averaged with the mirror image if the run flips images.

    Args:
        config: The run, whose `aux.method` is `self-training`.
        data: With unlabelled images.
        device: Where to compute.
        progress: Called with (done, total).

    Raises:
        ConfigError: If there are no unlabelled images, or the model does not have the classes of the data.
        DataError: If an image can no longer be read, or the labelled images are no files.
    """
    source, least = str(config.aux.model), config.aux.min_probability
    train, others = data.splits["train"], data.unlabelled
    if others is None:
        raise ConfigError(
            "aux self-training learns from images without a label, and there are none: name some with `--unlabelled`, "
            "or leave their labels empty in the manifest"
        )
    if train.paths is None or others.paths is None:
        raise DataError(
            f"{data.name} is held in memory, and aux self-training joins image files: give a folder, a manifest or "
            "shards"
        )
    if data.several and least:
        raise ConfigError(
            f"aux.min_probability is {least:g}, but images have several labels here, each with the model's own "
            "threshold: omit it"
        )
    classifier = load(source, device, engine="torch", tta=config.augment.flip > 0, ignore_thresholds=not data.several)
    _check_classes(classifier, source, data)
    predictions = list(_predict(classifier, others, progress))
    kept = [n for n, each in enumerate(predictions) if data.several or each.probability >= least]
    if not kept:
        raise ConfigError(
            f"no prediction of '{source}' reaches aux.min_probability {least:g}, the highest is "
            f"{max(each.probability for each in predictions):.2f}: give a smaller one"
        )
    labels = _labels([predictions[n] for n in kept], data)
    joined = Split(
        np.concatenate([train.labels, labels]),
        (*train.names, *(others.names[n] for n in kept)),
        paths=[*train.paths, *(others.paths[n] for n in kept)],
        digests=(*train.digests, *(others.digests[n] for n in kept)),
    )
    licence = recorded_licence(classifier.info.provenance)
    predicted = Predicted(
        images=len(others),
        labelled=len(kept),
        model={"name": source, "digest": digest(classifier.model)} | ({"licence": licence} if licence else {}),
        fingerprint=fingerprint_of(others.names, [UNLABELLED] * len(others), others.digests),
        labels=hashlib.blake2b(repr(kept).encode() + labels.tobytes(), digest_size=16).hexdigest(),
    )
    return replace(data, splits={**data.splits, "train": joined}, unlabelled=None), predicted


def _check_classes(classifier: Classifier, source: str, data: ImageData) -> None:
    """Raise an error unless the model has the classes of the data, by name and in any order."""
    if (classifier.info.multilabel is not None) != data.several:
        kinds = ("one label", "several labels or none")
        raise ConfigError(
            f"aux.model '{source}' gives an image {kinds[not data.several]}, {data.name} gives it {kinds[data.several]}"
            ": give a model that was trained on such data"
        )
    theirs, own = set(classifier.classes), set(data.classes)
    if theirs != own or len(theirs) != len(classifier.classes):
        differing = [
            f"{whose} lacks {first_ten(names)}"
            for whose, names in (("it", sorted(own - theirs)), (data.name, sorted(theirs - own)))
            if names
        ]
        raise ConfigError(
            f"aux.model '{source}' has {pluralize(len(classifier.classes), 'class', 'classes')}, {data.name} has "
            f"{len(own)}: {'; '.join(differing or ['it names a class twice'])}. Give a classifier of the same classes, "
            "such as one that was trained on the labelled images"
        )


def _predict(classifier: Classifier, split: Split, progress: Callable[[int, int], None]) -> Iterator[Prediction]:
    """Yield a prediction for each image of a split of files, in order."""
    for done, found in enumerate(classifier.predict_stream(_inputs(split), 1, _BATCH), start=1):
        if isinstance(found, Failure):
            raise DataError(f"the unlabelled image {split.names[done - 1]} can no longer be read: {found.reason}")
        yield found
        progress(done, len(split))


def _inputs(split: Split) -> Sequence[ImageInput] | Iterator[ImageInput]:
    """Return the paths of files, which threads decode, or the images in shards one by one."""
    paths = [path for path in split.paths or [] if isinstance(path, Path)]
    return paths if len(paths) == len(split) else _fetched(split)


def _fetched(split: Split) -> Iterator[ImageInput]:
    for first in range(0, len(split), _BATCH):
        group = range(first, min(first + _BATCH, len(split)))
        split.fetch(group)
        yield from map(split.image, group)


def _labels(predictions: Sequence[Prediction], data: ImageData) -> npt.NDArray[np.int64]:
    """Return the labels as a split has them: (m,) indices of classes, or (m, K) of 0 and 1."""
    place = {name: n for n, name in enumerate(data.classes)}
    if not data.several:
        return np.array([place[each.label] for each in predictions], np.int64)
    found = np.zeros((len(predictions), len(place)), np.int64)
    for row, each in zip(found, predictions, strict=True):
        row[[place[name] for name in each.labels or ()]] = 1
    return found
