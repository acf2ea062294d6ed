"""Data, logits and tables of `vitreous evaluate`; probe and audit open data as it does."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import torch
from rich.box import SIMPLE_HEAD
from rich.table import Table
from rich.text import Text
from torch import Tensor

from vitreous.checkpoint.model_file import ModelInfo
from vitreous.cli.output.terminal import progress_bar
from vitreous.data.config import DataConfig
from vitreous.data.sources.opening import ImageData, Split, open_source
from vitreous.data.sources.split import as_recorded
from vitreous.errors import DataError, did_you_mean, pluralize
from vitreous.evaluate.scoring.metrics import Scores, most_confused
from vitreous.evaluate.trust.calibration import Calibration
from vitreous.files.text import printable, visible
from vitreous.predictions import Failure
from vitreous.predictor import Classifier

__all__ = [
    "choose_split",
    "compute_logits",
    "data_notes",
    "images_of",
    "is_trained_on",
    "label_sets_by_name",
    "labels_by_name",
    "may_have_trained",
    "open_data",
    "score_tables",
    "split_as_trained",
    "stack_results",
    "unreadable_note",
]

_MAX_CLASSES = 40  # with more, the table has only the worst
_MAX_NAMES = 10  # in a message


def open_data(
    info: ModelInfo,
    source: str,
    folder: str | None,
    split: str | None,
    cache_gb: float = DataConfig.cache_gb,
    *,
    several: bool = False,
    unlabelled: Literal["refused", "left out"] = "refused",
) -> ImageData:
    """Open labelled images, with the split of the model's training if they are the data it was trained on.

    Other data without splits is used as a whole, unless a split is requested. If images were added or moved since the
    training, val is what the training held out, as far as the model file records it; data of the same name that has
    none of these images is other data, with a note. ``folder`` holds the known datasets; None is that of the training,
    or the default. ``cache_gb`` GiB of shards from a store are kept. Images may have ``several`` labels only if that is
    given. Rows of a manifest without a label are ``unlabelled``.
    """
    read = partial(_open, several=several, unlabelled=unlabelled)
    trained = _section(_section(info.provenance, "config"), "data")
    is_same_source = _is_training_source(info, source)
    if folder is None and is_same_source and isinstance(trained.get("dir"), str):
        folder = trained["dir"]
    config = DataConfig(source=source, dir=folder or DataConfig.dir, cache_gb=cache_gb)
    as_trained = split_as_trained(config, info)
    if isinstance(trained.get("exclude"), str):
        as_trained = replace(as_trained, exclude=trained["exclude"])
    if split != "all" and is_same_source:
        data = read(as_trained, record=_held_out(info))
        if may_have_trained(info, source, data):
            return data
    data = read(config, hold_out=split in ("train", "val"))
    is_split = split in ("train", "val") or (split is None and "all" in data.splits)
    if is_split and is_trained_on(info, data.fingerprint):  # the folder was moved
        return read(as_trained)
    if is_same_source and not may_have_trained(info, source, data):
        data.notes.append(f"{data.name} has none of the images that the model's training held out: taken as other data")
    return data


def split_as_trained(config: DataConfig, info: ModelInfo) -> DataConfig:
    """Return the configuration with the split of the model's training, if the model file records it."""
    trained = _section(_section(info.provenance, "config"), "data")
    fraction, split = trained.get("val_fraction"), trained.get("split", "hash")  # files without a name predate others
    if not (isinstance(fraction, float) and 0 < fraction < 1 and split in ("stratified", "hash")):
        return config
    return replace(config, val_fraction=fraction, split=split)


def choose_split(data: ImageData, requested: str | None) -> tuple[str, Split]:
    """Return the name of the split to score and its images."""
    names = list(data.splits)
    if requested == "all":
        return "all", _join([data.splits[name] for name in names])
    name = requested or next(name for name in ("all", "test", "val", "train") if name in names)
    if name not in names:
        raise DataError(f"{data.name} has no {name} split: it has {', '.join(names)}")
    return name, data.splits[name]


def unreadable_note(data: ImageData) -> Iterator[str]:
    """Yield one sentence on the files that cannot be read, if there are any."""
    if data.unreadable:
        path, reason = data.unreadable[0]
        are = "is" if len(data.unreadable) == 1 else "are"
        yield f"{pluralize(len(data.unreadable), 'file')} cannot be read and {are} left out (first: {path}: {reason})"


def data_notes(info: ModelInfo, data: ImageData, split: str) -> Iterator[str]:
    """Yield remarks for the reader of the scores."""
    yield from unreadable_note(data)
    yield from data.notes
    if is_trained_on(info, data.fingerprint):
        if split in ("train", "all"):
            yield "the model was trained on some of these images: the scores say little about new ones"
        elif split == "val":
            fitted = "the temperature" if info.multilabel is None else "the calibration and the thresholds"
            yield (
                f"the validation set that training held out; it also chose the weights and {fitted}, so the scores are "
                "a little high and the calibration error is a little low"
            )
    absent = [name for name in info.classes if name not in data.classes]
    if absent:
        kind, how = "classes are not in the data", ""
        if info.multilabel is not None:
            kind, how = "labels are not in the data", " and count as absent from every image"
        yield f"{len(absent):,} of the model's {len(info.classes):,} {kind}{how}: {_join_names(absent)}"


def labels_by_name(classes: Sequence[str], data: ImageData, split: Split) -> Tensor:
    """Return the labels (n,) as indices into the model's classes, matched by name."""
    index = _places(classes, data)
    return torch.from_numpy(index[split.labels])


def label_sets_by_name(classes: Sequence[str], data: ImageData, split: Split) -> Tensor:
    """Return the labels (n, K) of 0 and 1 in the order of the model's classes, matched by name.

    A label that the data does not name is on no image. Data with one class for each image counts as one label.
    """
    index, labels = _places(classes, data), torch.zeros(len(split), len(classes), dtype=torch.int64)
    if split.labels.ndim == 2:
        labels[:, torch.from_numpy(index)] = torch.from_numpy(split.labels).long()
    else:
        labels[torch.arange(len(split)), torch.from_numpy(index[split.labels])] = 1
    return labels


def _places(classes: Sequence[str], data: ImageData) -> npt.NDArray[np.int64]:
    """Return the place of each class of the data among those of the model."""
    unknown = [name for name in data.classes if name not in classes]
    if unknown:
        hint = did_you_mean(unknown[0], classes)
        raise DataError(
            f"{len(unknown):,} of the {len(data.classes):,} classes in {data.name} are unknown to the model: "
            f"{_join_names(unknown)}. It knows {_join_names(classes)}.{hint}"
        )
    return np.asarray([classes.index(name) for name in data.classes], np.int64)


def compute_logits(classifier: Classifier, split: Split, batch_size: int, label: str = "evaluate") -> Tensor:
    """Compute the logits (n, K) of the images of a split; `label` names the work in the progress bar."""
    order = split.reading_order()
    images = images_of(split)
    logits = classifier.logits_stream([images[n] for n in order], batch_size)
    stacked = stack_results(label, logits, [split.name_of(n) for n in order])
    return torch.from_numpy(stacked[np.argsort(order)])


def images_of(split: Split) -> list[Any]:
    """Return the images of a split as the predictor takes them: pixels or paths."""
    return list(split.arrays) if split.arrays is not None else list(split.paths or [])


def stack_results(label: str, results: Iterable[Any], names: Sequence[str]) -> npt.NDArray[np.float32]:
    """Stack a stream of logits or features into one array (n, ...), with a progress bar."""
    rows = []
    with progress_bar(label) as update:
        for name, result in zip(names, results, strict=True):
            if isinstance(result, Failure):
                raise DataError(f"{visible(name)}: {result.reason}; it was readable a moment ago")
            rows.append(result if isinstance(result, np.ndarray) else result.vector)
            update(len(rows), len(names))
    return np.stack(rows)


def score_tables(title: str, scores: Scores, calibration: Calibration, classes: Sequence[str]) -> Iterator[Table]:
    """Yield the tables of overall scores, scores per class, and most frequent mistakes."""
    overall = Table(title=Text(printable(title), style="bold"), title_justify="left", box=None, show_header=False)
    mean, before = "mean over classes", "before temperature"
    for name, value, note in (
        ("top-1", f"{scores.top1:7.2%}", "precision, recall and F1 overall are the same"),
        *([("top-5", f"{scores.top5:7.2%}", "")] if scores.top5 is not None else []),
        ("precision", f"{scores.macro_precision:7.4f}", mean),
        ("recall", f"{scores.macro_recall:7.4f}", mean),
        ("F1", f"{scores.macro_f1:7.4f}", mean),
        ("log loss", f"{calibration.log_loss_after:7.4f}",
         f"{calibration.log_loss_before:.4f} {before} {calibration.temperature:.3f}"),
        ("ECE", f"{calibration.ece_after:7.4f}", f"calibration error, 15 bins; {calibration.ece_before:.4f} {before}"),
    ):  # fmt: skip
        overall.add_row(name, value, Text(note, style="dim"))
    yield overall
    shown: list[int] = np.flatnonzero(scores.confusion.sum(0) + scores.confusion.sum(1)).tolist()  # true or predicted
    is_long = len(shown) > _MAX_CLASSES
    if is_long:
        shown = sorted(shown, key=lambda n: scores.per_class[n].f1)[: _MAX_CLASSES // 2]
    per_class = Table(f"class{', worst first' if is_long else ''}", box=SIMPLE_HEAD)
    for name in ("images", "precision", "recall", "F1"):
        per_class.add_column(name, justify="right")
    for n in shown:
        score = scores.per_class[n]
        numbers = (f"{score.support:,}", f"{score.precision:.3f}", f"{score.recall:.3f}", f"{score.f1:.3f}")
        per_class.add_row(Text(visible(classes[n])), *numbers)
    yield per_class
    mistakes = Table("most frequent mistakes", "predicted as", box=SIMPLE_HEAD)
    for name in ("images", "of its class"):
        mistakes.add_column(name, justify="right")
    for pair in most_confused(scores.confusion, classes, n=5):
        names = Text(visible(pair.true)), Text(visible(pair.predicted))
        mistakes.add_row(*names, f"{pair.count:,}", f"{pair.share:.1%}")
    if mistakes.row_count:
        yield mistakes


def _open(config: DataConfig, hold_out: bool = True, record: object = None, **rows: Any) -> ImageData:
    with progress_bar("read") as update:
        return open_source(config, progress=update, hold_out=hold_out, record=record, **rows)


def _section(record: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    """Return a section of what a model file records; the values are untrusted and may have any type."""
    section = record.get(name)
    return section if isinstance(section, Mapping) else {}


def is_trained_on(info: ModelInfo, fingerprint: str) -> bool:
    """Whether the model file records that the model was trained on the images with this fingerprint."""
    return bool(_section(info.provenance, "data").get("fingerprint") == fingerprint)


def may_have_trained(info: ModelInfo, source: str, data: ImageData) -> bool:
    """Whether the model file records the training on these images, or on others of the same source.

    Images may have been added or moved since. Data that has none of the images that the training held out is other
    data, such as another folder at the same relative path.
    """
    if is_trained_on(info, data.fingerprint):
        return True
    record = _held_out(info)
    has_recorded = not record or any(as_recorded(record, split.digests).any() for split in data.splits.values())
    return has_recorded and _is_training_source(info, source)


def _held_out(info: ModelInfo) -> object:
    return _section(info.provenance, "data").get("held_out")


def _is_training_source(info: ModelInfo, source: str) -> bool:
    """Whether the model file records that the model was trained on this folder, manifest or known dataset."""
    return _is_same_source(source, str(_section(_section(info.provenance, "config"), "data").get("source", "")))


def _is_same_source(one: str, other: str) -> bool:
    """Whether two sources are the same known dataset, folder or manifest."""
    if one == other:
        return bool(one)
    try:
        return bool(other) and os.path.samefile(os.path.expanduser(one), os.path.expanduser(other))
    except (OSError, ValueError):  # one does not exist, or is not a path
        return False


def _join(splits: Sequence[Split]) -> Split:
    names = tuple(name for split in splits for name in split.names)
    labels = np.concatenate([split.labels for split in splits])
    arrays = [split.arrays for split in splits if split.arrays is not None]
    if len(arrays) == len(splits):
        return Split(labels, names, arrays=np.concatenate(arrays))
    return Split(labels, names, paths=[path for split in splits for path in split.paths or []])


def _join_names(names: Sequence[str]) -> str:
    more = f" and {len(names) - _MAX_NAMES:,} more" if len(names) > _MAX_NAMES else ""
    return ", ".join(map(visible, names[:_MAX_NAMES])) + more
