"""Evaluation of frozen features by k nearest neighbours, a linear probe and few-shot regression, in one report.

Each method is fitted on train and scored on val and, if there is one, on test. Labels (n, K) of 0 and 1 are several of
an image, or none: the score is then mAP in place of top-1. n images, D features, K classes or labels.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from vitreous.errors import ConfigError, DataError
from vitreous.evaluate.features import logistic
from vitreous.evaluate.features.fewshot import FewShot, probe_few_shot
from vitreous.evaluate.features.labelled import Labelled, accuracy, labelled
from vitreous.evaluate.features.logistic import LinearProbe, probe_linear
from vitreous.evaluate.multilabel.metrics import mean_average_precision

__all__ = ["NEIGHBOURS", "SHOTS", "KnnScore", "ProbeReport", "probe_knn", "probe_report", "votes"]

NEIGHBOURS = (10, 20, 100, 200)
"""Values of k in DINO's evaluation (arXiv 2104.14294)."""

SHOTS = (1, 5, 10, 25)
"""Images per class in few-shot evaluation: 5 as in the paper's figure 4, the others as in big_vision."""

_MAX_SIMILARITIES = 2**25  # or labels, in memory at once: 128 MiB


@dataclass(frozen=True)
class KnnScore:
    """Top-1 accuracy, or mAP of several labels, of k nearest neighbours by split, in [0, 1]."""

    k: int
    accuracy: dict[str, float]


@dataclass(frozen=True, eq=False)
class ProbeReport:
    """Scores of all probes."""

    images: dict[str, int]  # number of images by split
    classes: int  # K
    features: int  # D
    temperature: float  # temperature of the neighbours' vote
    knn: tuple[KnnScore, ...]  # scores in order of k
    linear: LinearProbe
    few_shot: tuple[FewShot, ...]  # scores in order of the number of shots; may be empty
    whiten: bool  # whether few-shot features were standardised
    notes: tuple[str, ...]  # remarks on how to read the scores
    measure: str = "accuracy"  # what the scores are: `mean_ap` of several labels

    @property
    def judged_on(self) -> str:
        """The split to judge by: `test` if there is one, otherwise `val`."""
        return "test" if "test" in self.images else "val"

    @property
    def best_knn(self) -> KnnScore:
        """The best k on val; the smallest among equals."""
        return max(self.knn, key=lambda score: score.accuracy["val"])

    def to_dict(self) -> dict[str, Any]:
        """Return plain values for JSON, without the weights of the linear probe."""
        linear, measure = self.linear, self.measure
        sweep = [{"C": each.strength, measure: each.accuracy, "val": each.val} for each in linear.sweep]
        return {
            "pictures": self.images,
            "classes": self.classes,
            "features": self.features,
            "judged_on": self.judged_on,
            "knn": {
                "temperature": self.temperature,
                "scores": [{"k": each.k, measure: each.accuracy} for each in self.knn],
            },
            "linear": {
                "C": linear.strength,
                "chosen_on": linear.chosen_on,
                "converged": linear.model.converged,
                measure: linear.accuracy,
                "sweep": sweep,
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
    """Run all probes on features (n, D) and labels (n,) or (n, K) of each split. The result is deterministic.

    :func:`probe_knn` describes `neighbours` and `temperature`,
    :func:`~vitreous.evaluate.features.logistic.probe_linear` `strengths` and `on_val`,
    :func:`~vitreous.evaluate.features.fewshot.probe_few_shot` the options after them; empty `shots` skip the latter,
    which needs one class of each image.
    """
    splits = {"train": (train_features, train_labels), "val": (val_features, val_labels)}
    scored = _checked(splits if test is None else splits | {"test": test})
    train = scored.pop("train")
    if train.several and shots:
        raise DataError("few-shot regression needs one class of each image: leave out the shots")
    classes = _count_classes(train, scored)
    total, counter = 1 + len(strengths) + len(shots), itertools.count(1)

    def step() -> None:
        progress(next(counter), total)

    knn = probe_knn(train, scored, classes, neighbours=neighbours, temperature=temperature, device=device)
    step()
    linear = probe_linear(train, scored, classes, strengths=strengths, on_val=on_val, device=device, step=step)
    counter = itertools.count(2 + len(strengths))  # the sweep may have ended early
    few_shot: tuple[FewShot, ...] = ()
    if shots:
        few_shot = probe_few_shot(train, scored, classes, shots=shots, seeds=seeds, whiten=whiten, l2=l2, step=step)
    notes = _notes(train, scored, neighbours=neighbours, linear=linear, strengths=strengths, few_shot=few_shot)
    counts = {name: len(data.labels) for name, data in {"train": train, **scored}.items()}
    return ProbeReport(
        counts,
        classes,
        train.features.shape[1],
        temperature,
        knn,
        linear,
        few_shot,
        whiten,
        notes,
        "mean_ap" if train.several else "accuracy",
    )


def probe_knn(
    train: Labelled,
    scored: Mapping[str, Labelled],
    classes: int,
    *,
    neighbours: Sequence[int] = NEIGHBOURS,
    temperature: float = 0.07,
    device: str = "cpu",
) -> tuple[KnnScore, ...]:
    """Classify by the k most similar training images, weighted by exp(cosine similarity / temperature).

    Of several labels, the value of each is its share of the votes.

    This is DINO's evaluation (arXiv 2104.14294, `eval_knn.py`), with an exact search. A k in `neighbours` larger than n
    is reduced to n. A temperature of infinity makes all votes equal. The first of classes with equal votes wins.
    """
    if not neighbours or min(neighbours) < 1:
        raise ConfigError(f"k is {', '.join(map(str, neighbours)) or 'missing'}: it must be an integer of at least 1")
    if not temperature > 0:
        raise ConfigError(f"temperature is {temperature}, it must be a number above 0")
    ks = sorted({min(k, len(train.labels)) for k in neighbours})
    score = mean_average_precision if train.several else accuracy
    scores: dict[int, dict[str, float]] = {k: {} for k in ks}
    for name, data in scored.items():
        for k, given in votes(train, data.features, classes, ks, temperature=temperature, device=device).items():
            scores[k][name] = score(given, data.labels)
    return tuple(KnnScore(k, scores[k]) for k in ks)


def votes(
    train: Labelled,
    features: npt.NDArray[np.float32],
    classes: int,
    ks: Sequence[int],
    *,
    temperature: float = 0.07,
    device: str = "cpu",
) -> dict[int, npt.NDArray[Any]]:
    """Return how the nearest training images vote on features (m, D): for each k the winners (m,) of the classes (K).

    Of several labels, the share of the votes that each has, (m, K). Arguments otherwise as :func:`probe_knn`; ks ascend
    and are at most n.
    """
    voters = _directions(train.features, device).T  # (D, n)
    labels = torch.from_numpy(train.labels).to(device)
    if train.several:
        labels = labels.float()
    found: dict[int, list[Tensor]] = {k: [] for k in ks}
    steps = list(zip([0, *ks], ks, strict=False))
    of_query = len(train.labels)  # similarities, or labels of its neighbours
    if train.several:
        of_query = max(of_query, classes * max(k - before for before, k in steps))
    rows = max(1, _MAX_SIMILARITIES // of_query)
    for first in range(0, len(features), rows):
        queries = _directions(features[first : first + rows], device)  # (B, D)
        similarity, index = (queries @ voters).topk(ks[-1], dim=1)  # (B, k), most similar first
        # Subtract the maximum: the ratios stay the same, and low temperatures do not overflow.
        weight = ((similarity - similarity[:, :1]) / temperature).exp()
        total = torch.zeros(len(queries), classes, device=device)
        for before, k in steps:
            if train.several:
                total += torch.einsum("bk,bkl->bl", weight[:, before:k], labels[index[:, before:k]])
                found[k].append((total / weight[:, :k].sum(dim=1, keepdim=True)).cpu())  # shares in [0, 1]
            else:
                total.scatter_add_(1, labels[index[:, before:k]], weight[:, before:k])
                found[k].append(total.argmax(dim=1).cpu())
    return {k: torch.cat(parts).numpy() for k, parts in found.items()}


def _count_classes(train: Labelled, scored: Mapping[str, Labelled]) -> int:
    if train.several:
        return train.labels.shape[1]
    return 1 + max(int(data.labels.max()) for data in (train, *scored.values()))


def _checked(splits: Mapping[str, tuple[npt.ArrayLike, npt.ArrayLike]]) -> dict[str, Labelled]:
    checked = {name: labelled(*arrays, name) for name, arrays in splits.items()}
    widths = {name: data.features.shape[1] for name, data in checked.items()}
    if len({data.labels.shape[1:] for data in checked.values()}) > 1:
        raise DataError("the splits have different labels: give those of each image (n,), or as many columns (n, K)")
    if len(set(widths.values())) > 1:
        raise DataError(f"the splits have different numbers of features, {widths}: compute all with the same model")
    return checked


def _directions(features: npt.NDArray[np.float32], device: str) -> torch.Tensor:
    """Return features (n, D) scaled to norm 1; zeros stay zeros."""
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
    notes = []
    for name, data in scored.items():
        if train.several:
            missing = int((data.labels.any(axis=0) & ~train.labels.any(axis=0)).sum())
            notes += [f"{missing:,} labels of {name} are on no train image: nothing tells which have them"] * (
                missing > 0
            )
        elif unknown := int((~np.isin(data.labels, train.labels)).sum()):
            notes.append(f"{unknown:,} {name} images are of classes without a train image: they count as wrong")
    if max(neighbours) > len(train.labels):
        notes.append(f"train has {len(train.labels):,} images: a larger k is reduced to that")
    if linear.chosen_on == "nothing":
        notes.append(f"no class has a second train image to choose C: the default C of {linear.strength:g} is used")
    elif linear.chosen_on == "val":
        test_note = "; test is untouched" if "test" in scored else ""
        notes.append(f"val chose the linear probe's C, so its score there is slightly optimistic{test_note}")
    if linear.sweep and linear.strength in (min(strengths), max(strengths)) and len(strengths) > 1:
        notes.append(f"the chosen C, {linear.strength:g}, is at the end of the sweep: a value beyond it may be better")
    if not linear.model.converged:
        notes.append("the linear probe did not converge: its score may be slightly off")
    for each in few_shot:
        if each.short:
            share = f"{each.short:,} of {len(np.unique(train.labels)):,}"
            notes.append(f"{each.shots} shots: classes with fewer train images use all they have: {share}")
        if each.chosen_on == "nothing":
            notes.append(f"{each.shots} shots are all of train, which leaves none to choose l2: it is {each.l2:g}")
    return tuple(notes)
