"""The linear probe: multinomial logistic regression on frozen features, its regularisation chosen by a sweep.

The objective is scikit-learn's, so C means the same: sum of the losses + |weight|^2 / (2 C), bias free, features
standardised. L-BFGS runs in coordinates in which the Hessian at zero is the identity: features of a network are badly
conditioned, and without this weak regularisation takes thousands of steps.

n pictures, D features, K classes.
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

from vitreous.errors import ConfigError, DataError
from vitreous.evaluate.labelled import Labelled, accuracy

__all__ = ["STRENGTHS", "LinearModel", "LinearProbe", "SweepPoint", "fit_path", "probe_linear"]

STRENGTHS: tuple[float, ...] = tuple(10.0**power for power in range(-5, 4))
"""The swept values of C, strong regularisation first, so that each fit starts near its optimum from the one before."""

_UNSWEPT = 1e-2  # where no picture is left to choose C by
_HELD_OUT = 5  # one picture in so many chooses C, where val must stay unseen
_STEPS = 300
_PATIENCE = 2  # values of C in a row that are worse than the best, before weaker ones are not tried

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class LinearModel:
    """A fitted linear classifier on the features as they are, standardisation folded in.

    Attributes:
        weight: (K, D).
        bias: (K,); minus infinity for a class without a training picture.
        strength: C of scikit-learn: the inverse of the regularisation.
        converged: Whether the optimiser came to the optimum in the steps it has.
    """

    weight: Floats
    bias: Floats
    strength: float
    converged: bool

    def logits(self, features: npt.NDArray[np.float32]) -> Floats:
        """Return the logits (n, K) of features (n, D)."""
        return features @ self.weight.T + self.bias

    def accuracy(self, data: Labelled) -> float:
        """Return the share of right predictions, in [0, 1]."""
        return accuracy(self.logits(data.features).argmax(axis=1), data.labels)


@dataclass(frozen=True)
class SweepPoint:
    """One value of the sweep.

    Attributes:
        strength: C.
        accuracy: Top-1 on the pictures that choose, in [0, 1].
        val: Top-1 on the val split, for the same weights, in [0, 1].
    """

    strength: float
    accuracy: float
    val: float


@dataclass(frozen=True, eq=False)
class LinearProbe:
    """The outcome of a sweep.

    Attributes:
        strength: The chosen C.
        chosen_on: What chose it: ``val``, ``a fifth of train``, or ``nothing`` where train has one picture a class.
        sweep: Each value tried, in rising order of C; it ends early where weaker regularisation only does worse.
        accuracy: Top-1 by split, in [0, 1], of the model with the chosen C, fitted on all of train.
        model: That model.
    """

    strength: float
    chosen_on: str
    sweep: tuple[SweepPoint, ...]
    accuracy: dict[str, float]
    model: LinearModel


def probe_linear(
    train: Labelled,
    scored: Mapping[str, Labelled],
    classes: int,
    *,
    strengths: Sequence[float] = STRENGTHS,
    on_val: bool = False,
    device: str = "cpu",
    step: Callable[[], None] = lambda: None,
) -> LinearProbe:
    """Choose C, fit on all of train, and score.

    The pictures that choose are not those that the result is judged by: with a test split val chooses; without one
    val is what there is to judge by, so a fifth of train, of each class, chooses. The same fifth every time.

    Args:
        train: Pictures to fit.
        scored: ``val``, and ``test`` where there is one.
        classes: K, above every label.
        strengths: Values of C above 0; tried in rising order.
        on_val: Let val choose all the same: to compare with what was itself chosen by its score on val.
        device: Where to compute: ``cpu``, or a CUDA device.
        step: Called after each value.

    Raises:
        ConfigError: If a value of C is not above 0.
        DataError: If train has fewer than two classes.
    """
    strengths = sorted(strengths)
    if not strengths or not 0 < strengths[0] <= strengths[-1] < math.inf:
        raise ConfigError(f"C is {', '.join(map(str, strengths)) or 'missing'}: give values above 0")
    if on_val or "test" in scored:
        fitted, chooser, chosen_on = train, scored["val"], "val"
    else:
        held = _held_out(train.labels)
        fitted, chooser, chosen_on = train.chosen(np.flatnonzero(~held)), train.chosen(np.flatnonzero(held)), ""
        chosen_on = "a fifth of train" if held.any() else "nothing"
    best: LinearModel | None = None
    sweep: list[SweepPoint] = []
    for model in fit_path(fitted, classes, strengths, device) if chosen_on != "nothing" else ():
        sweep.append(SweepPoint(model.strength, model.accuracy(chooser), model.accuracy(scored["val"])))
        step()
        top = max(point.accuracy for point in sweep)
        if sweep[-1].accuracy == top and top not in [point.accuracy for point in sweep[:-1]]:
            best = model  # of equals the most regularised
        if all(point.accuracy < top for point in sweep[-_PATIENCE:]):
            break
    strength = best.strength if best else _UNSWEPT
    if best is None or chosen_on != "val":
        best = next(fit_path(train, classes, [strength], device))
    scores = {name: best.accuracy(data) for name, data in scored.items()}
    return LinearProbe(strength, chosen_on, tuple(sweep), scores, best)


def fit_path(train: Labelled, classes: int, strengths: Sequence[float], device: str = "cpu") -> Iterator[LinearModel]:
    """Yield the optimum for each C in turn, each started from the one before.

    Args:
        train: Pictures to fit.
        classes: K, above every label.
        strengths: Values of C.
        device: Where to compute: ``cpu``, or a CUDA device.

    Raises:
        DataError: If train has fewer than two classes.
    """
    present, labels = np.unique(train.labels, return_inverse=True)
    if len(present) < 2:
        raise DataError("a linear probe needs training pictures of at least two classes")
    mean = train.features.mean(axis=0, dtype=np.float64)
    std = train.features.std(axis=0, dtype=np.float64)
    std[std < 1e-7 * (1 + np.abs(mean))] = 1.0  # a constant feature says nothing; no division by zero
    z = ((train.features - mean.astype(np.float32)) / std.astype(np.float32)).astype(np.float32)
    problem = _Problem(torch.from_numpy(z).to(device), torch.from_numpy(labels).to(device), len(present))
    start = np.zeros((len(present), z.shape[1] + 1))
    for strength in strengths:
        start, converged = problem.solve(start, strength)
        weight, bias = np.zeros((classes, z.shape[1])), np.full(classes, -np.inf)
        weight[present] = start[:, :-1] @ problem.basis.T / std
        bias[present] = start[:, -1] - weight[present] @ mean
        yield LinearModel(weight, bias, strength, converged)


class _Problem:
    """Logistic regression on standardised features, rotated to their principal axes once for all C."""

    def __init__(self, z: Tensor, labels: Tensor, classes: int) -> None:
        spectrum, basis = torch.linalg.eigh((z.T @ z).cpu().double() / len(z))  # (D,) (D, D)
        self.x = z @ basis.to(z)  # (n, D), uncorrelated columns
        self.labels, self.classes = labels[:, None], classes
        self.basis: Floats = basis.numpy()
        self.spectrum: Floats = spectrum.clamp(min=0).numpy()

    def solve(self, start: Floats, strength: float) -> tuple[Floats, bool]:
        """Return weight and bias (K, D + 1) at the optimum, from a start of the same shape, and whether it is there."""
        penalty = 1 / (strength * len(self.x))
        # Without labels every probability is 1 / K, and the Hessian is that times the spectrum, plus the penalty.
        scale = np.append(1 / np.sqrt(self.spectrum / self.classes + penalty), math.sqrt(self.classes))

        def loss(flat: Floats) -> tuple[float, Floats]:
            w = flat.reshape(start.shape) * scale
            value, gradient = self._cross_entropy(w)
            value += penalty / 2 * float(np.square(w[:, :-1]).sum())
            gradient[:, :-1] += penalty * w[:, :-1]
            return value, (gradient * scale).ravel()

        # 1e-7 of the loss is what float32 logits can tell.
        options = {"maxiter": _STEPS, "ftol": 1e-7, "gtol": 1e-6}
        found = minimize(loss, (start / scale).ravel(), jac=True, method="L-BFGS-B", options=options)
        return found.x.reshape(start.shape) * scale, found.nit < _STEPS

    def _cross_entropy(self, w: Floats) -> tuple[float, Floats]:
        """Return the mean loss in nats, and its gradient (K, D + 1)."""
        both = torch.from_numpy(w).to(self.x)
        scores = torch.addmm(both[:, -1], self.x, both[:, :-1].T).log_softmax(dim=1)  # (n, K)
        value = -float(scores.gather(1, self.labels).double().mean())
        residual = scores.exp_().scatter_add_(1, self.labels, -torch.ones_like(self.labels, dtype=scores.dtype))
        gradient = torch.cat([residual.T @ self.x, residual.sum(dim=0)[:, None]], dim=1) / len(self.x)
        return value, gradient.cpu().double().numpy()


def _held_out(labels: npt.NDArray[np.int64]) -> npt.NDArray[np.bool_]:
    """Which pictures choose C: a fifth of each class, at least one where it has two, drawn with seed 0."""
    random = np.random.default_rng(0)
    held = np.zeros(len(labels), np.bool_)
    for label in np.unique(labels):
        own = random.permutation(np.flatnonzero(labels == label))
        held[own[: max(len(own) // _HELD_OUT, int(len(own) > 1))]] = True
    return held
