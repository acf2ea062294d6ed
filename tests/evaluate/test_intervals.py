"""Intervals against scipy, DeLong's variance written out, scores recomputed from redrawn images, and simulation."""

from __future__ import annotations

import time

import numpy as np
import pytest
import torch
from scipy.stats import binomtest, norm
from sklearn import metrics as sk

from vitreous.errors import DataError
from vitreous.evaluate.scoring.area_intervals import area_intervals
from vitreous.evaluate.scoring.intervals import bootstrap, clopper_pearson_lower, wilson
from vitreous.evaluate.scoring.metrics import evaluate
from vitreous.evaluate.scoring.scores import detailed_scores
from vitreous.evaluate.trust.calibration import brier_score, expected_calibration_error


def predictions(n: int, classes: int, seed: int, strength: float = 2.0) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    labels = torch.randint(0, classes, (n,), generator=generator)
    logits = torch.randn(n, classes, generator=generator, dtype=torch.float64)
    return logits + strength * torch.nn.functional.one_hot(labels, classes), labels


@pytest.mark.parametrize(("correct", "n"), [(0, 5), (3, 7), (90, 100), (40, 40)])
@pytest.mark.parametrize("level", [0.8, 0.95])
def test_shares_agree_with_scipy(correct: int, n: int, level: float) -> None:
    ours, theirs = wilson(correct, n, level), binomtest(correct, n).proportion_ci(level, "wilson")
    assert (ours.value, ours.low, ours.high) == pytest.approx((correct / n, theirs.low, theirs.high), abs=1e-12)
    one_sided = binomtest(correct, n, alternative="greater").proportion_ci(level, "exact")
    assert clopper_pearson_lower(correct, n, 1 - level) == pytest.approx(one_sided.low, abs=1e-9)


@pytest.mark.parametrize(
    ("correct", "n", "level"), [(3, 2, 0.9), (0, 0, 0.9), (-1, 2, 0.9), (1, 2, 1.0), (1, 2, np.nan)]
)
def test_impossible_shares_are_refused(correct: int, n: int, level: float) -> None:
    with pytest.raises(DataError):
        wilson(correct, n, level)


@pytest.mark.parametrize("classes", [3, 8])
def test_bootstrap_equals_scores_of_redrawn_images(classes: int) -> None:
    """The spread over resamples equals that of scores computed from redrawn logits, within Monte Carlo error."""
    logits, labels = predictions(300, classes, 0)
    ours = bootstrap(logits, labels, resamples=4000)
    scores, detailed = evaluate(logits, labels), detailed_scores(logits, labels)
    for name, value in ours.values.items():
        expected = {
            "balanced_accuracy": detailed.balanced_accuracy,
            "mcc": detailed.mcc,
            "macro_specificity": detailed.macro["specificity"],
            "brier": brier_score(torch.softmax(logits, dim=1), labels),
            "ece": expected_calibration_error(torch.softmax(logits, dim=1), labels),
        }.get(name, getattr(scores, name, None))
        if expected is not None:
            assert value == pytest.approx(expected, abs=1e-12), name
    random, true = np.random.default_rng(1), labels.numpy()
    groups = [np.flatnonzero(true == k) for k in range(classes)]
    redrawn: dict[str, list[float]] = {"top1": [], "macro_f1": [], "log_loss": [], "mcc": [], "ece": []}
    for _ in range(600):
        rows = torch.from_numpy(np.concatenate([random.choice(group, len(group)) for group in groups]))
        again = evaluate(logits[rows], labels[rows])
        for name in ("top1", "macro_f1", "log_loss"):
            redrawn[name].append(getattr(again, name))
        redrawn["ece"].append(expected_calibration_error(torch.softmax(logits[rows], dim=1), labels[rows]))
        redrawn["mcc"].append(sk.matthews_corrcoef(true[rows], logits[rows].argmax(dim=1).numpy()))
    for name, theirs in redrawn.items():
        assert ours.resampled[name].std() == pytest.approx(np.std(theirs), rel=0.1), name
        mean = ours.values["ece"] if name == "ece" else np.mean(theirs)  # resamples of the ECE are shifted
        assert ours.resampled[name].mean() == pytest.approx(mean, abs=0.2 * np.std(theirs)), name
    assert ("top5" in ours.values) is (classes > 5)


def test_bootstrap_does_not_depend_on_the_order_of_images() -> None:
    logits, labels = predictions(200, 6, 3)
    order = torch.randperm(200, generator=torch.Generator().manual_seed(0))
    once, again = bootstrap(logits, labels, 50), bootstrap(logits[order], labels[order], 50)
    for name, scores in once.resampled.items():
        np.testing.assert_allclose(scores, again.resampled[name], atol=1e-12)
    assert not np.array_equal(once.resampled["top1"], bootstrap(logits, labels, 50, seed=1).resampled["top1"])


def test_classes_without_and_with_one_image() -> None:
    logits, labels = torch.eye(4).repeat(3, 1), torch.tensor([0, 1, 2] + [0, 1, 1] * 3)
    result = bootstrap(logits, labels, 20)
    assert result.single == 1
    assert np.isfinite(list(result.values.values())).all()
    with pytest.raises(DataError, match="resamples is 0"):
        bootstrap(logits, labels, 0)


def test_ten_thousand_images_take_about_a_second() -> None:
    logits, labels = predictions(10_000, 10, 0)
    start = time.perf_counter()
    bootstrap(logits, labels, 1000)
    assert time.perf_counter() - start < 4  # 0.3 s on an idle core


def test_accuracy_interval_covers() -> None:
    held = 0
    for seed in range(400):
        logits, labels = predictions(200, 3, seed, strength=1.5)
        interval = bootstrap(logits, labels, 200).intervals(0.9)["top1"]
        held += interval.low <= _TRUE_ACCURACY <= interval.high
    assert 0.86 <= held / 400 <= 0.94


# P(z_0 + 1.5 > max(z_1, z_2)) of standard normal numbers, by quadrature.
_GRID = np.linspace(-9, 9, 20001)
_TRUE_ACCURACY = float(np.trapezoid(norm.pdf(_GRID) * norm.cdf(_GRID + 1.5) ** 2, _GRID))


def delong(score: np.ndarray, positive: np.ndarray) -> tuple[float, float]:
    """DeLong's estimate and standard error of one area under the ROC curve, pair by pair."""
    wins = score[positive][:, None] - score[~positive][None, :]
    wins = (wins > 0) + (wins == 0) / 2
    m, n = wins.shape
    variance = wins.mean(axis=1).var(ddof=1) / m + wins.mean(axis=0).var(ddof=1) / n
    return float(wins.mean()), float(np.sqrt(variance))


def test_area_of_two_classes_is_delongs() -> None:
    logits, labels = predictions(300, 2, 5, strength=1.0)
    logits = (logits * 4).round() / 4
    value, error = delong((logits[:, 1] - logits[:, 0]).numpy(), labels.numpy() == 1)
    ours = area_intervals(logits, labels, 0.95)["macro_auc"]
    half = norm.ppf(0.975) * error / (value * (1 - value))
    low, high = (1 / (1 + np.exp(-(np.log(value / (1 - value)) + sign * half))) for sign in (-1, 1))
    assert (ours.value, ours.low, ours.high) == pytest.approx((value, low, high), abs=1e-9)


def test_area_intervals_are_as_wide_as_a_bootstrap_of_redrawn_images() -> None:
    logits, labels = predictions(600, 4, 6, strength=1.0)
    true, ours = labels.numpy(), area_intervals(logits, labels, 0.6827)
    probs = torch.softmax(logits, dim=1).numpy()
    random, groups = np.random.default_rng(0), [np.flatnonzero(true == k) for k in range(4)]
    draws = {"macro_auc": [], "macro_average_precision": []}
    for _ in range(500):
        rows = np.concatenate([random.choice(group, len(group)) for group in groups])
        for name, score in (("macro_auc", sk.roc_auc_score), ("macro_average_precision", sk.average_precision_score)):
            draws[name].append(np.mean([score(true[rows] == k, probs[rows, k]) for k in range(4)]))
    expected = detailed_scores(logits, labels).macro
    for name, values in draws.items():
        assert ours[name].value == pytest.approx(expected[name.removeprefix("macro_")], abs=1e-12)
        assert (ours[name].high - ours[name].low) / 2 == pytest.approx(np.std(values), rel=0.12)


def test_areas_that_are_perfect_or_undefined() -> None:
    perfect = area_intervals(torch.eye(3).repeat(4, 1), torch.arange(3).repeat(4))
    assert (perfect["macro_auc"].low, perfect["macro_auc"].high) == (1, 1)
    assert "macro_auc" not in area_intervals(torch.zeros(4, 2), torch.zeros(4, dtype=torch.int64))
