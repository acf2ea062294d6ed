"""Probes of several labels against scikit-learn, and against the sums written out."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import average_precision_score
from sklearn.preprocessing import StandardScaler
from torch.overrides import TorchFunctionMode

from vitreous.errors import DataError
from vitreous.evaluate.features.labelled import labelled
from vitreous.evaluate.features.logistic import fit_path
from vitreous.evaluate.features.probes import probe_knn, probe_report, votes


def data(n: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Return features of very different scales, and four labels that depend on them, the last of which is rare."""
    rng, map_rng = np.random.default_rng(seed), np.random.default_rng(42)
    features = rng.standard_normal((n, 8)) * 10.0 ** np.linspace(-2, 2, 8) + 3
    directions = map_rng.standard_normal((8, 4)) / 10.0 ** np.linspace(-2, 2, 8)[:, None]
    offset = np.array([0.0, 1.0, -1.0, -4.0])
    chances = (features - 3) @ directions + offset + rng.standard_normal((n, 4))
    return features.astype(np.float32), (chances > 0).astype(np.int64)


@pytest.mark.parametrize("weighted", [False, True])
def test_each_label_has_the_logistic_regression_of_scikit_learn(weighted):
    features, labels = data(300)
    weight = np.array([1.0, 2.0, 0.5, 3.0], np.float32) if weighted else None
    z = StandardScaler().fit_transform(features.astype(np.float64))
    for model in fit_path(labelled(features, labels, "train"), 4, [1e-3, 1e-1, 10], class_weight=weight):
        ours = model.logits(features)
        for k in range(4):
            options = {} if weight is None else {"class_weight": {0: 1, 1: float(weight[k])}}
            theirs = LogisticRegression(C=model.strength, tol=1e-8, max_iter=10_000, **options).fit(z, labels[:, k])
            np.testing.assert_allclose(ours[:, k], theirs.decision_function(z), atol=0.02, rtol=0.01)


def test_a_label_that_all_or_no_training_images_have_keeps_its_odds():
    features, labels = data(50)
    labels[:, 1], labels[:, 3] = 1, 0
    (model,) = fit_path(labelled(features, labels, "train"), 4, [0.1])
    assert np.isfinite(model.logits(features)).all()
    assert model.bias[[1, 3]] == pytest.approx([np.log(50.5 / 0.5), np.log(0.5 / 50.5)])
    assert not model.weight[[1, 3]].any()
    with pytest.raises(DataError, match="a label that some training images have and others do not"):
        next(fit_path(labelled(features, np.ones_like(labels), "train"), 4, [0.1]))


def test_neighbours_vote_for_each_label():
    (_, labels), (_, true) = data(60), data(40, seed=1)
    features, queries = (np.random.default_rng(3).standard_normal((n, 8)).astype(np.float32) for n in (60, 40))
    (found,) = probe_knn(
        labelled(features, labels, "train"), {"val": labelled(queries, true, "val")}, 4, neighbours=[7], temperature=0.2
    )
    unit = [each / np.linalg.norm(each, axis=1, keepdims=True) for each in (features, queries)]
    similarity = unit[1] @ unit[0].T
    nearest = np.argsort(-similarity, axis=1)[:, :7]
    weights = np.exp(np.take_along_axis(similarity, nearest, 1) / 0.2)
    votes = (weights[:, :, None] * labels[nearest]).sum(1) / weights.sum(1, keepdims=True)
    expected = np.mean([average_precision_score(true[:, k], votes[:, k]) for k in range(4) if true[:, k].any()])
    assert found.accuracy["val"] == pytest.approx(expected, abs=0.01)


def test_the_report_chooses_by_map_and_scores_test():
    report = probe_report(*data(300), *data(200, 1), test=data(200, 2), shots=())
    document = report.to_dict()
    sweep = document["linear"]["sweep"]
    assert report.linear.chosen_on == "val"
    assert max(each["mean_ap"] for each in sweep) == document["linear"]["mean_ap"]["val"]
    assert document["linear"]["mean_ap"]["test"] > 0.7
    assert report.classes == 4
    alone = probe_report(*data(300), *data(200, 1), shots=())
    assert alone.linear.chosen_on == "a fifth of train"
    with pytest.raises(DataError, match="few-shot regression needs one class of each image"):
        probe_report(*data(300), *data(200, 1))
    with pytest.raises(DataError, match="the splits have different labels"):
        probe_report(*data(300), data(200, 1)[0], data(200, 1)[1][:, 0], shots=())


class Largest(TorchFunctionMode):
    """The numbers in the largest tensor that torch computes."""

    numbers = 0

    def __torch_function__(self, func, types, args=(), kwargs=None):
        found = func(*args, **(kwargs or {}))
        if isinstance(found, torch.Tensor):
            self.numbers = max(self.numbers, found.numel())
        return found


def test_votes_on_many_labels_are_counted_in_parts(monkeypatch):
    generator = np.random.default_rng(0)
    features, queries = (generator.standard_normal((n, 8)).astype(np.float32) for n in (300, 40))
    train = labelled(features, (generator.random((300, 50)) < 0.1).astype(np.int64), "train")
    whole = votes(train, queries, 50, [10, 20, 100, 200])
    monkeypatch.setattr("vitreous.evaluate.features.probes._MAX_SIMILARITIES", 20_000)
    with Largest() as largest:
        parts = votes(train, queries, 50, [10, 20, 100, 200])
    assert largest.numbers == 20_000  # the labels of 100 more neighbours of four images
    for k, shares in whole.items():
        np.testing.assert_allclose(parts[k], shares, atol=1e-5)
