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
from vitreous.data.sources.listing import UNLABELLED, ordered_classes
from vitreous.data.sources.opening import ImageData, Split
from vitreous.errors import TrainingError
from vitreous.evaluate.features.labelled import Labelled
from vitreous.evaluate.features.logistic import fit_path
from vitreous.evaluate.features.probes import probe_knn
from vitreous.machine.cores import num_cores
from vitreous.train.pretrain.objectives.base import Objective
from vitreous.train.pretrain.objectives.spread import effective_rank, find_line, rankme

__all__ = ["CollapseError", "CollapseWatch", "FeatureMonitor"]

_EVERY, _FIRST = 10, 20  # steps between two checks, and the first one that is checked
_IN_A_ROW = 3  # checks that must agree
_BYTES = 2**28  # of the decoded images that are measured
_BATCH = 128
_TIMED = 16  # images
_NEIGHBOURS, _STRENGTH = 20, 1e-2  # k, and C of the linear probe


class CollapseError(TrainingError):
    """Training has collapsed: the representations no longer tell images apart."""

    repeats = True


class CollapseWatch:
    """Checks every tenth step whether the embeddings of its batch show a collapse, and raises if three in a row do."""

    def __init__(self, objective: Objective, method: str) -> None:
        self.objective, self.method = objective, method
        self._in_a_row, self._checked = 0, -1  # steps

    def see(self, step: int, embeddings: Tensor, features: Tensor | None = None) -> None:
        """Look at the embeddings of a step, counted from 0 over the whole run; only at its first micro-batch.

        Args:
            step: The step.
            embeddings: What the objective looks at, (B, D).
            features: Those of the backbone, (B, F), if the embeddings are others: a projector can hide their collapse.
        """
        if step < _FIRST or step % _EVERY or len(embeddings) < 4 or step == self._checked:
            return
        self._checked = step
        if not bool(embeddings.isfinite().all()):
            return  # what watches the loss and the gradients names where that began
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
    """Measures the features of a fixed sample of each split: their rank and, with labels, two probes.

    Args:
        data: The images, with classes or without.
        pipeline: Decodes and normalises them.
        images: At most so many of each split are measured.
        seed: Of the sample.
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
        self._splits = {name: _sample(data.splits[name], most, seed) for name in ("train", "val")}
        if sets:
            names = ordered_classes(set().union(*sets.values()))
            self._labels = {name: _matrix(split, sets, names) for name, split in self._splits.items()}
            rows = {name: labels.any(axis=1) for name, labels in self._labels.items()}
        else:
            names = data.classes
            named = [n for n, name in enumerate(names) if name != UNLABELLED]
            self._labels = {name: split.labels for name, split in self._splits.items()}
            rows = {name: np.isin(labels, named) for name, labels in self._labels.items()}
        self.classes = len(names)
        self._labelled = {name: np.flatnonzero(each) for name, each in rows.items()}
        seen = self._labels["train"][self._labelled["train"]]
        self.has_labels = bool((seen != seen[:1]).any()) and len(self._labelled["val"]) > 0
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

    def measure(self, model: FastVisionTransformer, *, probes: bool) -> dict[str, float]:
        """Return the measures of a model in evaluation mode, in float32; with `probes` also their accuracy or mAP."""
        started = time.monotonic()
        val = self.val_features = self.features(model, "val")
        found = {"effective_rank": effective_rank(val), "rankme": rankme(val)}
        self.rank_seconds = time.monotonic() - started
        if not (probes and self.has_labels):
            return found
        started = time.monotonic()
        train = self.features(model, "train")
        rows = self._labelled
        fitted, scored = (
            Labelled(features.numpy()[rows[name]], self._labels[name][rows[name]])
            for name, features in (("train", train), ("val", val))
        )
        (knn,) = probe_knn(fitted, {"val": scored}, self.classes, neighbours=(_NEIGHBOURS,))
        linear = next(fit_path(fitted, self.classes, [_STRENGTH]))
        self.probe_seconds = time.monotonic() - started
        return found | dict(zip(self._probes, (knn.accuracy["val"], linear.accuracy(scored)), strict=True))

    def estimate_seconds(self, model: FastVisionTransformer) -> float:
        """Estimate the seconds of the first measure with probes, which decodes the images, from some of them.

        The time to fit the probes is left out.
        """
        some, times = _sample(self._splits["val"], 2 * num_cores() + _TIMED, 0), [time.monotonic()]
        some.fetch(range(len(some)))
        images = MemoryDataset(some, self.pipeline)
        times.append(time.monotonic())
        for _ in range(2):  # the first pass is slower
            self._features(model, images, _TIMED)
            times.append(time.monotonic())
        count = len(self._splits["val"]) + (len(self._splits["train"]) if self.has_labels else 0)
        return count * ((times[1] - times[0]) / len(some) + (times[3] - times[2]) / min(_TIMED, len(some)))

    def features(self, model: FastVisionTransformer, name: str) -> Tensor:
        """Return what a head would read, (n, D) on the CPU, for the sample of a split."""
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
        """Return the decoded images of the sample of a split."""
        if name not in self._decoded:
            self._decoded[name] = MemoryDataset(self._splits[name], self.pipeline)
        return self._decoded[name]


def _matrix(split: Split, sets: Mapping[str, tuple[str, ...]], names: Sequence[str]) -> npt.NDArray[np.int64]:
    """Return which image of a split has which label, 0 or 1, (n, K)."""
    return np.asarray([np.isin(names, sets.get(name, ())) for name in split.names], np.int64).reshape(-1, len(names))


def _sample(split: Split, most: int, seed: int) -> Split:
    """Return a random sample of a split, in its order."""
    if len(split) <= most:
        return split
    rows = np.sort(generator(seed, stream="monitor").permutation(len(split))[:most])
    return replace(
        split,
        labels=split.labels[rows],
        names=tuple(split.names[n] for n in rows),
        paths=None if split.paths is None else [split.paths[n] for n in rows],
        arrays=None if split.arrays is None else split.arrays[rows],
    )
