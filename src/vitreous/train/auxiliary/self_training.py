"""Labels that trained models predict once, before training, for images that have none (self-training).

From then on these images are training images like any others, augmented and mixed (arXiv 1911.04252). What is learnt of
them are the probabilities of all classes, averaged over the models; the label is the most probable class. Given labels
are smoothed as usual. Validation and test have given labels alone.

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
from vitreous.data.augment.mixing import smooth_targets
from vitreous.data.images.stored import ImagePath
from vitreous.data.sources.image_data import ImageData, Split
from vitreous.data.sources.listing import UNLABELLED, first_ten
from vitreous.data.sources.opening import fingerprint_of
from vitreous.data.sources.split import as_recorded
from vitreous.engines.cache import digest
from vitreous.errors import ConfigError, DataError, pluralize
from vitreous.export.reading import is_exported
from vitreous.predictions import Failure
from vitreous.predictor import Classifier, load
from vitreous.train.auxiliary.task import no_unlabelled_images
from vitreous.train.config import RunConfig

__all__ = ["Predicted", "label_images", "open_labellers"]

_MOST_AT_ONCE = 64  # images that are predicted, and fetched from a store, together


@dataclass(frozen=True)
class Predicted:
    """What a run records of the labels that models have predicted."""

    images: int  # m, before the least probability
    labelled: int  # those of them that training sees
    models: tuple[dict[str, Any], ...]  # name, digest of the weights, and licence if its origin states one
    fingerprint: str  # of the m images
    added: str  # hash of the names, contents and labels of those that training sees

    def to_dict(self) -> dict[str, Any]:
        """Return what the report and the model file have."""
        counts = {"images": self.images, "labelled": self.labelled}
        return counts | {"fingerprint": self.fingerprint, "models": list(self.models)}

    def describe(self) -> str:
        """Say in one line how many images have been labelled, and by what."""
        number = "all" if self.labelled == self.images else f"{self.labelled:,}"
        names = " and ".join(model["name"] for model in self.models)
        return f"{pluralize(self.images, 'image')}, {number} labelled by {names} and trained on"


def open_labellers(config: RunConfig, device: torch.device) -> tuple[Classifier, ...]:
    """Open the models of ``aux.model``.

    Raises:
        CheckpointError: If the file cannot be used.
        ConfigError: If it is an exported file, or a model without classes.
    """
    classifiers = []
    for source in config.aux.model:
        if is_exported(source):
            raise ConfigError(f"aux.model '{source}' is an exported file: give the model that it was exported from")
        classifiers.append(load(source, device, engine="torch", tta=config.augment.flip > 0))
        if not classifiers[-1].classes:
            raise ConfigError(
                f"aux.model '{source}' has no classification head: give a classifier of the classes of the data"
            )
    return tuple(classifiers)


def label_images(
    config: RunConfig, data: ImageData, labellers: Sequence[Classifier], progress: Callable[[int, int], None]
) -> tuple[ImageData, Predicted]:
    """Have models label the unlabelled images, and add them to the split `train`.

    A prediction is that of `vitreous predict` in float32, with that of the mirror image if the run flips images.

    Args:
        config: The run, whose `aux.method` is `self-training`.
        data: With unlabelled images.
        labellers: From :func:`open_labellers`.
        progress: Called with (done, total).

    Raises:
        ConfigError: If there are no unlabelled images, or a model does not have the classes of the data.
        DataError: If an image can no longer be read, or the labelled images are no files.
    """
    aux = config.aux
    train, others = _check_data(config, data)
    for labeller, source in zip(labellers, aux.model, strict=True):
        _check_classes(labeller, source, data)
    probabilities = _predict(labellers, others, data.classes, min(_MOST_AT_ONCE, config.batch_size), progress)  # (m, K)
    highest = probabilities.max(axis=1)  # m
    kept = np.flatnonzero(highest >= aux.min_probability)  # which is 0 if an image may have several labels
    if not len(kept):
        raise ConfigError(
            f"no prediction of '{' and '.join(aux.model)}' reaches aux.min_probability {aux.min_probability:g}, the "
            f"highest is {highest.max():.4g}: give a smaller one"
        )
    labels = _labels(probabilities[kept], labellers, data)
    names, digests = ([each[n] for n in kept] for each in (others.names, others.digests))
    added = hashlib.blake2b(repr([*zip(names, digests, labels.tolist(), strict=True)]).encode(), digest_size=16)
    soft = None
    if aux.soft:
        given = smooth_targets(torch.from_numpy(train.labels), len(data.classes), config.label_smoothing).numpy()
        soft = np.concatenate([given, probabilities[kept]]).astype(np.float16)
    joined = Split(
        np.concatenate([train.labels, labels]),
        (*train.names, *names),
        paths=[*(train.paths or []), *((others.paths or [])[n] for n in kept)],
        digests=(*train.digests, *digests),
        soft_labels=soft,
    )
    predicted = Predicted(
        images=len(others),
        labelled=len(kept),
        models=tuple(map(_record, labellers, aux.model)),
        fingerprint=fingerprint_of(others.names, [UNLABELLED] * len(others), others.digests),
        added=added.hexdigest(),
    )
    seen = [note for pair in zip(labellers, aux.model, strict=True) for note in _held_out_and_seen(*pair, data)]
    splits = {**data.splits, "train": joined}
    order = data.order + predicted.added
    return replace(data, splits=splits, order=order, unlabelled=None, notes=[*data.notes, *seen]), predicted


def _record(labeller: Classifier, source: str) -> dict[str, Any]:
    """Return what a run records of a model."""
    licence = recorded_licence(labeller.info.provenance)
    return {"name": source, "digest": digest(labeller.model)} | ({"licence": licence} if licence else {})


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
    labellers: Sequence[Classifier],
    split: Split,
    classes: Sequence[str],
    batch_size: int,
    progress: Callable[[int, int], None],
) -> npt.NDArray[np.float32]:
    """Return the probability of each class for each image of a split of files, averaged over the models, (m, K)."""
    total, place = np.zeros((len(split), len(classes)), np.float32), {name: n for n, name in enumerate(classes)}
    for number, labeller in enumerate(labellers):
        stream = labeller.predict_stream(_fetched(split, batch_size), len(classes), batch_size)
        for row, found in enumerate(stream):
            if isinstance(found, Failure):
                raise DataError(f"the unlabelled image {split.names[row]} can no longer be read: {found.reason}")
            for name, probability in found.top:
                total[row, place[name]] += probability
            progress(number * len(split) + row + 1, len(labellers) * len(split))
    return np.divide(total, len(labellers), dtype=np.float32)


def _fetched(split: Split, count: int) -> Iterator[ImagePath]:
    """Yield the path of each image, after it has been fetched if it lies in a store."""
    paths = split.paths or []
    for group in split.fetch_in_groups(range(len(split)), count):
        yield from (paths[n] for n in group)


def _labels(
    probabilities: npt.NDArray[np.float32], labellers: Sequence[Classifier], data: ImageData
) -> npt.NDArray[Any]:
    """Return the labels as a split has them: (m,) indices of classes, or (m, K) of 0 and 1 by the mean thresholds."""
    if not data.several:
        return probabilities.argmax(axis=1)
    rules = [
        dict(zip(each.classes, each.info.multilabel.thresholds, strict=True))
        for each in labellers
        if each.info.multilabel
    ]
    thresholds = np.mean([[rule[name] for name in data.classes] for rule in rules], axis=0, dtype=np.float32)  # K
    return (probabilities >= thresholds).astype(np.int8)
