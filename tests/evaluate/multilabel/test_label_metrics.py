"""Scores of several labels against scikit-learn, torchmetrics and cases by hand."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from sklearn import metrics as sk
from torchmetrics.functional import classification as tm

from vitreous.errors import DataError, NonFiniteError
from vitreous.evaluate.multilabel.intervals import label_calibration_error, label_intervals, mean_ap_interval
from vitreous.evaluate.multilabel.metrics import evaluate_labels


def case(name: str) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Logits, labels and labels given, (N, K) each."""
    generator = torch.Generator().manual_seed(0)
    n, k = {"usual": (300, 7), "ties": (300, 5), "one image": (1, 3), "never given": (60, 4)}[name]
    logits = 2 * torch.randn(n, k, generator=generator, dtype=torch.float64) - 1
    labels = torch.rand(n, k, generator=generator, dtype=torch.float64) < logits.sigmoid()
    labels[0, 0] = True
    if name == "ties":
        logits = logits.round()
    thresholds = torch.linspace(0.2, 0.8, k)
    present = logits.sigmoid() >= (2.0 if name == "never given" else thresholds)
    return logits, labels, present


@pytest.mark.parametrize("name", ["usual", "ties", "one image", "never given"])
def test_agrees_with_scikit_learn(name):
    logits, labels, present = case(name)
    scores = evaluate_labels(logits, labels.long(), present)
    true, given, values = labels.numpy(), present.numpy(), logits.numpy()
    for average in ("macro", "micro"):
        expected = sk.precision_recall_fscore_support(true, given, average=average, zero_division=0)[:3]
        ours = [getattr(scores, f"{average}_{key}") for key in ("precision", "recall", "f1")]
        np.testing.assert_allclose(ours, expected, atol=1e-12)
    each = sk.precision_recall_fscore_support(true, given, average=None, zero_division=0)
    np.testing.assert_allclose([row[1:5] for row in scores.per_label], np.transpose(each), atol=1e-12)
    assert scores.subset_accuracy == pytest.approx(sk.accuracy_score(true, given))
    assert scores.hamming_loss == pytest.approx(sk.hamming_loss(true, given))
    found = true.any(axis=0)
    assert scores.mean_ap == pytest.approx(
        sk.average_precision_score(true[:, found], values[:, found], average="macro")
    )
    losses = [
        sk.log_loss(true[:, k], 1 / (1 + np.exp(-values[:, k])), labels=[False, True]) for k in range(true.shape[1])
    ]
    assert scores.log_loss == pytest.approx(np.mean(losses))


@pytest.mark.parametrize("name", ["usual", "ties", "never given"])
@pytest.mark.filterwarnings("ignore:.*No positive samples.*")
def test_agrees_with_torchmetrics(name):
    logits, labels, present = case(name)
    scores, k = evaluate_labels(logits, labels, present), labels.shape[1]
    target, given = labels.long(), present.double()
    named = {"f1": tm.multilabel_f1_score, "precision": tm.multilabel_precision, "recall": tm.multilabel_recall}
    for average in ("macro", "micro"):
        for key, metric in named.items():
            expected = float(metric(given, target, k, average=average))
            assert getattr(scores, f"{average}_{key}") == pytest.approx(expected, abs=1e-6)
    assert scores.subset_accuracy == pytest.approx(float(tm.multilabel_exact_match(given, target, k)), abs=1e-6)
    assert scores.hamming_loss == pytest.approx(float(tm.multilabel_hamming_distance(given, target, k)), abs=1e-6)
    expected = tm.multilabel_average_precision(logits, target, k, average=None)
    np.testing.assert_allclose([each.ap for each in scores.per_label], expected.numpy(), atol=1e-6)
    assert scores.mean_ap == pytest.approx(float(tm.multilabel_average_precision(logits, target, k)), abs=1e-6)


def test_a_label_of_no_image_has_no_average_precision():
    logits = torch.tensor([[3.0, -1.0, 0.5], [2.0, 1.0, -2.0]])
    labels = torch.tensor([[1, 0, 0], [0, 1, 0]])
    scores = evaluate_labels(logits, labels)
    assert [each.ap for each in scores.per_label] == [1.0, 1.0, None]
    assert scores.mean_ap == 1.0
    # given: label 0 to both images, 1 to the second, 2 to the first
    assert scores.macro_f1 == pytest.approx((2 / 3 + 1 + 0) / 3)
    assert scores.micro_f1 == pytest.approx(2 * 2 / (4 + 2))
    assert (scores.subset_accuracy, scores.hamming_loss, scores.mean_labels) == (0.0, pytest.approx(2 / 6), 1.0)


def test_intervals_hold_the_scores_and_shrink_with_images():
    logits, labels, present = case("usual")
    widths = []
    for repeated in (1, 9):
        many = [each.repeat(repeated, 1) for each in (logits, labels, present)]
        scores = evaluate_labels(*many)
        found = label_intervals(scores, *many)
        assert set(found) == {"mean_ap", "macro_f1", "micro_f1", "subset_accuracy"}
        assert all(each.low <= each.value <= each.high for each in found.values())
        widths.append(found["micro_f1"].high - found["micro_f1"].low)
    assert widths[1] == pytest.approx(widths[0] / 3, rel=0.35)


def test_the_interval_of_mean_ap_shares_ranks_as_the_score_does():
    logits, labels, present = case("usual")
    tied = logits.round()  # many images with equal values
    found = mean_ap_interval(tied, labels)
    assert found.value == evaluate_labels(tied, labels).mean_ap
    whole = label_intervals(evaluate_labels(tied, labels, present), tied, labels, present)["mean_ap"]
    assert found == whole
    draws = np.random.default_rng(0)
    again = []
    for _ in range(200):
        rows = draws.integers(len(labels), size=len(labels))
        again.append(evaluate_labels(tied[rows], labels[rows]).mean_ap)
    assert [found.low, found.high] == pytest.approx(np.percentile(again, [2.5, 97.5]), abs=0.015)


def test_calibration_error_is_that_of_each_label_by_torchmetrics():
    logits, labels, _ = case("usual")
    expected = [
        float(tm.binary_calibration_error(logits[:, k].sigmoid(), labels[:, k].long(), n_bins=15, norm="l1"))
        for k in range(labels.shape[1])
    ]
    assert label_calibration_error(logits, labels) == pytest.approx(np.mean(expected), abs=1e-6)


@pytest.mark.parametrize(
    ("logits", "labels", "error", "message"),
    [
        (torch.zeros(2, 3), torch.zeros(2), DataError, r"logits \(2, 3\) and labels \(2,\) do not match"),
        (torch.zeros(0, 3), torch.zeros(0, 3), DataError, "nothing to score: 0 images, 3 labels"),
        (torch.zeros(1, 2), torch.tensor([[0, 2]]), DataError, "labels must be 0 or 1"),
        (torch.tensor([[torch.nan, 0.0]]), torch.zeros(1, 2), NonFiniteError, "NaN or infinite for 1 of 1 images"),
    ],
)
def test_bad_input_is_refused(logits, labels, error, message):
    with pytest.raises(error, match=message):
        evaluate_labels(logits, labels)


def test_halves_that_are_calibrated_apart_are_ranked_by_the_model():
    logits = torch.tensor([[3.0], [1.0], [-1.0], [-3.0]])
    labels = torch.tensor([[True], [True], [False], [False]])
    apart = logits + torch.tensor([[-5.0], [0.0], [0.0], [5.0]])  # another offset of each half
    assert evaluate_labels(apart, labels).mean_ap < 1
    scores = evaluate_labels(apart, labels, ranked=logits)
    assert scores.mean_ap == scores.per_label[0].ap == 1
    assert scores.log_loss == evaluate_labels(apart, labels).log_loss
