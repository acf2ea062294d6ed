"""Every figure of the report equals scikit-learn's, or is computed again in another way."""

import csv
import io
import json
from dataclasses import replace

import numpy as np
import pytest
import sklearn.metrics as sk
import torch
from scipy.special import softmax

from vitreous.errors import DataError
from vitreous.report.evaluation.documents import per_class_csv, predictions_csv, to_json
from vitreous.report.evaluation.results import EvaluationInput, EvaluationResult, measure


def reference(given: EvaluationInput) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Labels (N,), predictions (N,) and probabilities (N, K), without our functions."""
    probabilities = softmax(given.logits.numpy() / given.temperature, axis=1)
    return given.labels.numpy(), probabilities.argmax(axis=1), probabilities


def test_headline_scores_equal_scikit_learns(given: EvaluationInput, result: EvaluationResult) -> None:
    labels, predicted, probs = reference(given)
    macro = {"average": "macro", "zero_division": 0}
    confidence = probs.max(axis=1)
    bins = np.minimum((confidence * 15).astype(int), 14)
    gaps = [abs(((predicted == labels) - confidence)[bins == b].sum()) for b in range(15)]
    one_hot = np.eye(10)[labels]
    expected = {
        "top1": sk.accuracy_score(labels, predicted),
        "top5": sk.top_k_accuracy_score(labels, probs, k=5),
        "balanced_accuracy": sk.balanced_accuracy_score(labels, predicted),
        "macro_precision": sk.precision_score(labels, predicted, **macro),
        "macro_recall": sk.recall_score(labels, predicted, **macro),
        "macro_f1": sk.f1_score(labels, predicted, **macro),
        "mcc": sk.matthews_corrcoef(labels, predicted),
        "macro_auc": sk.roc_auc_score(labels, probs, multi_class="ovr"),
        "macro_average_precision": sk.average_precision_score(one_hot, probs, average="macro"),
        "log_loss": sk.log_loss(labels, probs),
        "brier": ((probs - one_hot) ** 2).sum(axis=1).mean(),
        "ece": sum(gaps) / len(labels),
    }
    found = {name: interval.value for name, interval in result.headline.items()}
    assert found.pop("macro_specificity") == pytest.approx(
        np.mean([sk.recall_score(labels != k, predicted != k) for k in range(10)]), abs=1e-12
    )
    assert found == pytest.approx(expected, abs=1e-12)
    assert all(each.low <= each.value <= each.high for each in result.headline.values())
    assert all(each.low < each.high for each in result.headline.values())


def test_scores_of_each_class_equal_scikit_learns(given: EvaluationInput, result: EvaluationResult) -> None:
    labels, predicted, probs = reference(given)
    rows = list(csv.DictReader(io.StringIO("".join(per_class_csv(result)))))
    precision, recall, f1, support = sk.precision_recall_fscore_support(labels, predicted)
    for k, row in enumerate(rows):
        expected = {
            "images": support[k],
            "predictions": (predicted == k).sum(),
            "precision": precision[k],
            "recall": recall[k],
            "specificity": sk.recall_score(labels != k, predicted != k),
            "f1": f1[k],
            "auc": sk.roc_auc_score(labels == k, probs[:, k]),
            "average_precision": sk.average_precision_score(labels == k, probs[:, k]),
        }
        assert {name: float(row[name]) for name in expected} == pytest.approx(expected, abs=1e-12), k
    assert [row["class"] for row in rows] == list(given.classes)
    assert (result.confusion == sk.confusion_matrix(labels, predicted)).all()


def test_predictions_are_listed_image_by_image(given: EvaluationInput, result: EvaluationResult) -> None:
    labels, predicted, probs = reference(given)
    rows = list(csv.DictReader(io.StringIO("".join(predictions_csv(result)))))
    assert [given.classes.index(row["predicted"]) for row in rows] == predicted.tolist()
    assert [given.classes.index(row["true"]) for row in rows] == labels.tolist()
    assert [row["correct"] == "1" for row in rows] == (labels == predicted).tolist()
    np.testing.assert_allclose([float(row["probability"]) for row in rows], probs.max(axis=1), atol=1e-12)
    losses = -np.log(probs[np.arange(len(labels)), labels])
    np.testing.assert_allclose([float(row["log_loss"]) for row in rows], losses, atol=1e-9)
    assert [row["camera"] for row in rows] == [cell or "" for cell in given.columns["camera"]]


def test_json_holds_every_figure(given: EvaluationInput, result: EvaluationResult) -> None:
    document = json.loads(to_json(result))
    labels, predicted, _ = reference(given)
    assert sum(count for _, _, count in document["confusion"]) == document["images"] == len(labels)
    assert document["headline"]["top1"]["value"] == pytest.approx((labels == predicted).mean())
    pair = document["most_confused"][0]
    true, called = given.classes.index(pair["true"]), given.classes.index(pair["predicted"])
    images = [given.names[n] for n in np.flatnonzero((labels == true) & (predicted == called))]
    assert (pair["images"], pair["count"]) == (images, len(images))
    other = given.other[1].numpy().argmax(axis=1)
    only_this = int(((predicted == labels) & (other != labels)).sum())
    assert document["comparison"]["only_this"] == only_this
    gain = document["comparison"]["differences"]["top1"]["value"]
    assert gain == pytest.approx((predicted == labels).mean() - (other == labels).mean())
    assert sorted(each["value"] for each in document["slices"]) == ["(missing)", "left"]
    assert document["selection"][0]["aurc"] == min(each["aurc"] for each in document["selection"])
    for each in document["selection"]:
        assert each["risk"]["1"] == pytest.approx((labels != predicted).mean())


def test_cross_fitted_sets_cover_what_they_promise(result: EvaluationResult) -> None:
    assert {(each.method, each.wanted) for each in result.conformal} == {
        (method, wanted) for method in ("lac", "raps") for wanted in (0.8, 0.9, 0.95)
    }
    for each in result.conformal:
        assert each.covered.value == pytest.approx(each.wanted, abs=0.05)
        assert each.empty + each.single <= 1
        assert each.images == len(result.predicted)


def test_sheets_hold_the_images_they_name(given: EvaluationInput, result: EvaluationResult) -> None:
    labels, predicted, probs = reference(given)
    losses = -np.log(probs[np.arange(len(labels)), labels])
    wrong = np.flatnonzero(labels != predicted)
    assert set(result.sheets.worst) == set(wrong[np.argsort(-losses[wrong])][:24])
    assert set(result.sheets.uncertain) == set(np.argsort(probs.max(axis=1))[:24])
    assert len(set(result.sheets.random)) == 24
    assert measure(given, resamples=1, seed=1).sheets.random != result.sheets.random


def test_figures_do_not_depend_on_rounding_as_of_another_batch_size(
    given: EvaluationInput, result: EvaluationResult
) -> None:
    """Logits of another batch size differ by 1e-6; every figure stays the same to 1e-4."""
    noise = torch.randn(given.logits.shape, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    again = measure(replace(given, logits=given.logits + 1e-7 * noise))
    assert again.sheets.random == result.sheets.random
    for name, interval in result.headline.items():
        other = again.headline[name]
        assert (other.value, other.low, other.high) == pytest.approx(
            (interval.value, interval.low, interval.high), abs=1e-4
        ), name


def test_few_images_are_enough() -> None:
    tiny = EvaluationInput(
        "m", "d", "s", ["a", "b"], ["x", "y"], torch.tensor([[2.0, 1], [0, 1]]), torch.tensor([0, 0])
    )
    found = measure(tiny)
    assert (found.conformal, found.headline["top1"].value) == ([], 0.5)
    assert found.detailed.absent == (1,)


def test_names_must_match_the_images(given: EvaluationInput) -> None:
    with pytest.raises(DataError, match="896 names and 10 classes for logits"):
        measure(replace(given, names=given.names[1:]))
