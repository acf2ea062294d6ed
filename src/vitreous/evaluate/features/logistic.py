"""The linear probe: multinomial logistic regression on frozen features, with a sweep over the regularisation.

The objective is scikit-learn's, so C has the same meaning: sum of the losses, each times the weight of its class, +
``|weight|^2 / (2 C)``, on standardised features, with an unregularised bias. L-BFGS runs in coordinates in which the
Hessian at zero is the identity, because network features are badly conditioned: without this, weak regularisation takes
thousands of steps.

Where an image may have several labels there is one logistic regression for each label, with the same C.

n images, D features, K classes or labels.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from scipy.optimize import minimize
from torch import Tensor
from torch.nn import functional as F

from vitreous.errors import ConfigError, DataError
from vitreous.evaluate.features.labelled import Labelled, accuracy
from vitreous.evaluate.multilabel.metrics import mean_average_precision

__all__ = ["STRENGTHS", "LinearModel", "LinearProbe", "SweepPoint", "fit_path", "probe_linear"]

STRENGTHS: tuple[float, ...] = tuple(10.0**power for power in range(-5, 4))
"""Values of C in the sweep, strongest regularisation first: each fit starts from the optimum of the previous one."""

_DEFAULT_C = 1e-2  # without a second image per class to choose C
_FOLD = 5  # 1 / fraction of train that chooses C without a test split
_MAX_STEPS = 300
_PATIENCE = 2  # consecutive values of C worse than the best after which the sweep ends

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class LinearModel:
    """A fitted linear classifier on raw features, with the standardisation folded in."""

    weight: Floats  # (K, D)
    bias: Floats  # (K,); minus infinity for a class without training images, finite for a label
    strength: float  # C of scikit-learn, the inverse regularisation strength
    converged: bool  # whether the optimiser reached the optimum within its step limit

    def logits(self, features: npt.NDArray[np.float32]) -> Floats:
        """Return the logits (n, K) of features (n, D)."""
        return features @ self.weight.T + self.bias

    def accuracy(self, data: Labelled) -> float:
        """Return the share of correct predictions, in [0, 1]; of several labels mAP."""
        if data.several:
            return mean_average_precision(self.logits(data.features), data.labels)
        return accuracy(self.logits(data.features).argmax(axis=1), data.labels)


@dataclass(frozen=True)
class SweepPoint:
    """One value of the sweep."""

    strength: float  # C
    accuracy: float  # top-1 on the images that choose C, in [0, 1]; of several labels mAP, here and below
    val: float  # top-1 of the same weights on val, in [0, 1]


@dataclass(frozen=True, eq=False)
class LinearProbe:
    """The result of a sweep."""

    strength: float  # the chosen C
    chosen_on: str  # images that chose it: `val`, `a fifth of train`, or `nothing` if train has one image per class
    sweep: tuple[SweepPoint, ...]  # in rising order of C, until weaker regularisation only does worse
    accuracy: dict[str, float]  # top-1 of `model` by split, in [0, 1]
    model: LinearModel  # the model with the chosen C


def probe_linear(
    train: Labelled,
    scored: Mapping[str, Labelled],
    classes: int,
    *,
    strengths: Sequence[float] = STRENGTHS,
    on_val: bool = False,
    class_weight: npt.NDArray[np.float32] | None = None,
    device: str = "cpu",
    step: Callable[[], None] = lambda: None,
) -> LinearProbe:
    """Choose C, fit on all of train, and score.

    C is never chosen on the split that judges the result. With a test split val chooses C. Without one val judges, so a
    fixed fifth of train, stratified by class, chooses C, and the model is then fitted on all of train. `on_val` chooses
    on val even then, to compare with a model that was selected on val as well. `class_weight` (K,) holds what each
    class weighs in the loss, 1 on average over the training images; None weighs all equally. Of several labels it
    is what the images with a label weigh.
    """
    strengths = sorted(strengths)
    if not strengths or not 0 < strengths[0] <= strengths[-1] < math.inf:
        raise ConfigError(f"C is {', '.join(map(str, strengths)) or 'missing'}: all values must be above 0")
    if on_val or "test" in scored:
        fitted, chooser, chosen_on = train, scored["val"], "val"
    else:
        held_out = _hold_out(train.labels)
        fitted, chooser = train.subset(np.flatnonzero(~held_out)), train.subset(np.flatnonzero(held_out))
        chosen_on = "a fifth of train" if held_out.any() else "nothing"
    best: LinearModel | None = None
    sweep: list[SweepPoint] = []
    for model in fit_path(fitted, classes, strengths, device, class_weight) if chosen_on != "nothing" else ():
        sweep.append(SweepPoint(model.strength, model.accuracy(chooser), model.accuracy(scored["val"])))
        step()
        top = max(point.accuracy for point in sweep)
        if sweep[-1].accuracy == top and top not in [point.accuracy for point in sweep[:-1]]:
            best = model  # the strongest regularisation among equals
        if all(point.accuracy < top for point in sweep[-_PATIENCE:]):
            break
    strength = best.strength if best else _DEFAULT_C
    if best is None or chosen_on != "val":
        best = next(fit_path(train, classes, [strength], device, class_weight))
    scores = {name: best.accuracy(data) for name, data in scored.items()}
    return LinearProbe(strength, chosen_on, tuple(sweep), scores, best)


def fit_path(
    train: Labelled,
    classes: int,
    strengths: Sequence[float],
    device: str = "cpu",
    class_weight: npt.NDArray[np.float32] | None = None,
) -> Iterator[LinearModel]:
    """Yield the optimum for each C in turn, each fit started from the previous optimum."""
    mean = train.features.mean(axis=0, dtype=np.float64)
    std = train.features.std(axis=0, dtype=np.float64)
    std[std < 1e-7 * (1 + np.abs(mean))] = 1.0  # constant features: avoid a division by zero
    z = ((train.features - mean.astype(np.float32)) / std.astype(np.float32)).astype(np.float32)
    pose = _several if train.several else _one_class
    problem, present, unfitted = pose(torch.from_numpy(z).to(device), train.labels, classes, class_weight)
    start = np.zeros((len(present), z.shape[1] + 1))
    for strength in strengths:
        start, converged = problem.solve(start, strength)
        weight, bias = np.zeros((classes, z.shape[1])), unfitted.copy()
        weight[present] = start[:, :-1] @ problem.basis.T / std
        bias[present] = start[:, -1] - weight[present] @ mean
        yield LinearModel(weight, bias, strength, converged)


def _one_class(
    z: Tensor, labels: npt.NDArray[np.int64], classes: int, class_weight: npt.NDArray[np.float32] | None
) -> tuple[_Problem, npt.NDArray[np.int64], Floats]:
    """Return the problem of images with one class, the classes in it, and the bias of the others, (K,)."""
    present, places = np.unique(labels, return_inverse=True)
    if len(present) < 2:
        raise DataError("a linear probe needs training images of at least two classes")
    weights = None if class_weight is None else torch.from_numpy(class_weight[labels]).to(z.device)[:, None]
    problem = _Problem(z, torch.from_numpy(places).to(z.device)[:, None], len(present), weights)
    return problem, present, np.full(classes, -np.inf)


def _several(
    z: Tensor, labels: npt.NDArray[np.int64], classes: int, class_weight: npt.NDArray[np.float32] | None
) -> tuple[_Problem, npt.NDArray[np.int64], Floats]:
    """Return the same of images with several labels, (n, K): those that all or none have are not in the problem."""
    counts, n = labels.sum(axis=0), len(labels)
    present = np.flatnonzero((counts > 0) & (counts < n))
    if not len(present):
        raise DataError("a linear probe needs a label that some training images have and others do not")
    has = torch.from_numpy(labels[:, present]).to(z)
    weights = None if class_weight is None else torch.from_numpy(class_weight[present]).to(z)
    return _LabelsProblem(z, has, 4, weights), present, np.log((counts + 0.5) / (n - counts + 0.5))


class _Problem:
    """Logistic regression on standardised features, rotated to their principal axes.

    Args:
        z: Standardised features, (n, D).
        labels: Of the images, (n, 1).
        classes: Their number K: at zero, where every probability is 1 / K, the Hessian is about spectrum / K + penalty.
        weights: Of the images, (n, 1).
    """

    def __init__(self, z: Tensor, labels: Tensor, classes: int, weights: Tensor | None) -> None:
        spectrum, basis = torch.linalg.eigh((z.T @ z).cpu().double() / len(z))  # (D,) (D, D)
        self.x = z @ basis.to(z)  # (n, D), uncorrelated columns
        self.labels, self.classes, self.weights = labels, classes, weights
        self.basis: Floats = basis.numpy()
        self.spectrum: Floats = spectrum.clamp(min=0).numpy()

    def solve(self, start: Floats, strength: float) -> tuple[Floats, bool]:
        """Return the optimum, weight and bias (K, D + 1) as `start`, and whether the optimiser converged."""
        penalty = 1 / (strength * len(self.x))
        scale = np.append(1 / np.sqrt(self.spectrum / self.classes + penalty), math.sqrt(self.classes))

        def loss(flat: Floats) -> tuple[float, Floats]:
            w = flat.reshape(start.shape) * scale
            value, gradient = self._cross_entropy(w)
            value += penalty / 2 * float(np.square(w[:, :-1]).sum())
            gradient[:, :-1] += penalty * w[:, :-1]
            return value, (gradient * scale).ravel()

        # Float32 logits resolve about 1e-7 of the loss.
        options = {"maxiter": _MAX_STEPS, "ftol": 1e-7, "gtol": 1e-6}
        result = minimize(loss, (start / scale).ravel(), jac=True, method="L-BFGS-B", options=options)
        return result.x.reshape(start.shape) * scale, result.nit < _MAX_STEPS

    def _cross_entropy(self, w: Floats) -> tuple[float, Floats]:
        """Return the mean loss, and its gradient (K, D + 1)."""
        both = torch.from_numpy(w).to(self.x)
        scores = torch.addmm(both[:, -1], self.x, both[:, :-1].T).log_softmax(dim=1)  # (n, K)
        losses = -scores.gather(1, self.labels)  # (n, 1)
        residual = scores.exp_().scatter_add_(1, self.labels, -torch.ones_like(losses))
        if self.weights is not None:
            losses, residual = losses * self.weights, residual.mul_(self.weights)
        value = float(losses.double().mean())
        gradient = torch.cat([residual.T @ self.x, residual.sum(dim=0)[:, None]], dim=1) / len(self.x)
        return value, gradient.cpu().double().numpy()


class _LabelsProblem(_Problem):
    """A logistic regression for each label, whose Hessian at zero is spectrum / 4 + penalty.

    Labels are (n, K) of 0 and 1, weights those of the images with a label, (K,).
    """

    def _cross_entropy(self, w: Floats) -> tuple[float, Floats]:
        both = torch.from_numpy(w).to(self.x)
        scores = torch.addmm(both[:, -1], self.x, both[:, :-1].T)  # (n, K)
        factors = 1 if self.weights is None else 1 + self.labels * (self.weights - 1)
        losses = factors * F.softplus(torch.where(self.labels > 0, -scores, scores))
        residual = factors * (scores.sigmoid() - self.labels)
        value = float(losses.double().sum()) / len(self.x)  # of all labels, each of which is a problem of its own
        gradient = torch.cat([residual.T @ self.x, residual.sum(dim=0)[:, None]], dim=1) / len(self.x)
        return value, gradient.cpu().double().numpy()


def _hold_out(labels: npt.NDArray[np.int64]) -> npt.NDArray[np.bool_]:
    """Select a fifth of each class with seed 0, at least one of two images; a fifth of images with several labels."""
    random = np.random.default_rng(0)
    held_out = np.zeros(len(labels), np.bool_)
    if labels.ndim == 2:
        held_out[random.permutation(len(labels))[: len(labels) // _FOLD]] = True
        return held_out
    for label in np.unique(labels):
        rows = random.permutation(np.flatnonzero(labels == label))
        held_out[rows[: max(len(rows) // _FOLD, int(len(rows) > 1))]] = True
    return held_out
