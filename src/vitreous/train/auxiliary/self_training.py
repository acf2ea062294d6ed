"""Labels that a trained model predicts once, before training, for images that have none (self-training).

From then on these images are training images like any others: augmented, mixed and smoothed (arXiv 1911.04252, with one
label for each image in place of a distribution). Validation and test keep the given labels.

Shapes: n labelled and m unlabelled images, K classes.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from vitreous.checkpoint.licence import recorded_licence
from vitreous.data.images.stored import ImagePath
from vitreous.data.sources.image_data import ImageData, Split
from vitreous.data.sources.listing import UNLABELLED, first_ten
from vitreous.data.sources.opening import fingerprint_of
from vitreous.data.sources.split import as_recorded
from vitreous.engines.cache import digest
from vitreous.errors import ConfigError, DataError, pluralize
from vitreous.export.reading import is_exported
from vitreous.predictions import Failure, Prediction
from vitreous.predictor import Classifier, load
from vitreous.train.auxiliary.task import no_unlabelled_images
from vitreous.train.config import RunConfig

__all__ = ["Predicted", "label_images", "open_labeller"]

_MOST_AT_ONCE = 64  # images that are predicted, and fetched from a store, together


@dataclass(frozen=True)
class Predicted:
    """What a run records of the labels that a model has predicted."""

    images: int  # m, before the least probability
    labelled: int  # those of them that training sees
    model: dict[str, Any]  # name, digest of the weights, and licence if its origin states one
    fingerprint: str  # of the m images
    added: str  # hash of the names, contents and labels of those that training sees

    def to_dict(self) -> dict[str, Any]:
        """Return what the report and the model file have beside the model."""
        return {"images": self.images, "labelled": self.labelled, "fingerprint": self.fingerprint}

    def describe(self) -> str:
        """Say in one line how many images have been labelled, and by what."""
        number = "all" if self.labelled == self.images else f"{self.labelled:,}"
        return f"{pluralize(self.images, 'image')}, {number} labelled by {self.model['name']} and trained on"


def open_labeller(config: RunConfig, device: torch.device) -> Classifier:
    """Open the model of ``aux.model``.

    Raises:
        CheckpointError: If the file cannot be used.
        ConfigError: If it is an exported file, or a model without classes.
    """
    source = str(config.aux.model)
    if is_exported(source):
        raise ConfigError(f"aux.model '{source}' is an exported file: give the model that it was exported from")
    classifier = load(source, device, engine="torch", tta=config.augment.flip > 0)
    if not classifier.classes:
        raise ConfigError(
            f"aux.model '{source}' has no classification head: give a classifier of the classes of the data"
        )
    return classifier


def label_images(
    config: RunConfig, data: ImageData, labeller: Classifier, progress: Callable[[int, int], None]
) -> tuple[ImageData, Predicted]:
    """Have a model label the unlabelled images, and add them to the split `train`.

    The prediction is that of `vitreous predict` in float32, averaged with the mirror image if the run flips images.

    Args:
        config: The run, whose `aux.method` is `self-training`.
        data: With unlabelled images.
        labeller: From :func:`open_labeller`.
        progress: Called with (done, total).

    Raises:
        ConfigError: If there are no unlabelled images, or the model does not have the classes of the data.
        DataError: If an image can no longer be read, or the labelled images are no files.
    """
    source, least = str(config.aux.model), config.aux.min_probability
    train, others = _check_data(config, data)
    _check_classes(labeller, source, data)
    predictions = list(_predict(labeller, others, min(_MOST_AT_ONCE, config.batch_size), progress))
    kept = [n for n, each in enumerate(predictions) if data.several or each.probability >= least]
    if not kept:
        raise ConfigError(
            f"no prediction of '{source}' reaches aux.min_probability {least:g}, the highest is "
            f"{max(each.probability for each in predictions):.4g}: give a smaller one"
        )
    labels = _labels([predictions[n] for n in kept], data)
    names, digests = ([each[n] for n in kept] for each in (others.names, others.digests))
    added = hashlib.blake2b(repr([*zip(names, digests, labels.tolist(), strict=True)]).encode(), digest_size=16)
    joined = Split(
        np.concatenate([train.labels, labels]),
        (*train.names, *names),
        paths=[*(train.paths or []), *((others.paths or [])[n] for n in kept)],
        digests=(*train.digests, *digests),
    )
    licence = recorded_licence(labeller.info.provenance)
    predicted = Predicted(
        images=len(others),
        labelled=len(kept),
        model={"name": source, "digest": digest(labeller.model)} | ({"licence": licence} if licence else {}),
        fingerprint=fingerprint_of(others.names, [UNLABELLED] * len(others), others.digests),
        added=added.hexdigest(),
    )
    seen = list(_held_out_and_seen(labeller, source, data))
    splits = {**data.splits, "train": joined}
    order = data.order + predicted.added
    return replace(data, splits=splits, order=order, unlabelled=None, notes=[*data.notes, *seen]), predicted


def _check_data(config: RunConfig, data: ImageData) -> tuple[Split, Split]:
    """Return the training images and the unlabelled ones; raise an error unless both are files."""
    train, others, least = data.splits["train"], data.unlabelled, config.aux.min_probability
    if train.paths is None:
        raise DataError(
            f"{data.name} is held in memory, and aux self-training joins image files: give a folder, a manifest or "
            "shards"
        )
    if others is None:
        raise no_unlabelled_images(config)
    if data.several and least:
        raise ConfigError(
            f"aux.min_probability is {least:g}, but images have several labels here, each with the model's own "
            "threshold: omit it"
        )
    return train, others


def _check_classes(labeller: Classifier, source: str, data: ImageData) -> None:
    """Raise an error unless the model has the classes of the data, by name and in any order."""
    if (labeller.info.multilabel is not None) != data.several:
        kinds = ("one label", "several labels or none")
        raise ConfigError(
            f"aux.model '{source}' gives an image {kinds[not data.several]}, {data.name} gives it {kinds[data.several]}"
            ": give a model that was trained on such data"
        )
    theirs, own = set(labeller.classes), set(data.classes)
    if theirs != own:
        differing = [
            f"{whose} lacks {first_ten(names)}"
            for whose, names in (("it", sorted(own - theirs)), (data.name, sorted(theirs - own)))
            if names
        ]
        raise ConfigError(
            f"aux.model '{source}' has {pluralize(len(theirs), 'class', 'classes')}, {data.name} has {len(own)}: "
            f"{'; '.join(differing)}. Give a classifier of the same classes, such as one that was trained on the "
            "labelled images"
        )


def _held_out_and_seen(labeller: Classifier, source: str, data: ImageData) -> Iterator[str]:
    """Yield a note if the model was trained on the same data with another split, and saw images of `val` there."""
    trained = labeller.info.provenance.get("data", {})
    record = trained.get("held_out") if isinstance(trained, Mapping) else None
    if not record or trained.get("fingerprint") != data.fingerprint:
        return
    digests = data.splits["val"].digests
    if seen := len(digests) - int(as_recorded(record, digests).sum()):
        yield (
            f"{source} was trained on {seen:,} of the {pluralize(len(digests), 'validation image')}, so that their "
            "scores may be too high: train it with the same data.val_fraction"
        )


def _predict(
    labeller: Classifier, split: Split, batch_size: int, progress: Callable[[int, int], None]
) -> Iterator[Prediction]:
    """Yield a prediction for each image of a split of files, in order."""
    for done, found in enumerate(labeller.predict_stream(_fetched(split, batch_size), 1, batch_size), start=1):
        if isinstance(found, Failure):
            raise DataError(f"the unlabelled image {split.names[done - 1]} can no longer be read: {found.reason}")
        yield found
        progress(done, len(split))


def _fetched(split: Split, count: int) -> Iterator[ImagePath]:
    """Yield the path of each image, after it has been fetched if it lies in a store."""
    paths = split.paths or []
    for group in split.fetch_in_groups(range(len(split)), count):
        yield from (paths[n] for n in group)


def _labels(predictions: Sequence[Prediction], data: ImageData) -> npt.NDArray[Any]:
    """Return the labels as a split has them: (m,) indices of classes, or (m, K) of 0 and 1."""
    place = {name: n for n, name in enumerate(data.classes)}
    if not data.several:
        return np.array([place[each.label] for each in predictions], np.int64)
    found = np.zeros((len(predictions), len(place)), np.int8)
    for row, each in zip(found, predictions, strict=True):
        row[[place[name] for name in each.labels or ()]] = 1
    return found
