"""Calibration and thresholds of labels against scikit-learn, brute force and cases with a known answer."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import f1_score

from vitreous.errors import ConfigError
from vitreous.evaluate.multilabel.fitting import best_thresholds, cross_fitted, fit_rule, fit_slopes, fit_temperature
from vitreous.evaluate.multilabel.metrics import evaluate_labels
from vitreous.evaluate.multilabel.rule import LabelRule


def drawn(n: int = 1500, k: int = 4, seed: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    """Calibrated logits, and labels drawn from them."""
    generator = torch.Generator().manual_seed(seed)
    logits = 2 * torch.randn(n, k, generator=generator, dtype=torch.float64) - torch.linspace(0, 2, k)
    return logits, torch.rand(n, k, generator=generator, dtype=torch.float64) < logits.sigmoid()


def test_slopes_are_those_of_logistic_regression_on_platts_targets():
    """A fractional target t is an image with the label of weight t, and one without of weight 1 - t."""
    logits, labels = drawn(300)
    slopes, offsets = fit_slopes(3 * logits + 1, labels)
    for k in range(4):
        with_label, without = int(labels[:, k].sum()), int((~labels[:, k]).sum())
        target = np.where(labels[:, k], (with_label + 1) / (with_label + 2), 1 / (without + 2))
        x = (3 * logits[:, k] + 1).numpy()[:, None]
        reference = LogisticRegression(C=1e12, tol=1e-10, max_iter=1000)
        reference.fit(np.concatenate([x, x]), np.repeat([1, 0], 300), np.concatenate([target, 1 - target]))
        assert float(slopes[k]) == pytest.approx(reference.coef_[0, 0], rel=1e-4)
        assert float(offsets[k]) == pytest.approx(reference.intercept_[0], rel=1e-3, abs=1e-4)


@pytest.mark.parametrize("kind", ["all", "none", "separable", "reversed", "constant"])
def test_slopes_stay_finite_and_positive_whatever_the_labels(kind):
    logits, labels = drawn(50)
    if kind == "constant":
        logits = torch.full_like(logits, 2.0)
    else:
        has = {"all": logits > -99, "none": logits > 99, "separable": logits > 0, "reversed": logits < 0}
        labels = has[kind]
    slopes, offsets = fit_slopes(logits, labels)
    assert ((slopes >= 0.05) & (slopes <= 20)).all()
    assert offsets.isfinite().all()
    share = (logits * slopes + offsets).sigmoid().mean(0)
    assert torch.allclose(share, labels.double().mean(0), atol=0.05)


def test_the_calibration_is_the_one_that_the_data_needs():
    logits, labels = drawn()
    assert fit_temperature(2.5 * logits, labels) == pytest.approx(2.5, rel=0.05)
    kinds = [fit_rule(x, labels).calibration for x in (2.5 * logits, logits + torch.tensor([3.0, -2.0, 0.0, 1.0]))]
    assert kinds == ["temperature", "per label"]
    rule = fit_rule(logits + torch.tensor([3.0, -2.0, 0.0, 1.0]), labels)
    assert rule.offsets == pytest.approx((-3.0, 2.0, 0.0, -1.0), abs=0.6)
    assert fit_rule(logits[:2], labels[:2]).calibration == "none"


def test_thresholds_have_the_highest_f1_that_any_has():
    logits, labels = drawn(80)
    probabilities = (2 * logits).round().div(2).sigmoid()  # ties
    labels[:, 3] = False
    found = best_thresholds(probabilities, labels)
    assert found[3] == 0.5
    for k in range(3):
        values = probabilities[:, k].numpy()
        tried = [f1_score(labels[:, k], values >= t, zero_division=0) for t in np.unique(values)]
        assert f1_score(labels[:, k], values >= found[k]) == pytest.approx(max(tried))
        assert found[k] not in values


def test_halves_are_scored_by_the_other_half():
    """On labels without relation to the logits, thresholds look good on their own images and not on others."""
    generator = torch.Generator().manual_seed(1)
    logits, labels = torch.randn(60, 8, generator=generator), torch.rand(60, 8, generator=generator) < 0.1
    rule = fit_rule(logits, labels)
    own = evaluate_labels(rule.calibrated(logits), labels, rule.present(logits))
    calibrated, present = cross_fitted(logits, labels)
    fair = evaluate_labels(calibrated, labels, present)
    assert fair.macro_f1 < own.macro_f1 - 0.05
    first, second = torch.arange(60) % 2 == 0, torch.arange(60) % 2 == 1
    other = fit_rule(logits[second], labels[second])
    assert torch.equal(present[first], other.present(logits[first]))


def test_a_rule_maps_logits_to_probabilities_and_back_and_is_stored():
    rule = LabelRule((0.3, 0.9), (0.5, 2.0), (0.0, -1.0))
    logits = torch.tensor([[0.0, 1.0], [-3.0, 0.4]])
    expected = torch.stack([(0.5 * logits[:, 0]).sigmoid(), (2 * logits[:, 1] - 1).sigmoid()], 1)
    torch.testing.assert_close(rule.probabilities(logits), expected)
    assert rule.present(logits).tolist() == [[True, False], [False, False]]
    torch.testing.assert_close(rule.uncalibrated(rule.probabilities(logits)), logits)
    assert LabelRule.from_dict(rule.to_dict()) == rule
    assert rule.without_thresholds() == LabelRule((0.5, 0.5), (0.5, 2.0), (0.0, -1.0))
    kinds = [LabelRule.plain(2), LabelRule((0.5,) * 2, (2.0,) * 2, (0.0,) * 2), rule]
    assert [each.calibration for each in kinds] == ["none", "temperature", "per label"]


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        (((0.5,), (1.0, 1.0), (0.0, 0.0)), "one for each label"),
        (((), (), ()), "one for each label"),
        (((1.5,), (1.0,), (0.0,)), r"threshold must be in \[0, 1\]"),
        (((0.5,), (0.0,), (0.0,)), "slope must be above 0"),
        (((float("nan"),), (1.0,), (0.0,)), "thresholds"),
    ],
)
def test_impossible_rules_are_refused(fields, message):
    with pytest.raises(ConfigError, match=message):
        LabelRule(*fields)
