"""What is measured during pretraining: whether training collapses, and what the features are worth.

Shapes: B or n images, D features.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from vitreous.accelerate.model import FastVisionTransformer
from vitreous.data.batches.dataset import MemoryDataset
from vitreous.data.batches.sampler import OrderedSampler
from vitreous.data.preprocess import EvalPipeline
from vitreous.data.rng import generator
from vitreous.data.sources.listing import UNLABELLED, first_ten, ordered_classes
from vitreous.data.sources.opening import ImageData, Split
from vitreous.errors import TrainingError, pluralize
from vitreous.evaluate.features.labelled import Labelled
from vitreous.evaluate.features.logistic import fit_path
from vitreous.evaluate.features.probes import probe_knn
from vitreous.machine.cores import num_cores
from vitreous.train.pretrain.objectives.base import Objective
from vitreous.train.pretrain.objectives.spread import effective_rank, find_line, rankme

__all__ = ["CollapseError", "CollapseWatch", "FeatureMonitor"]

_EVERY, _FIRST = 10, 20  # steps between two checks, and the first one that is checked
_IN_A_ROW = 3  # checks that must agree
_BYTES = 2**28  # of the decoded images of each sample
_BATCH = 128
_TIMED = 16  # images
_NEIGHBOURS, _STRENGTH = 20, 1e-2  # k, and C of the linear probe
_MORE = "more"  # labelled images of val beside the sample of any images
_SPLIT_OF = {"train": "train", "val": "val", _MORE: "val"}  # of each sample


class CollapseError(TrainingError):
    """Training has collapsed: the representations no longer tell images apart."""

    repeats = True


class CollapseWatch:
    """Checks every tenth step whether the embeddings of its batch show a collapse, and raises if three in a row do."""

    def __init__(self, objective: Objective, method: str) -> None:
        self.objective, self.method = objective, method
        self._in_a_row, self._checked = 0, -1  # steps

    def see(self, step: int, embeddings: Tensor, features: Tensor | None = None, *, in_warmup: bool = False) -> None:
        """Look at the embeddings of a step, counted from 0 over the whole run; only at its first micro-batch.

        Args:
            step: The step.
            embeddings: What the objective looks at, (B, D).
            features: Those of the backbone, (B, F), if the embeddings are others: a projector can hide their collapse.
            in_warmup: Whether the learning rate still rises.
        """
        if step < _FIRST or step % _EVERY or len(embeddings) < 4 or step == self._checked:
            return
        self._checked = step
        if not bool(embeddings.isfinite().all()):
            return  # what watches the loss and the gradients names where that began
        found = None
        if not in_warmup or self.objective.watched_in_warmup:
            found = self.objective.find_collapse(embeddings.float())
        if found is None and features is not None:
            found = find_line(features.float())
        self._in_a_row = self._in_a_row + 1 if found else 0
        if found and self._in_a_row >= _IN_A_ROW:
            raise CollapseError(
                f"{self.method} has collapsed by step {step + 1}: {found}. {self.objective.remedy}, in a new run; "
                "--resume --monitor.stop false trains on regardless"
            )


class FeatureMonitor:
    """Measures the features of fixed samples: their rank and, with labels, two probes.

    The rank is that of images of val, with a label or without. The probes are fitted to images of train that have one,
    and scored on those of val.

    Args:
        data: The images, with classes or without.
        pipeline: Decodes and normalises them.
        images: Most images of each sample.
        seed: Of the samples.
        sets: Labels by the name of an image, where one may have several; those without any count as unlabelled.
    """

    def __init__(
        self,
        data: ImageData,
        pipeline: EvalPipeline,
        images: int,
        seed: int,
        sets: Mapping[str, tuple[str, ...]] | None = None,
    ) -> None:
        each = pipeline.channels * pipeline.size[0] * pipeline.size[1]
        most = max(2, min(images, _BYTES // each))
        self.pipeline, self.several = pipeline, bool(sets)
        masks = {name: _has_label(data.splits[name], data.classes, sets) for name in ("train", "val")}
        _, fitted = _draw(masks["train"], most, seed)
        ranked, scored = _draw(masks["val"], most, seed)
        rows = {"train": fitted, "val": ranked, _MORE: np.setdiff1d(scored, ranked)}
        self._splits = {name: _subset(data.splits[_SPLIT_OF[name]], each) for name, each in rows.items()}
        names = ordered_classes(set().union(*sets.values())) if sets else data.classes
        self._labels = {
            name: _matrix(split, sets, names) if sets else split.labels for name, split in self._splits.items()
        }
        self.classes, self._names = len(names), names
        self._labelled = {name: np.flatnonzero(masks[_SPLIT_OF[name]][each]) for name, each in rows.items()}
        seen = self._labels["train"]
        self._differ = bool((seen != seen[:1]).any())
        self._counts = {name: int(mask.sum()) for name, mask in masks.items()}  # of images with a label
        self.has_labels = self._differ and self._counts["val"] > 0
        self.rank_seconds = self.probe_seconds = 0.0  # that the last ranks and the last probes took, or may take
        self.val_features: Tensor | None = None  # of the last measure, (n, D)
        self._decoded: dict[str, MemoryDataset] = {}

    @property
    def columns(self) -> Collection[str]:
        """The columns of metrics.csv that :meth:`measure` fills."""
        return ["effective_rank", "rankme", *(self._probes if self.has_labels else ())]

    @property
    def _probes(self) -> tuple[str, str]:
        return ("val_knn_map", "val_linear_map") if self.several else ("val_knn", "val_linear")

    @property
    def missing_labels(self) -> str | None:
        """What labels lack for probes; None if the features are probed, or no image has a label."""
        train, val = (pluralize(self._counts[name], "labelled image") for name in ("train", "val"))
        if self.has_labels or not any(self._counts.values()):
            return None
        if self._counts["train"] > 1 and not self._differ:
            train += " with the same labels" if self.several else " of one class"
        return (
            f"the features are not probed: train has {train}, val has {val}. Probes need labelled images of two "
            "classes in train, and one in val"
        )

    @property
    def several_labels(self) -> str | None:
        """Which labels the features are probed with; None if an image has at most one."""
        if not self.several:
            return None
        images, labels = pluralize(sum(self._counts.values()), "image"), pluralize(self.classes, "label")
        return f"the features are probed on the {images} with labels, of {labels}: {first_ten(self._names)}"

    def measure(self, model: FastVisionTransformer, *, probes: bool) -> dict[str, float]:
        """Return the measures of a model in evaluation mode, in float32; with `probes` also their accuracy or mAP."""
        started = time.monotonic()
        val = self.val_features = self.features(model, "val")
        found = {"effective_rank": effective_rank(val), "rankme": rankme(val)}
        self.rank_seconds = time.monotonic() - started
        if not (probes and self.has_labels):
            return found
        started = time.monotonic()
        more = {_MORE: self.features(model, _MORE)} if len(self._splits[_MORE]) else {}
        fitted = self._labelled_of({"train": self.features(model, "train")})
        scored = self._labelled_of({"val": val, **more})
        (knn,) = probe_knn(fitted, {"val": scored}, self.classes, neighbours=(_NEIGHBOURS,))
        linear = next(fit_path(fitted, self.classes, [_STRENGTH]))
        self.probe_seconds = time.monotonic() - started
        return found | dict(zip(self._probes, (knn.accuracy["val"], linear.accuracy(scored)), strict=True))

    def _labelled_of(self, features: Mapping[str, Tensor]) -> Labelled:
        """Return the labelled images of samples, one after another, given the features of each, (n, D)."""
        x = [values.numpy()[self._labelled[name]] for name, values in features.items()]
        y = [self._labels[name][self._labelled[name]] for name in features]
        return Labelled(np.concatenate(x), np.concatenate(y))

    def estimate_seconds(self, model: FastVisionTransformer) -> float:
        """Estimate the seconds of the first measure with probes, which decodes the images, from some of them.

        The time to fit the probes is left out.
        """
        val = self._splits["val"]
        few = np.sort(_shuffled(len(val), 0)[: 2 * num_cores() + _TIMED])
        some, times = _subset(val, few), [time.monotonic()]
        some.fetch(range(len(some)))
        images = MemoryDataset(some, self.pipeline)
        times.append(time.monotonic())
        for _ in range(2):  # the first pass is slower
            self._features(model, images, _TIMED)
            times.append(time.monotonic())
        count = sum(len(split) for name, split in self._splits.items() if name == "val" or self.has_labels)
        return count * ((times[1] - times[0]) / len(some) + (times[3] - times[2]) / min(_TIMED, len(some)))

    def features(self, model: FastVisionTransformer, name: str) -> Tensor:
        """Return what a head would read, (n, D) on the CPU, for a sample."""
        return self._features(model, self.dataset(name), len(self._splits[name]))

    @torch.no_grad()
    def _features(self, model: FastVisionTransformer, images: MemoryDataset, count: int) -> Tensor:
        """Return those of the first images of a dataset, at most ``count``."""
        device, rows = next(model.parameters()).device, []
        with torch.autocast(device.type, enabled=False):
            for plan in OrderedSampler(min(count, len(images.pixels)), _BATCH):
                pixels = images[plan]["images"].to(device)
                rows.append(model(self.pipeline.normalise(pixels), "features").float().cpu())
        return torch.cat(rows)

    def dataset(self, name: str) -> MemoryDataset:
        """Return the decoded images of a sample: of `val`, any images; of `train`, labelled ones."""
        if name not in self._decoded:
            self._decoded[name] = MemoryDataset(self._splits[name], self.pipeline)
        return self._decoded[name]


def _has_label(
    split: Split, classes: Sequence[str], sets: Mapping[str, tuple[str, ...]] | None
) -> npt.NDArray[np.bool_]:
    """Return which images of a split have a label, (n,)."""
    if sets:
        return np.asarray([bool(sets.get(name)) for name in split.names], np.bool_)
    return np.isin(split.labels, [n for n, name in enumerate(classes) if name != UNLABELLED])


def _matrix(split: Split, sets: Mapping[str, tuple[str, ...]], names: Sequence[str]) -> npt.NDArray[np.int64]:
    """Return which image of a split has which label, 0 or 1, (n, K)."""
    return np.asarray([np.isin(names, sets.get(name, ())) for name in split.names], np.int64).reshape(-1, len(names))


def _shuffled(count: int, seed: int) -> npt.NDArray[np.int64]:
    """Return the numbers below a count in random order."""
    return generator(seed, stream="monitor").permutation(count)


def _draw(
    has_label: npt.NDArray[np.bool_], most: int, seed: int
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """Return random samples of all images (n,) and of those with a label, in their order.

    They overlap as far as they can: where every image has a label, they are the same.
    """
    order = _shuffled(len(has_label), seed)
    return np.sort(order[:most]), np.sort(order[has_label[order]][:most])


def _subset(split: Split, rows: npt.NDArray[np.int64]) -> Split:
    """Return some images of a split, (n,)."""
    if len(rows) == len(split):
        return split
    return replace(
        split,
        labels=split.labels[rows],
        names=tuple(split.names[n] for n in rows),
        paths=None if split.paths is None else [split.paths[n] for n in rows],
        arrays=None if split.arrays is None else split.arrays[rows],
    )
