"""Thresholds fitted on one part of real images keep their promises on the rest."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from scipy.stats import binom
from sklearn.datasets import load_digits
from sklearn.linear_model import LogisticRegression

from vitreous.errors import ConfigError, DataError
from vitreous.evaluate.trust.calibration import choose_temperature
from vitreous.evaluate.trust.conformal import fit_lac
from vitreous.evaluate.trust.thresholds import Goals, answered, fit_thresholds, held, is_unsure

PRECISION, COVERAGE = 0.95, 0.9
RESPLITS = 40


@pytest.fixture(scope="module")
def pool() -> tuple[torch.Tensor, torch.Tensor]:
    """Logits (1697, 10) and labels of digits, by a regression trained on 100 others: nine of ten are right."""
    data = load_digits()
    order = np.random.default_rng(0).permutation(len(data.target))
    train, rest = order[:100], order[100:]
    model = LogisticRegression(C=1.0, max_iter=2000).fit(data.data[train] / 16, data.target[train])
    return torch.from_numpy(model.decision_function(data.data[rest] / 16)), torch.from_numpy(data.target[rest]).long()


def resplits(pool: tuple[torch.Tensor, torch.Tensor]):
    """Calibration images, and the rest, of random halves."""
    logits, labels = pool
    for seed in range(RESPLITS):
        order = torch.from_numpy(np.random.default_rng(seed).permutation(len(labels)))
        fit, rest = order[:800], order[800:]
        yield (logits[fit], labels[fit]), (logits[rest], labels[rest])


@pytest.mark.parametrize("method", ["lac", "raps"])
def test_promises_hold_on_the_rest_of_the_images(pool, method):
    broken, precisions, coverages, estimates = 0, [], [], []
    for (logits, labels), (new, truth) in resplits(pool):
        fit = fit_thresholds(logits, labels, Goals(PRECISION, COVERAGE, method))
        calibrated = new / fit.temperature
        said = ~is_unsure(fit.abstention, calibrated)
        right = int((calibrated.argmax(1) == truth).numpy()[said].sum())
        assert 0.1 < said.mean() < 1, "the rule decides nothing"
        found = answered(fit.abstention, calibrated, truth)
        assert (found.share, found.precision) == (pytest.approx(said.mean()), pytest.approx(right / said.sum()))
        # Evidence at 5 % that the precision is below the promise, whose confidence is 95 %: at most one in ten.
        broken += binom.cdf(right, int(said.sum()), PRECISION) < 0.05
        precisions.append(found.precision)
        coverages.append(held(fit.conformal, calibrated, truth).coverage)
        estimates.append(fit.sets.coverage)
    assert broken <= binom.ppf(0.999, RESPLITS, 0.1)
    assert np.mean(precisions) > PRECISION
    spread = np.sqrt(COVERAGE * (1 - COVERAGE) * (1 / 800 + 1 / 897))  # of one resplit
    assert COVERAGE - spread < np.mean(coverages) < COVERAGE + 3 * spread
    assert np.mean(estimates) == pytest.approx(np.mean(coverages), abs=spread)


def test_a_threshold_without_a_bound_would_break_the_promise(pool):
    """The test above can fail: the loosest threshold that reaches the precision here falls below it on new images."""
    below = 0
    for (logits, labels), (new, truth) in resplits(pool):
        order = torch.softmax(logits, 1).amax(1).sort(descending=True)
        precision = (logits.argmax(1) == labels)[order.indices].double().cumsum(0) / torch.arange(1, len(labels) + 1)
        threshold = order.values[(precision >= PRECISION).nonzero().max()]
        said = torch.softmax(new, 1).amax(1) > threshold
        below += bool((new.argmax(1) == truth)[said].double().mean() < PRECISION)
    assert below > RESPLITS / 4


def test_the_parts_are_those_of_the_functions_they_name(pool):
    logits, labels = pool[0][:200], pool[1][:200]  # too few to choose a score
    fit = fit_thresholds(logits, labels, Goals(0.8, COVERAGE))
    assert fit.temperature == choose_temperature(logits, labels)
    assert fit.abstention.score.name == "max_probability"
    assert (fit.choosing, fit.aurc) == (0, fit.aurc_max_probability)
    expected = fit_lac(torch.softmax(logits / fit.temperature, 1), labels, COVERAGE, include_top=True)
    assert fit.conformal == expected
    sets = expected.sets(torch.softmax(logits / fit.temperature, 1))
    assert sets[np.arange(200), logits.argmax(1)].all()
    assert held(expected, logits / fit.temperature, labels).mean_size == pytest.approx(sets.sum(1).mean())


def test_the_score_is_chosen_on_other_images_than_the_threshold(pool):
    fit = fit_thresholds(*pool, Goals(PRECISION))
    rest = len(pool[1]) - fit.choosing
    assert fit.choosing == len(pool[1]) // 5
    assert fit.abstention.coverage * rest == pytest.approx(round(fit.abstention.coverage * rest))
    order = torch.from_numpy(np.random.default_rng(5).permutation(len(pool[1])))
    again = fit_thresholds(pool[0][order], pool[1][order], Goals(PRECISION)).abstention
    assert (again.score, again.coverage) == (fit.abstention.score, fit.abstention.coverage)
    assert again.threshold == pytest.approx(fit.abstention.threshold, rel=1e-12)


def test_what_cannot_be_reached_is_refused(pool):
    with pytest.raises(DataError, match=r"no threshold .* the best reaches \d+\.\d\d%.*nothing is stored"):
        fit_thresholds(pool[0][:600], pool[1][torch.randperm(600)], Goals(0.9))
    with pytest.raises(DataError, match="too few"):
        fit_thresholds(pool[0][:20], pool[1][:20], Goals(0.95))
    with pytest.raises(DataError, match="too few"):
        fit_thresholds(pool[0][:5], pool[1][:5], Goals(coverage=0.9))
    with pytest.raises(ConfigError, match="required_precision is 1"):
        fit_thresholds(*pool, Goals(1.0))
    assert fit_thresholds(pool[0][:12], pool[1][:12], Goals(coverage=0.9)).sets is None  # halves of six images
