"""Scores per class against scikit-learn, torchmetrics and cases small enough to do by hand."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch
from sklearn import metrics as sk
from torchmetrics.functional import classification as tm

from vitreous.errors import DataError
from vitreous.evaluate.scoring.scores import class_order, confused_images, detailed_scores, matthews


def predictions(n: int, classes: int, seed: int, used: int | None = None) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    labels = torch.randint(0, used or classes, (n,), generator=generator)
    logits = torch.randn(n, classes, generator=generator, dtype=torch.float64)
    logits += 1.5 * torch.nn.functional.one_hot(labels, classes)
    return (logits * 4).round() / 4, labels  # steps of 1/4: many equal scores


@pytest.mark.parametrize(("classes", "used"), [(2, 2), (7, 7), (12, 9)])
def test_agrees_with_scikit_learn(classes: int, used: int) -> None:
    logits, labels = predictions(800, classes, 0, used)
    scores = detailed_scores(logits, labels)
    true, predicted = labels.numpy(), logits.argmax(dim=1).numpy()
    probs = torch.softmax(logits, dim=1).numpy()
    precision, recall, f1, support = sk.precision_recall_fscore_support(
        true, predicted, labels=range(classes), zero_division=0
    )
    for ours, theirs in ((scores.precision, precision), (scores.recall, recall), (scores.f1, f1)):
        np.testing.assert_allclose(ours, theirs, atol=1e-12)
    np.testing.assert_array_equal(scores.support, support)
    if used == classes:
        assert scores.balanced_accuracy == pytest.approx(sk.balanced_accuracy_score(true, predicted), abs=1e-12)
    assert scores.balanced_accuracy == pytest.approx(recall[:used].mean(), abs=1e-12)
    assert scores.mcc == pytest.approx(sk.matthews_corrcoef(true, predicted), abs=1e-12)
    auc = [sk.roc_auc_score(true == k, probs[:, k]) for k in range(used)]
    ap = [sk.average_precision_score(true == k, probs[:, k]) for k in range(used)]
    np.testing.assert_allclose(scores.auc[:used], auc, atol=1e-9)
    np.testing.assert_allclose(scores.average_precision[:used], ap, atol=1e-9)
    assert scores.macro["auc"] == pytest.approx(np.mean(auc), abs=1e-9)
    assert scores.macro["average_precision"] == pytest.approx(np.mean(ap), abs=1e-9)
    assert np.isnan(scores.auc[used:]).all()
    assert scores.absent == tuple(range(used, classes))
    assert bool(scores.notes) is (used < classes)


def test_specificity_agrees_with_torchmetrics() -> None:
    logits, labels = predictions(500, 6, 1)
    scores = detailed_scores(logits, labels)
    for average, ours in (("none", scores.specificity), ("macro", scores.macro["specificity"])):
        theirs = tm.multiclass_specificity(logits, labels, 6, average=average)
        np.testing.assert_allclose(ours, theirs.numpy(), atol=1e-6)
    theirs = tm.multiclass_specificity(logits, labels, 6, average="micro")
    assert scores.micro["specificity"] == pytest.approx(float(theirs), abs=1e-6)


def test_independent_of_the_order_of_images() -> None:
    logits, labels = predictions(300, 5, 2)
    order = torch.randperm(300, generator=torch.Generator().manual_seed(0))
    assert detailed_scores(logits, labels).to_dict() == detailed_scores(logits[order], labels[order]).to_dict()


def test_to_dict_is_json() -> None:
    logits, labels = predictions(50, 4, 3, used=2)
    read = json.loads(json.dumps(detailed_scores(logits, labels).to_dict(), allow_nan=False))
    assert read["per_class"][3]["auc"] is None
    assert read["absent"] == [2, 3]


def test_one_class() -> None:
    scores = detailed_scores(torch.zeros(3, 1), torch.zeros(3, dtype=torch.int64))
    assert scores.to_dict()["macro"]["auc"] is None
    assert scores.mcc == 0


def test_class_order_puts_confused_classes_together() -> None:
    groups = np.random.default_rng(0).permutation(np.repeat(np.arange(6), 5))  # six groups of five classes
    confusion = np.where(groups[:, None] == groups[None, :], 10, 0) + np.eye(30, dtype=np.int64) * 50
    order = class_order(confusion)
    assert sorted(order) == list(range(30))
    assert (np.diff(groups[order]) != 0).sum() == 5
    np.testing.assert_array_equal(class_order(np.eye(2, dtype=np.int64)), [0, 1])
    with pytest.raises(DataError, match=r"\(2, 3\)"):
        class_order(np.zeros((2, 3), np.int64))


def test_class_order_of_a_thousand_classes_is_a_permutation() -> None:
    confusion = np.random.default_rng(1).poisson(0.05, (1000, 1000))
    confusion[7] = 0  # a class without images
    assert sorted(class_order(confusion)) == list(range(1000))


def test_confused_images_by_hand() -> None:
    logits = torch.eye(3)[[1, 1, 0, 2, 1, 0]]
    found = confused_images(logits, torch.tensor([0, 0, 0, 2, 2, 1]))
    assert [(one.true, one.predicted, one.images) for one in found] == [(0, 1, (0, 1)), (1, 0, (5,)), (2, 1, (4,))]
    assert found[0].share == pytest.approx(2 / 3)


def test_matthews_of_one_predicted_class_is_0_with_weighted_counts() -> None:
    """Weights such as n / (n - 1) leave rounding errors of either sign where the spread of predictions is 0."""
    for seed in range(200):
        n = np.random.default_rng(seed).integers(2, 30, 8)
        weighted = n * n / (n - 1)
        predicted = np.zeros(8)
        predicted[0] = weighted.cumsum()[-1]
        assert matthews(weighted[0], weighted, predicted) == 0
