"""How much frozen features know about classes: k nearest neighbours, a linear probe and few shots, in one report.

Each method fits on train, and is judged on val and, where there is one, test. n pictures, D features, K classes.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from vitreous.errors import ConfigError, DataError
from vitreous.evaluate import logistic
from vitreous.evaluate.fewshot import FewShot, probe_few_shot
from vitreous.evaluate.labelled import Labelled, labelled
from vitreous.evaluate.logistic import LinearProbe, probe_linear

__all__ = ["NEIGHBOURS", "SHOTS", "KnnScore", "ProbeReport", "probe_knn", "probe_report"]

NEIGHBOURS = (10, 20, 100, 200)
"""The k of DINO's evaluation (arXiv 2104.14294)."""

SHOTS = (1, 5, 10, 25)
"""Pictures per class in few-shot evaluation; 5 is the paper's figure 4, the others big_vision's."""

_SIMILARITIES = 2**25  # held at once: 128 MiB


@dataclass(frozen=True)
class KnnScore:
    """Accuracy of a vote of k neighbours: top-1 by split, in [0, 1]."""

    k: int
    accuracy: dict[str, float]


@dataclass(frozen=True, eq=False)
class ProbeReport:
    """What the probes found.

    Attributes:
        pictures: Number by split: those of ``train`` fit, the others are scored.
        classes: K.
        features: D.
        temperature: Of the neighbours' vote.
        knn: By rising k.
        linear: The linear probe.
        few_shot: By rising number of shots; empty where it was not asked for.
        whiten: Whether few-shot features were standardised.
        notes: What a reader of the scores should know, a line each.
    """

    pictures: dict[str, int]
    classes: int
    features: int
    temperature: float
    knn: tuple[KnnScore, ...]
    linear: LinearProbe
    few_shot: tuple[FewShot, ...]
    whiten: bool
    notes: tuple[str, ...]

    @property
    def judged_on(self) -> str:
        """The split that no choice was made by: ``test`` where there is one, else ``val``."""
        return "test" if "test" in self.pictures else "val"

    @property
    def best_knn(self) -> KnnScore:
        """The k that is best on val; the smallest of equals."""
        return max(self.knn, key=lambda score: score.accuracy["val"])

    def to_dict(self) -> dict[str, Any]:
        """Return the same as plain numbers, lists and dictionaries, ready for JSON; without the linear weights."""
        linear = self.linear
        return {
            "pictures": self.pictures,
            "classes": self.classes,
            "features": self.features,
            "judged_on": self.judged_on,
            "knn": {"temperature": self.temperature, "scores": [asdict(score) for score in self.knn]},
            "linear": {
                "C": linear.strength,
                "chosen_on": linear.chosen_on,
                "converged": linear.model.converged,
                "accuracy": linear.accuracy,
                "sweep": [
                    {"C": point.strength, "accuracy": point.accuracy, "val": point.val} for point in linear.sweep
                ],
            },
            "few_shot": {
                "whiten": self.whiten,
                "scores": [
                    asdict(each)
                    | {
                        "accuracy": {name: list(values) for name, values in each.accuracy.items()},
                        "mean": {name: each.mean(name) for name in each.accuracy},
                        "sd": {name: each.spread(name) for name in each.accuracy},
                    }
                    for each in self.few_shot
                ],
            },
            "notes": list(self.notes),
        }


def probe_report(
    train_features: npt.ArrayLike,
    train_labels: npt.ArrayLike,
    val_features: npt.ArrayLike,
    val_labels: npt.ArrayLike,
    *,
    test: tuple[npt.ArrayLike, npt.ArrayLike] | None = None,
    neighbours: Sequence[int] = NEIGHBOURS,
    temperature: float = 0.07,
    strengths: Sequence[float] = logistic.STRENGTHS,
    on_val: bool = False,
    shots: Sequence[int] = SHOTS,
    seeds: int = 5,
    whiten: bool = False,
    l2: float | None = None,
    device: str = "cpu",
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> ProbeReport:
    """Run all probes. The same arguments give the same report.

    Args:
        train_features: (n, D) to fit on.
        train_labels: (n,) classes from 0.
        val_features: (m, D) to score on.
        val_labels: (m,) classes from 0.
        test: Features and classes to score on further; with it val chooses the linear probe's C, without it a part of
            train does: see :func:`~vitreous.evaluate.logistic.probe_linear`.
        neighbours: Values of k; those above n count as n.
        temperature: Of the neighbours' vote, as :func:`probe_knn`.
        strengths: Values of C to sweep.
        on_val: Let val choose C without a test split too.
        shots: Pictures per class in few-shot evaluation; empty leaves it out.
        seeds: Draws of them.
        whiten: Standardise few-shot features, as :class:`~vitreous.evaluate.fewshot.LeastSquares`.
        l2: Few-shot regularisation; None chooses it, as :func:`~vitreous.evaluate.fewshot.probe_few_shot`.
        device: Where to compute neighbours and the linear probe: ``cpu``, or a CUDA device.
        progress: Called with (done, total) steps.

    Raises:
        DataError: If shapes do not fit, a split is empty, a label is no class, or train has one class only.
        NonFiniteError: If a feature is NaN or infinite; ConfigError: if a number is out of its range.
    """
    splits = {"train": (train_features, train_labels), "val": (val_features, val_labels)}
    scored = _checked(splits if test is None else splits | {"test": test})
    train = scored.pop("train")
    classes = 1 + max(int(data.labels.max()) for data in (train, *scored.values()))
    total, counter = 1 + len(strengths) + len(shots), itertools.count(1)

    def step() -> None:
        progress(next(counter), total)

    knn = probe_knn(train, scored, classes, neighbours=neighbours, temperature=temperature, device=device)
    step()
    linear = probe_linear(train, scored, classes, strengths=strengths, on_val=on_val, device=device, step=step)
    counter = itertools.count(2 + len(strengths))  # the sweep may end early
    few_shot = probe_few_shot(train, scored, classes, shots=shots, seeds=seeds, whiten=whiten, l2=l2, step=step)
    notes = _notes(train, scored, neighbours=neighbours, linear=linear, strengths=strengths, few_shot=few_shot)
    pictures = {name: len(data.labels) for name, data in {"train": train, **scored}.items()}
    return ProbeReport(pictures, classes, train.features.shape[1], temperature, knn, linear, few_shot, whiten, notes)


def probe_knn(
    train: Labelled,
    scored: Mapping[str, Labelled],
    classes: int,
    *,
    neighbours: Sequence[int] = NEIGHBOURS,
    temperature: float = 0.07,
    device: str = "cpu",
) -> tuple[KnnScore, ...]:
    """Let the k most similar training pictures vote, each with weight exp(cosine similarity / temperature).

    As DINO's evaluation (arXiv 2104.14294, `eval_knn.py`). Exact: every pair is compared.

    Args:
        train: Pictures that vote.
        scored: Splits to score, by name.
        classes: K, above every label.
        neighbours: Values of k, at least 1; those above n count as n.
        temperature: Above 0; infinity makes all votes equal. Of classes with equal votes the first wins.
        device: Where to compute.

    Raises:
        ConfigError: If a k or the temperature is out of its range.
    """
    if not neighbours or min(neighbours) < 1:
        raise ConfigError(f"k is {', '.join(map(str, neighbours)) or 'missing'}: give whole numbers of at least 1")
    if not temperature > 0:
        raise ConfigError(f"temperature is {temperature}, it must be a number above 0")
    ks = sorted({min(k, len(train.labels)) for k in neighbours})
    voters = _directions(train.features, device).T  # (D, n)
    labels = torch.from_numpy(train.labels).to(device)
    right = {name: dict.fromkeys(ks, 0) for name in scored}
    for name, data in scored.items():
        rows = max(1, _SIMILARITIES // len(train.labels))
        for first in range(0, len(data.labels), rows):
            queries = _directions(data.features[first : first + rows], device)  # (B, D)
            similarity, index = (queries @ voters).topk(ks[-1], dim=1)  # (B, k), most similar first
            # Relative to the most similar one: the same ratios, and no overflow at low temperatures.
            weight = ((similarity - similarity[:, :1]) / temperature).exp()
            votes = torch.zeros(len(queries), classes, device=device)
            for before, k in zip([0, *ks], ks, strict=False):
                votes.scatter_add_(1, labels[index[:, before:k]], weight[:, before:k])
                winners = votes.argmax(dim=1).cpu().numpy()
                right[name][k] += int((winners == data.labels[first : first + rows]).sum())
    return tuple(KnnScore(k, {name: right[name][k] / len(data.labels) for name, data in scored.items()}) for k in ks)


def _checked(splits: Mapping[str, tuple[npt.ArrayLike, npt.ArrayLike]]) -> dict[str, Labelled]:
    """Check features and labels of each split, and that the splits fit each other."""
    checked = {name: labelled(*arrays, name) for name, arrays in splits.items()}
    widths = {name: data.features.shape[1] for name, data in checked.items()}
    if len(set(widths.values())) > 1:
        raise DataError(f"the splits have different numbers of features, {widths}: embed all with one model")
    return checked


def _directions(features: npt.NDArray[np.float32], device: str) -> torch.Tensor:
    """Features (n, D) scaled to length 1; zeros stay zeros."""
    return torch.nn.functional.normalize(torch.from_numpy(features).to(device), dim=1)


def _notes(
    train: Labelled,
    scored: Mapping[str, Labelled],
    *,
    neighbours: Sequence[int],
    linear: LinearProbe,
    strengths: Sequence[float],
    few_shot: Sequence[FewShot],
) -> tuple[str, ...]:
    """What a reader of the scores should know."""
    notes = []
    for name, data in scored.items():
        unknown = int((~np.isin(data.labels, train.labels)).sum())
        if unknown:
            notes.append(f"{unknown:,} {name} pictures are of classes without a train picture: they count as wrong")
    if max(neighbours) > len(train.labels):
        notes.append(f"train has {len(train.labels):,} pictures: a larger k counts as that")
    if linear.chosen_on == "nothing":
        notes.append(f"no class has a second train picture to choose C by: C is {linear.strength:g}, unchosen")
    elif linear.chosen_on == "val":
        rest = "; test is untouched" if "test" in scored else ""
        notes.append(f"val chose the linear probe's C, so its score there is a little high{rest}")
    if linear.sweep and linear.strength in (min(strengths), max(strengths)) and len(strengths) > 1:
        notes.append(f"the chosen C, {linear.strength:g}, is at the end of the sweep: a value beyond may be better")
    if not linear.model.converged:
        notes.append("the linear probe did not converge: its score may be a little off")
    for each in few_shot:
        if each.short:
            share = f"{each.short:,} of {len(np.unique(train.labels)):,}"
            notes.append(f"{each.shots} shots: classes with fewer train pictures give all they have: {share}")
        if each.chosen_on == "nothing":
            notes.append(f"{each.shots} shots: all of train, which leaves none to choose l2: it is {each.l2:g}")
    return tuple(notes)
