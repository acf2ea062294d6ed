"""What `vitreous evaluate` does between reading its words and the end: which pictures, their logits, the tables."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from rich.box import SIMPLE_HEAD
from rich.table import Table
from rich.text import Text
from torch import Tensor
from torch.nn.functional import cross_entropy

from vitreous.checkpoint.model_file import ModelInfo
from vitreous.cli.output.terminal import bar
from vitreous.data.config import DataConfig
from vitreous.data.sources.opening import ImageData, Split, open_source
from vitreous.errors import DataError, did_you_mean
from vitreous.evaluate.calibration import Calibration
from vitreous.evaluate.metrics import Scores, evaluate, most_confused
from vitreous.files.text import printable, visible
from vitreous.predictor import Classifier, Failure

__all__ = [
    "augmentation_table",
    "choose_split",
    "gain_of_augmentation",
    "labels_by_name",
    "logits_of",
    "loss_of_merging",
    "merging_table",
    "open_data",
    "remarks",
    "split_as_trained",
    "tables",
]

_MANY = 40  # classes beyond which the table shows only the worst
_SHOWN = 10


def open_data(info: ModelInfo, source: str, folder: str | None, split: str | None) -> ImageData:
    """Open labelled pictures as the model's training did, where they are what it was trained on.

    Data without splits is taken whole, unless a split of it is asked for, or the model was trained on it: then the
    held-out part is what it may be judged by, and the split is that of the training. Where images were added or moved
    since, val is what the training held out, as far as the model's file says so.
    """
    trained = _trained_on(info)
    same_place = _same_source(source, str(trained.get("source", "")))
    if folder is None and same_place and isinstance(trained.get("dir"), str):
        folder = trained["dir"]
    config = DataConfig(source=source, dir=folder or DataConfig.dir)
    as_trained = split_as_trained(config, info)
    if isinstance(trained.get("exclude"), str):
        as_trained = replace(as_trained, exclude=trained["exclude"])
    if split != "all" and same_place:
        return _open(as_trained, record=_about_data(info).get("held_out"))
    if split in ("train", "val"):
        data = _open(config)
        return _open(as_trained) if _is_trained_on(info, data) else data  # the folder was moved since
    data = _open(config, hold_out=False)
    return _open(as_trained) if split is None and "all" in data.splits and _is_trained_on(info, data) else data


def split_as_trained(config: DataConfig, info: ModelInfo) -> DataConfig:
    """The same data, split as the model's training split it, where that is known: val is then what it held out."""
    trained = _trained_on(info)
    fraction, split = trained.get("val_fraction"), trained.get("split", "hash")  # the only one until it had a name
    if not (isinstance(fraction, float) and 0 < fraction < 1 and split in ("stratified", "hash")):
        return config
    return replace(config, val_fraction=fraction, split=split)


def choose_split(data: ImageData, asked: str | None) -> tuple[str, Split]:
    """Return the pictures to score, and what their split is called."""
    names = list(data.splits)
    if asked == "all":
        return "all", _joined([data.splits[name] for name in names])
    name = asked or next(name for name in ("all", "test", "val", "train") if name in names)
    if name not in names:
        raise DataError(f"{data.name} has no {name} split: it has {', '.join(names)}")
    return name, data.splits[name]


def remarks(info: ModelInfo, data: ImageData, split: str) -> Iterator[str]:
    """Yield what a reader of the scores should know."""
    if data.unreadable:
        path, reason = data.unreadable[0]
        yield f"{len(data.unreadable):,} files cannot be read and are left out (first: {path}: {reason})"
    if _is_trained_on(info, data):
        if split in ("train", "all"):
            yield "the model was trained on pictures among these: the scores say little about others"
        elif split == "val":
            yield (
                "the val split that training held out; it also chose the weights and the temperature, so the scores "
                "are a little high and the calibration error is a little low"
            )
    absent = [name for name in info.classes if name not in data.classes]
    if absent:
        yield f"{len(absent):,} of the model's {len(info.classes):,} classes are not in the data: {_first(absent)}"


def labels_by_name(classes: Sequence[str], data: ImageData, split: Split) -> Tensor:
    """Return the labels (n,) as positions in the model's classes, matched by name."""
    unknown = [name for name in data.classes if name not in classes]
    if unknown:
        hint = did_you_mean(unknown[0], classes)
        raise DataError(
            f"{len(unknown):,} of the {len(data.classes):,} classes in {data.name} are unknown to the model: "
            f"{_first(unknown)}. It knows {_first(classes)}.{hint}"
        )
    position = np.asarray([classes.index(name) for name in data.classes], np.int64)
    return torch.from_numpy(position[split.labels])


def logits_of(classifier: Classifier, split: Split, batch_size: int) -> Tensor:
    """Compute the logits (n, K) of a split's pictures, with a bar."""
    pictures = list(split.arrays) if split.arrays is not None else split.paths or []
    rows = []
    with bar("evaluate") as at:
        for position, row in enumerate(classifier.logits_stream(pictures, batch_size)):
            if isinstance(row, Failure):
                raise DataError(f"{split.name_of(position)}: {row.reason}; it could be read a moment ago")
            rows.append(row)
            at(position + 1, len(split))
    return torch.from_numpy(np.stack(rows))


def loss_of_merging(
    whole: Classifier, split: Split, labels: Tensor, batch_size: int, *, scores: Scores, seconds: float
) -> dict[str, float]:
    """Score the model as it is on the pictures that were scored with merged tokens.

    Args:
        whole: The classifier that merges none, with the engine prepared that computed the scores.
        split: The pictures.
        labels: Their classes (n,).
        batch_size: Pictures per forward pass.
        scores: What was reached with merged tokens.
        seconds: What that took.

    Returns:
        Top-1 with and without merging, and how many times as fast merging was, decoding included, by one engine.
    """
    start = time.perf_counter()
    logits = logits_of(whole, split, batch_size)
    taken = time.perf_counter() - start
    without = evaluate(logits / whole.info.temperature, labels)
    return {"top1": scores.top1, "top1_without": without.top1, "times_as_fast": taken / seconds}


def merging_table(count: int, merging: Mapping[str, float]) -> Table:
    """What merged tokens cost and bring."""
    table = Table(f"{count} tokens merged in each block", "top-1", box=SIMPLE_HEAD)
    table.columns[1].justify = "right"
    table.add_row("with", f"{merging['top1']:.2%}")
    table.add_row("without", f"{merging['top1_without']:.2%}")
    table.add_row("difference, points", f"{100 * (merging['top1'] - merging['top1_without']):+.2f}")
    table.add_row("times as fast, decoding included", f"{merging['times_as_fast']:.2f}")
    return table


def gain_of_augmentation(
    classifier: Classifier, split: Split, labels: Tensor, batch_size: int, *, logits: Tensor, seconds: float
) -> dict[str, float]:
    """Score the same model without test-time augmentation on the images that were scored with it.

    Args:
        classifier: What computed the scores.
        split: The images.
        labels: Their classes (n,).
        batch_size: Images per forward pass.
        logits: With augmentation (n, K).
        seconds: What they took.

    Returns:
        Top-1 and log loss with and without, how many images augmentation put right and how many wrong, and how many
        times as long it took, decoding included.
    """
    classifier.tta = False
    start = time.perf_counter()
    try:
        plain = logits_of(classifier, split, batch_size)
    finally:
        classifier.tta = True
    taken = time.perf_counter() - start
    right, right_without = ((each.argmax(1) == labels) for each in (logits, plain))
    loss, loss_without = (
        float(cross_entropy(each / classifier.info.temperature, labels)) for each in (logits.double(), plain.double())
    )
    return {
        "top1": float(right.double().mean()),
        "top1_without": float(right_without.double().mean()),
        "log_loss": loss,
        "log_loss_without": loss_without,
        "put_right": int((right & ~right_without).sum()),
        "put_wrong": int((~right & right_without).sum()),
        "times_as_long": seconds / taken,
    }


def augmentation_table(gain: Mapping[str, float]) -> Table:
    """What test-time augmentation brings and costs on these images."""
    table = Table("test-time augmentation", "top-1", "log loss", box=SIMPLE_HEAD)
    for column in table.columns[1:]:
        column.justify = "right"
    table.add_row("with", f"{gain['top1']:.2%}", f"{gain['log_loss']:.4f}")
    table.add_row("without", f"{gain['top1_without']:.2%}", f"{gain['log_loss_without']:.4f}")
    points = 100 * (gain["top1"] - gain["top1_without"])
    table.add_row("gain", f"{points:+.2f} points", f"{gain['log_loss'] - gain['log_loss_without']:+.4f}")
    table.add_row("images put right, put wrong", f"{gain['put_right']:,}, {gain['put_wrong']:,}", "")
    table.add_row("times as long, decoding included", f"{gain['times_as_long']:.2f}", "")
    return table


def tables(title: str, scores: Scores, calibration: Calibration, classes: Sequence[str]) -> Iterator[Table]:
    """Yield the tables for people: overall, per class, and what is taken for what."""
    overall = Table(title=Text(printable(title), style="bold"), title_justify="left", box=None, show_header=False)
    overall.add_row("top-1", f"{scores.top1:7.2%}", Text("precision, recall and F1 overall are the same", style="dim"))
    if scores.top5 is not None:
        overall.add_row("top-5", f"{scores.top5:7.2%}")
    overall.add_row("precision", f"{scores.macro_precision:7.4f}", Text("mean over classes", style="dim"))
    overall.add_row("recall", f"{scores.macro_recall:7.4f}", Text("mean over classes", style="dim"))
    overall.add_row("F1", f"{scores.macro_f1:7.4f}", Text("mean over classes", style="dim"))
    before = f"{calibration.log_loss_before:.4f} before temperature {calibration.temperature:.3f}"
    overall.add_row("log loss", f"{calibration.log_loss_after:7.4f}", Text(before, style="dim"))
    before = f"calibration error, 15 bins; {calibration.ece_before:.4f} before temperature"
    overall.add_row("ECE", f"{calibration.ece_after:7.4f}", Text(before, style="dim"))
    yield overall
    shown = [
        n for n, own in enumerate(scores.per_class) if own.support or own.precision or scores.confusion[:, n].any()
    ]
    worst = len(shown) > _MANY
    if worst:
        shown = sorted(shown, key=lambda n: scores.per_class[n].f1)[: _MANY // 2]
    per_class = Table(f"class{', worst first' if worst else ''}", box=SIMPLE_HEAD)
    for name in ("pictures", "precision", "recall", "F1"):
        per_class.add_column(name, justify="right")
    for n in shown:
        own = scores.per_class[n]
        numbers = (f"{own.support:,}", f"{own.precision:.3f}", f"{own.recall:.3f}", f"{own.f1:.3f}")
        per_class.add_row(Text(visible(classes[n])), *numbers)
    yield per_class
    pairs = most_confused(scores.confusion, classes, n=5)
    if pairs:
        mistakes = Table("most frequent mistakes", "taken for", box=SIMPLE_HEAD)
        mistakes.add_column("pictures", justify="right")
        mistakes.add_column("of its class", justify="right")
        for pair in pairs:
            mistakes.add_row(
                Text(visible(pair.true)), Text(visible(pair.predicted)), f"{pair.count:,}", f"{pair.share:.1%}"
            )
        yield mistakes


def _open(config: DataConfig, hold_out: bool = True, record: object = None) -> ImageData:
    with bar("read") as at:
        return open_source(config, progress=at, hold_out=hold_out, record=record)


def _trained_on(info: ModelInfo) -> Mapping[str, Any]:
    """The data section of the configuration that the model was trained by: values of any kind, a stranger's perhaps."""
    config = info.provenance.get("config")
    data = config.get("data") if isinstance(config, Mapping) else None
    return data if isinstance(data, Mapping) else {}


def _about_data(info: ModelInfo) -> Mapping[str, Any]:
    """What the model's file says of the images that it was trained on."""
    data = info.provenance.get("data")
    return data if isinstance(data, Mapping) else {}


def _is_trained_on(info: ModelInfo, data: ImageData) -> bool:
    return bool(_about_data(info).get("fingerprint") == data.fingerprint)


def _same_source(one: str, other: str) -> bool:
    """Whether two sources are one known set, or one folder or manifest."""
    if one == other:
        return bool(one)
    try:
        return bool(other) and os.path.samefile(os.path.expanduser(one), os.path.expanduser(other))
    except (OSError, ValueError):  # one is not there, or is no path at all
        return False


def _joined(splits: Sequence[Split]) -> Split:
    """All pictures of several splits."""
    names = tuple(name for split in splits for name in split.names)
    labels = np.concatenate([split.labels for split in splits])
    if all(split.arrays is not None for split in splits):
        return Split(
            labels, names, arrays=np.concatenate([split.arrays for split in splits if split.arrays is not None])
        )
    return Split(labels, names, paths=[path for split in splits for path in split.paths or []])


def _first(names: Sequence[str]) -> str:
    more = f" and {len(names) - _SHOWN:,} more" if len(names) > _SHOWN else ""
    return ", ".join(map(visible, names[:_SHOWN])) + more
