"""Heads fitted to cached features: k nearest neighbours as a reference, a linear head, and an attentive probe.

The neighbours vote with the features of all training images, which a Vision Transformer has no place for. Their score
says what the features hold; the linear head, which has a place, is what may become the result.

Shapes: n images, F features, T tokens, D width, K classes.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from vitreous.errors import DataError
from vitreous.evaluate.features.labelled import Labelled, labelled
from vitreous.evaluate.features.logistic import STRENGTHS, LinearModel, fit_path, probe_linear
from vitreous.evaluate.features.probes import NEIGHBOURS, probe_knn, votes
from vitreous.evaluate.scoring.any_labels import scores_of
from vitreous.machine.threads import one_thread, one_thread_with_blas
from vitreous.train.finetune.stages.attentive import AttentiveProbe, attentive_config, fit_attentive, patch_means
from vitreous.train.finetune.stages.decisions import images_for_heads
from vitreous.train.finetune.stages.features import Features
from vitreous.train.finetune.stages.outcome import Candidate, Outcome, beats, mean_ap_of
from vitreous.train.finetune.trainable import class_weights
from vitreous.train.multilabel.losses import choose_loss
from vitreous.train.setup import Setup

__all__ = ["Heads"]

_SMALL = 2e8  # products of a pass over all features below which threads do not pay
_SMALL_IMAGE = 4096  # channels of all tokens of an image, likewise
_ABSENT = 20.0  # a class without training images has a bias so far below the lowest, instead of minus infinity
_TIMED, _QUERIES = 2048, 64  # images, and images among them that ask for neighbours, on which the heads are timed
_EVALUATIONS = 500  # of the loss in a sweep over C, assumed


@dataclass(eq=False)
class Heads:
    """The features that heads are fitted to, and the run that they are for."""

    setup: Setup
    train: Features
    val: Features
    left_out: int = 0  # training images that the budget has no time for

    def within(self, left: float | None) -> Heads:
        """Return heads on as many training images as the seconds left of a budget allow."""
        images = len(self.train.labels)
        return self.on(images if left is None else images_for_heads(images, self.seconds(), left))

    def on(self, count: int) -> Heads:
        """Return heads on so many training images, drawn at random; on all of them if there are no more."""
        images = len(self.train.labels)
        if count >= images:
            return self
        chosen = np.random.default_rng(self.setup.config.seed % 2**64).permutation(images)[:count]
        return Heads(self.setup, self.train.subset(np.sort(chosen)), self.val, images - count)

    def seconds(self) -> float:
        """Estimate the seconds of k-NN and of a sweep for a linear head from the time that a few images take."""
        classes, n, m = len(self.setup.data.classes), len(self.train.labels), len(self.val.labels)
        x = self.train.pooled[:_TIMED].to(self._device)  # (s, F)
        queries, weight = x[:_QUERIES], torch.zeros(x.shape[1], classes, device=self._device)
        voting = _time(lambda: (queries @ x.T).topk(min(max(NEIGHBOURS), len(x))).values)
        with self._threads(self.train.pooled.numel() * classes):
            fitting = _time(lambda: (x @ weight).log_softmax(1).T @ x)
        voting *= m * self.val.labels.ndim / len(queries)  # of several labels it is done twice
        return (voting + fitting * _EVALUATIONS) * n / len(x)

    def neighbours(self) -> Outcome:
        """Score k nearest neighbours; the result is a reference, not a model."""
        started = time.monotonic()
        train, val = self._labelled(self.train.pooled, "train"), self._val()
        classes, device = len(self.setup.data.classes), self._device
        scores = probe_knn(train, {"val": val}, classes, device=device)
        best = max(scores, key=lambda score: score.accuracy["val"])
        found: dict[str, Any]
        if val.several:
            given = votes(train, val.features, classes, [best.k], device=device)[best.k]
            found = mean_ap_of(torch.from_numpy(given), torch.from_numpy(val.labels))
        else:
            found = {"correct": round(best.accuracy["val"] * len(val.labels))}
        detail = f"k {best.k}, a reference: neighbours are not a model{self._left_out}"
        return Outcome("k-NN", time.monotonic() - started, detail, images=len(val.labels), **found)

    def linear(self) -> Outcome:
        """Fit a linear head, with a sweep over C."""
        if self.train.labels.ndim == 1 and len(np.unique(self.train.labels)) < 2:
            raise DataError("a linear head needs training images of at least two classes: give a larger --budget")
        return self._linear("linear", self.train.pooled, STRENGTHS)

    def linear_on(self, views: Sequence[Tensor], strength: float) -> Outcome:
        """Fit a linear head to all views (n, F) of the training images, with values of C near one of a single view."""
        # C weighs the sum of the losses against the weights: with k times the images it is k times as strong.
        return self._linear(f"linear, {len(views)} views", torch.cat(list(views)), (strength / len(views), strength))

    def _linear(self, stage: str, features: Tensor, strengths: Sequence[float]) -> Outcome:
        started, classes, val = time.monotonic(), len(self.setup.data.classes), self._val()
        train = self._labelled(features, "train")
        with self._threads(features.numel() * classes):
            probe = probe_linear(
                *(train, {"val": val}, classes),
                strengths=strengths,
                on_val=True,
                class_weight=self._weight,
                device=self._device,
            )
        weight, bias = _finite(probe.model)
        logits = torch.from_numpy(val.features) @ weight.T + bias
        tensors = {"head.weight": weight, "head.bias": bias}
        candidate = Candidate(self.setup.config.model, tensors, logits, torch.from_numpy(val.labels))
        facts = {
            "detail": f"C {probe.strength:g}{self._left_out}",
            "strength": probe.strength,
            "trained": _count(tensors),
        }
        return Outcome.of(stage, candidate, seconds=time.monotonic() - started, **facts)

    def attentive(self, strength: float, deadline: float | None = None) -> Outcome:
        """Train an attentive probe, from a linear head with this C on the mean of the patches, until a deadline."""
        started = time.monotonic()
        assert self.train.tokens is not None
        assert self.val.tokens is not None
        config, source = self.setup.config, self.setup.config.model
        probe = AttentiveProbe(source).to(self.setup.device)
        means = torch.cat(list(patch_means(probe, self.train.tokens)))
        with self._threads(means.numel() * source.num_classes):
            train, classes = self._labelled(means, "train"), source.num_classes
            fitted = next(fit_path(train, classes, [strength], self._device, self._weight))
        probe.initialise(*_finite(fitted), config.seed)
        labels = torch.from_numpy(self.val.labels)

        def better(logits: Tensor, other: Tensor) -> bool:
            return beats(config.select, scores_of(logits, labels), scores_of(other, labels))

        with one_thread() if self.train.tokens[0].numel() < _SMALL_IMAGE else contextlib.nullcontext():
            tensors, logits, epoch = fit_attentive(
                probe,
                self.train.tokens,
                self.train.labels,
                self.val.tokens,
                seed=config.seed,
                smoothing=config.label_smoothing,
                weight=self._weight,
                loss=choose_loss(config.labels, self.train.labels.ndim == 2),
                better=better,
                deadline=deadline,
            )
        candidate = Candidate(attentive_config(source), tensors, logits, labels)
        detail = f"one query over {self.train.tokens.shape[1] - probe.skip} patches, epoch {epoch}{self._left_out}"
        facts = {"detail": detail, "trained": _count(tensors)}
        return Outcome.of("attentive", candidate, seconds=time.monotonic() - started, **facts)

    @property
    def _left_out(self) -> str:
        """A clause of a stage's line: on how many of the training images it is, if the budget allows no more."""
        used = len(self.train.labels)
        return f", on the {used:,} of {used + self.left_out:,} images that the budget allows" if self.left_out else ""

    def _threads(self, products: int) -> contextlib.AbstractContextManager[None]:
        """Use one thread for many small products: threads that wait for each other are slower."""
        return one_thread_with_blas() if products < _SMALL else contextlib.nullcontext()

    @cached_property
    def _weight(self) -> npt.NDArray[np.float32] | None:
        """Weight of each class in the loss (K,): as in training, or the inverse of its share for balanced sampling."""
        config = self.setup.config
        kind = "inverse" if config.balanced_sampling else config.class_weights
        weight = class_weights(self.train.labels, len(self.setup.data.classes), kind)
        return None if weight is None else weight.numpy()

    @property
    def _device(self) -> str:
        return "cuda" if self.setup.device.type == "cuda" else "cpu"

    def _labelled(self, features: Tensor, name: str) -> Labelled:
        """Return features of the training images, in one view or several after one another, with their classes."""
        views = len(features) // len(self.train.labels)
        return labelled(features.numpy(), np.concatenate([self.train.labels] * views), name)

    def _val(self) -> Labelled:
        return labelled(self.val.pooled.numpy(), self.val.labels, "val")


def _count(tensors: Mapping[str, Tensor]) -> int:
    return sum(tensor.numel() for tensor in tensors.values())


def _time(compute: Callable[[], Tensor]) -> float:
    """Return the shorter time of two runs in seconds; that a number is read makes a GPU finish."""
    times = []
    for _ in range(2):
        started = time.perf_counter()
        compute().sum().item()
        times.append(time.perf_counter() - started)
    return min(times)


def _finite(model: LinearModel) -> tuple[Tensor, Tensor]:
    """Return weight and bias of a linear classifier, with a low bias for classes that it has never seen."""
    bias: npt.NDArray[np.float64] = model.bias.copy()
    seen = np.isfinite(bias)
    bias[~seen] = bias[seen].min() - _ABSENT
    return torch.from_numpy(model.weight).float(), torch.from_numpy(bias).float()
