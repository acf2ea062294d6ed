"""Temperature, calibration error and Brier score against closed forms, scikit-learn and torchmetrics."""

from __future__ import annotations

import inspect
import math

import numpy as np
import pytest
import torch
from scipy.special import log_softmax
from sklearn.calibration import CalibratedClassifierCV
from sklearn.datasets import load_digits
from sklearn.frozen import FrozenEstimator
from sklearn.linear_model import LogisticRegression
from torchmetrics.functional.classification import multiclass_calibration_error

from vitreous.errors import DataError
from vitreous.evaluate.trust.calibration import (
    brier_score,
    calibrate,
    choose_temperature,
    expected_calibration_error,
    fit_temperature,
    reliability,
)


@pytest.fixture(scope="module")
def overconfident() -> tuple[torch.Tensor, torch.Tensor]:
    """Logits (1197, 10) of an over-fitted linear classifier of real digits, and their labels."""
    images, labels = load_digits(return_X_y=True)
    model = LogisticRegression(C=1e4, max_iter=2000).fit(images[:600] / 16, labels[:600])
    return torch.from_numpy(model.decision_function(images[600:] / 16)), torch.from_numpy(labels[600:])


def test_temperature_is_the_minimum(overconfident: tuple[torch.Tensor, torch.Tensor]) -> None:
    logits, labels = overconfident
    found = fit_temperature(logits, labels)
    nll = lambda t: float(torch.nn.functional.cross_entropy(logits / t, labels))  # noqa: E731
    assert found > 1.5  # over-fitted: it is too sure
    assert all(nll(found) <= nll(t) for t in np.geomspace(0.05, 20, 100))
    assert all(nll(found) < nll(found * f) for f in (0.999, 1.001))
    assert fit_temperature(logits, labels) == found


def test_temperature_scales_with_the_logits(overconfident: tuple[torch.Tensor, torch.Tensor]) -> None:
    logits, labels = overconfident
    once = fit_temperature(logits, labels)
    assert fit_temperature(logits / once, labels) == pytest.approx(1, rel=1e-8)
    assert fit_temperature(logits * 1.7 + 5, labels) == pytest.approx(1.7 * once, rel=1e-8)


def test_temperature_agrees_with_scikit_learn() -> None:
    if "temperature" not in inspect.getdoc(CalibratedClassifierCV):
        pytest.skip("temperature scaling came to scikit-learn in 1.8")
    images, labels = load_digits(return_X_y=True)
    images = images / 16
    model = LogisticRegression(C=1e4, max_iter=2000).fit(images[:600], labels[:600])
    theirs = CalibratedClassifierCV(FrozenEstimator(model), method="temperature", ensemble=False)
    theirs.fit(images[600:], labels[600:])
    logits = torch.from_numpy(model.decision_function(images[600:]))
    ours = torch.softmax(logits / fit_temperature(logits, torch.from_numpy(labels[600:])), dim=1)
    np.testing.assert_allclose(ours.numpy(), theirs.predict_proba(images[600:]), atol=1e-4)


def test_temperature_of_a_coin_in_closed_form() -> None:
    # Right 3 times of 4 at logits (z, 0): the loss is least where sigmoid(z / t) = 3 / 4, so t = z / ln 3.
    logits = torch.tensor([[2.5, 0.0]]).repeat(4, 1)
    assert fit_temperature(logits, torch.tensor([0, 0, 0, 1])) == pytest.approx(2.5 / math.log(3), rel=1e-6)


def test_logits_that_hardly_differ_get_a_temperature(overconfident: tuple[torch.Tensor, torch.Tensor]) -> None:
    # A head with strong regularisation ranks classes well, with probabilities of about 1 / K for all of them.
    logits, labels = overconfident
    once = fit_temperature(logits, labels)
    assert fit_temperature(logits / 1e4, labels) == pytest.approx(once / 1e4, rel=1e-8)
    assert choose_temperature(logits / 1e4, labels) == pytest.approx(once / 1e4, rel=1e-8)


@pytest.mark.parametrize(
    ("logits", "labels", "expected"),
    [
        (torch.tensor([[3.0, 0.0]]), torch.tensor([1]), 1.0),  # one image
        (torch.eye(3) * 4, torch.arange(3), 4 / math.log(8)),  # all right: Platt's targets, 4/5 for three images
        (torch.full((4, 3), 7.3), torch.tensor([0, 1, 2, 1]), 1.0),  # nothing to scale
        (torch.eye(3) * 4, torch.tensor([1, 2, 0]), 20.0),  # all wrong: any higher temperature is better
    ],
    ids=["one", "separable", "constant", "wrong"],
)
def test_temperature_where_the_data_cannot_settle_it(
    logits: torch.Tensor, labels: torch.Tensor, expected: float
) -> None:
    assert fit_temperature(logits, labels) == pytest.approx(expected, rel=1e-9)


@pytest.mark.parametrize("bins", [1, 10, 15, 100])
def test_calibration_error_agrees_with_torchmetrics(
    overconfident: tuple[torch.Tensor, torch.Tensor], bins: int
) -> None:
    logits, labels = overconfident
    probs = torch.softmax(logits / 2, dim=1).float()
    probs = probs[probs.max(dim=1).values < 1]  # they give a confidence of exactly 1 a bin of its own
    labels = labels[: len(probs)]
    theirs = multiclass_calibration_error(probs, labels, num_classes=10, n_bins=bins, norm="l1")
    assert expected_calibration_error(probs, labels, bins) == pytest.approx(float(theirs), abs=2e-6)


def test_reliability_by_hand() -> None:
    probs = torch.tensor([[0.5, 0.5], [0.6, 0.4], [0.3, 0.7], [1.0, 0.0], [0.0, 1.0]], dtype=torch.float64)
    bins = reliability(probs, torch.tensor([0, 1, 1, 0, 0]), bins=4)
    assert bins.edges.tolist() == [0, 0.25, 0.5, 0.75, 1]
    assert bins.counts.tolist() == [0, 0, 3, 2]  # 0.5 opens a bin, 1 closes the last
    np.testing.assert_allclose(bins.confidence, [np.nan, np.nan, 0.6, 1.0])
    np.testing.assert_allclose(bins.accuracy, [np.nan, np.nan, 2 / 3, 1 / 2])
    assert bins.error == pytest.approx((3 * (2 / 3 - 0.6) + 2 * 0.5) / 5)


def test_brier_score_by_hand_and_its_bounds() -> None:
    probs = torch.tensor([[0.7, 0.2, 0.1], [0.1, 0.1, 0.8]], dtype=torch.float64)
    by_hand = ((0.3**2 + 0.2**2 + 0.1**2) + (0.1**2 + 0.9**2 + 0.8**2)) / 2
    assert brier_score(probs, torch.tensor([0, 1])) == pytest.approx(by_hand, rel=1e-12)
    assert brier_score(torch.eye(3), torch.arange(3)) == 0
    assert brier_score(torch.eye(3), torch.tensor([1, 2, 0])) == 2


def test_summary_measures_before_and_after(overconfident: tuple[torch.Tensor, torch.Tensor]) -> None:
    logits, labels = overconfident
    found = fit_temperature(logits, labels)
    summary = calibrate(logits, labels, found)
    for temperature, side in ((1.0, "before"), (found, "after")):
        probs = torch.softmax(logits / temperature, dim=1)
        assert getattr(summary, f"ece_{side}") == expected_calibration_error(probs, labels)
        assert getattr(summary, f"brier_{side}") == brier_score(probs, labels)
        expected = -log_softmax(logits.numpy() / temperature, axis=1)[np.arange(len(labels)), labels.numpy()].mean()
        assert getattr(summary, f"log_loss_{side}") == pytest.approx(expected, rel=1e-9)
    assert summary.ece_after < summary.ece_before
    assert summary.log_loss_after < summary.log_loss_before
    assert summary.to_dict()["n"] == len(labels)


def test_says_what_is_wrong_with_the_input() -> None:
    labels = torch.tensor([0, 1])
    with pytest.raises(DataError, match="apply softmax first"):
        expected_calibration_error(torch.tensor([[3.0, -1.0], [2.0, 0.5]]), labels)
    with pytest.raises(DataError, match="bins is 0"):
        reliability(torch.eye(2), labels, bins=0)
    with pytest.raises(DataError, match="temperature is 0"):
        calibrate(torch.eye(2), labels, 0)
    with pytest.raises(DataError, match="nothing to score"):
        fit_temperature(torch.zeros(0, 2), labels[:0])


def test_a_temperature_is_saved_only_where_it_helps_images_that_it_was_not_fitted_on():
    generator = torch.Generator().manual_seed(0)
    logits = 3 * torch.randn(400, 5, generator=generator)
    labels = torch.multinomial(torch.softmax(logits / 2.5, 1), 1, generator=generator)[:, 0]
    assert choose_temperature(logits, labels) == fit_temperature(logits, labels) == pytest.approx(2.5, rel=0.25)
    for seed in (10, 19):  # calibrated already: what a few images ask for is chance
        generator = torch.Generator().manual_seed(seed)
        logits = 2 * torch.randn(12, 5, generator=generator)
        labels = torch.multinomial(torch.softmax(logits, 1), 1, generator=generator)[:, 0]
        assert abs(fit_temperature(logits, labels) - 1) > 0.3
        assert choose_temperature(logits, labels) == 1
