"""Corruption errors against the paper's definitions, by hand and with numpy, and against its table of ResNet-50."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest

from vitreous.errors import DataError, NonFiniteError
from vitreous.evaluate.scoring.robustness import mean_corruption_error


def test_means_by_hand():
    robustness = mean_corruption_error({"fog": [0.1, 0.3], "snow": [0.5, 0.7]})
    assert robustness.errors == {"fog": (0.1, 0.3), "snow": (0.5, 0.7)}
    assert robustness.error == pytest.approx({"fog": 0.2, "snow": 0.6})
    assert robustness.by_severity == pytest.approx((0.3, 0.5))
    assert robustness.mean_error == pytest.approx(0.4)
    assert robustness.mean_corruption_error is None
    assert robustness.relative_corruption_error is None


def test_ratios_equal_numpys_for_random_errors():
    generator = np.random.default_rng(0)
    model, baseline = generator.uniform(0.2, 0.9, size=(2, 15, 5))
    names = [f"kind{number}" for number in range(15)]
    robustness = mean_corruption_error(
        dict(zip(names, model, strict=True)),
        clean_error=0.1,
        baseline=dict(zip(reversed(names), baseline[::-1], strict=True)),
        baseline_clean_error=0.15,
    )
    expected = model.sum(axis=1) / baseline.sum(axis=1)
    relative = (model - 0.1).sum(axis=1) / (baseline - 0.15).sum(axis=1)
    assert list(robustness.corruption_error.values()) == pytest.approx(expected)
    assert robustness.mean_corruption_error == pytest.approx(expected.mean())
    assert list(robustness.relative_corruption_error.values()) == pytest.approx(relative)
    assert robustness.relative_mean_corruption_error == pytest.approx(relative.mean())
    assert robustness.mean_error == pytest.approx(model.mean())
    json.dumps(robustness.as_dict(), allow_nan=False)


def test_a_classifier_is_as_robust_as_itself():
    errors = {"fog": [0.2, 0.4], "snow": [0.3, 0.9]}
    robustness = mean_corruption_error(errors, clean_error=0.1, baseline=errors, baseline_clean_error=0.1)
    assert robustness.mean_corruption_error == 1
    assert robustness.relative_mean_corruption_error == 1


def test_relative_errors_need_both_clean_errors():
    errors = {"fog": [0.2]}
    assert mean_corruption_error(errors, clean_error=0.1, baseline=errors).relative_corruption_error is None
    flat = mean_corruption_error(errors, clean_error=0.1, baseline=errors, baseline_clean_error=0.2)
    assert flat.relative_corruption_error == {"fog": math.inf}


def test_the_table_of_the_paper():
    """Corruption errors of ResNet-50 in per cent of AlexNet, and their mean (mCE 76.7), arXiv 1903.12261, table 1."""
    published = [80, 82, 83, 75, 89, 78, 80, 78, 75, 66, 57, 71, 85, 77, 77]
    alexnet = {f"kind{number}": [0.5, 0.7, 0.9] for number in range(15)}
    errors = {
        name: [value * ratio / 100 for value in alexnet[name]] for name, ratio in zip(alexnet, published, strict=True)
    }
    robustness = mean_corruption_error(errors, baseline=alexnet)
    assert [round(100 * ratio) for ratio in robustness.corruption_error.values()] == published
    assert 100 * robustness.mean_corruption_error == pytest.approx(76.7, abs=0.5)  # the published ones are rounded


@pytest.mark.parametrize(
    ("errors", "options", "message"),
    [
        ({}, {}, "are empty"),
        ({"fog": []}, {}, "are empty"),
        ({"fog": [0.1], "snow": [0.1, 0.2]}, {}, "they have: fog 1, snow 2"),
        ({"fog": [0.1, 40]}, {}, "error of fog at severity 2 is 40.*not per cent"),
        ({"fog": [0.1]}, {"clean_error": -0.1}, "clean error is -0.1"),
        ({"fog": [0.1]}, {"baseline": {"snow": [0.1]}}, "only one of the two has: fog, snow"),
        ({"fog": [0.1]}, {"baseline": {"fog": [0.1, 0.2]}}, "has 2 severities, it must have 1"),
        ({"fog": [0.1]}, {"baseline": {"fog": [0]}}, "no error on fog"),
    ],
)
def test_unfit_errors_are_refused(errors, options, message):
    with pytest.raises(DataError, match=message):
        mean_corruption_error(errors, **options)


def test_nan_is_refused():
    with pytest.raises(NonFiniteError, match="severity 1 is nan"):
        mean_corruption_error({"fog": [math.nan]})
