"""Conformal sets against MAPIE, loops and the coverage they promise."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest
import torch

from vitreous.errors import ConfigError, DataError
from vitreous.evaluate.trust.conformal import ConformalSets, fit_lac, fit_raps


def predictions(n: int, classes: int, seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Probabilities of a model that is too sure, and labels of classes of different difficulty."""
    generator = torch.Generator().manual_seed(seed)
    labels = torch.randint(0, classes, (n,), generator=generator)
    strength = torch.linspace(1, 3, classes, dtype=torch.float64)[labels][:, None]
    logits = torch.randn(n, classes, generator=generator, dtype=torch.float64)
    return torch.softmax(1.5 * (logits + strength * torch.nn.functional.one_hot(labels, classes)), dim=1), labels


def raps_score(probs: list[float], label: int, penalty: float, free: int) -> float:
    """Equation 4 of the paper without the random part, class by class."""
    above = [k for k, q in enumerate(probs) if q > probs[label] or (q == probs[label] and k < label)]
    rank = len(above) + 1
    return sum(probs[k] for k in above) + probs[label] + penalty * max(0, rank - free)


def test_lac_agrees_with_mapie() -> None:
    classification = pytest.importorskip("mapie.classification")
    base = pytest.importorskip("sklearn.base")

    class Given(base.ClassifierMixin, base.BaseEstimator):
        """A fitted classifier whose inputs are the probabilities."""

        def fit(self, x: np.ndarray, y: np.ndarray) -> Given:
            self.classes_, self.fitted_ = np.arange(x.shape[1]), True
            return self

        def predict_proba(self, x: np.ndarray) -> np.ndarray:
            return x

        def predict(self, x: np.ndarray) -> np.ndarray:
            return x.argmax(axis=1)

    probs, labels = predictions(1000, 6, 0)
    model = Given().fit(probs.numpy(), labels.numpy())
    theirs = classification.SplitConformalClassifier(
        model, confidence_level=0.9, conformity_score="lac", prefit=True
    ).conformalize(probs[:500].numpy(), labels[:500].numpy())
    _, sets = theirs.predict_set(probs[500:].numpy())
    np.testing.assert_array_equal(fit_lac(probs[:500], labels[:500]).sets(probs[500:]), sets[:, :, 0])


def test_raps_agrees_with_a_loop() -> None:
    probs, labels = predictions(300, 7, 1)
    rule = fit_raps(probs[:200], labels[:200], 0.85, penalty=0.05, free_ranks=2)
    rows = probs.tolist()
    scores = sorted(raps_score(row, int(label), 0.05, 2) for row, label in zip(rows[:200], labels[:200], strict=True))
    threshold = scores[math.ceil(201 * 0.85) - 1]
    assert rule.thresholds == pytest.approx((threshold,), abs=1e-12)
    expected = [[raps_score(row, k, 0.05, 2) <= threshold + 1e-12 for k in range(7)] for row in rows[200:]]
    np.testing.assert_array_equal(rule.sets(probs[200:]), expected)


@pytest.mark.parametrize("method", ["lac", "raps randomised", "raps"])
def test_coverage_over_200_resplits(method: str) -> None:
    probs, labels = predictions(10_000, 10, 2)
    true, covered = labels.numpy(), []
    for seed in range(200):
        order = torch.from_numpy(np.random.default_rng(seed).permutation(10_000))
        first, rest = order[:5000], order[5000:]
        if method == "lac":
            rule = fit_lac(probs[first], labels[first])
        else:
            randomised = method == "raps randomised"
            rule = fit_raps(probs[first], labels[first], randomised=randomised, seed=seed)
        sets = rule.sets(probs[rest], seed=seed + 1000)
        covered.append(sets[np.arange(5000), true[rest]].mean())
    assert 0.898 <= np.mean(covered) <= 0.904


def test_class_conditional_sets_cover_the_hardest_class() -> None:
    probs, labels = predictions(8000, 5, 3)
    hardest = (labels[4000:] == 0).numpy()
    covered = {}
    for conditional in (False, True):
        sets = fit_lac(probs[:4000], labels[:4000], class_conditional=conditional).sets(probs[4000:])
        covered[conditional] = sets[hardest, 0].mean()
    assert covered[False] < 0.85
    assert 0.87 <= covered[True] <= 0.93


def test_classes_with_few_images_fall_back() -> None:
    probs, labels = predictions(400, 4, 4)
    kept = torch.cat([(labels == k).nonzero()[: 5 if k == 2 else None, 0] for k in range(4)])
    rule = fit_lac(probs[kept], labels[kept], class_conditional=True)
    assert rule.fallback == (2,)
    assert rule.thresholds[2] == fit_lac(probs[kept], labels[kept]).thresholds[0]
    assert len(set(rule.thresholds)) == 4


def test_empty_sets_and_the_top_class() -> None:
    probs = torch.tensor([[0.4, 0.3, 0.3], [0.9, 0.1, 0.0]], dtype=torch.float64)
    rule = ConformalSets("lac", 0.9, (0.5,), 3)
    assert rule.sets(probs).sum(axis=1).tolist() == [0, 1]
    assert ConformalSets("lac", 0.9, (0.5,), 3, include_top=True).sets(probs).tolist() == [[True, False, False]] * 2


@pytest.mark.parametrize("fit", [fit_lac, fit_raps])
@pytest.mark.parametrize("coverage", [0.8, 0.9])
def test_sets_that_always_hold_the_top_class_keep_their_coverage(fit, coverage) -> None:
    """Not above it: the thresholds are fitted to sets that hold the top class."""
    probs, labels = predictions(4000, 8, 9)
    assert (probs.argmax(dim=1) == labels).double().mean() < coverage - 0.1
    held = []
    for seed in range(40):
        order = torch.randperm(4000, generator=torch.Generator().manual_seed(seed))
        first, second = order[:2000], order[2000:]
        sets = fit(probs[first], labels[first], coverage, include_top=True).sets(probs[second])
        assert sets[range(2000), probs[second].argmax(dim=1).numpy()].all()
        held.append(sets[range(2000), labels[second].numpy()].mean())
    assert np.mean(held) == pytest.approx(coverage, abs=0.01)


def test_the_order_of_calibration_images_does_not_matter() -> None:
    probs, labels = predictions(500, 6, 5)
    order = torch.randperm(500, generator=torch.Generator().manual_seed(0))
    for fit in (fit_lac, fit_raps):
        assert fit(probs, labels) == fit(probs[order], labels[order])


def test_too_few_images() -> None:
    probs, labels = predictions(9, 3, 6)
    assert fit_lac(probs, labels).thresholds[0] == pytest.approx(float((1 - probs[range(9), labels]).max()))
    with pytest.raises(DataError, match=r"8 calibration images are too few for a coverage of 0\.9: give at least 9"):
        fit_lac(probs[:8], labels[:8])
    with pytest.raises(ConfigError, match=r"coverage is 1\.0"):
        fit_lac(probs, labels, 1.0)


def test_round_trip_and_strict_reading() -> None:
    probs, labels = predictions(300, 4, 7)
    for rule in (fit_lac(probs, labels, class_conditional=True, fewest=70), fit_raps(probs, labels, randomised=True)):
        assert ConformalSets.from_dict(json.loads(json.dumps(rule.to_dict(), allow_nan=False))) == rule
    good = fit_raps(probs, labels).to_dict()
    bad: list[tuple[dict[str, object], str]] = [
        ({"method": "aps"}, "method is 'aps'"),
        ({"coverage": 1.5}, r"coverage is 1\.5"),
        ({"coverage": True}, "coverage is True"),
        ({"thresholds": [math.nan]}, "thresholds"),
        ({"thresholds": [0.5, 0.5]}, "2 thresholds"),
        ({"classes": 0}, "classes is 0"),
        ({"penalty": -0.1}, "penalty is -0.1"),
        ({"free_ranks": 9}, "free_ranks is 9"),
        ({"fallback": [4]}, "fallback must list"),
        ({"method": "lac", "penalty": 0.1}, "options of raps"),
        ({"extra": 1}, "no field 'extra'"),
    ]
    for change, message in bad:
        with pytest.raises(ConfigError, match=message):
            ConformalSets.from_dict(good | change)
    with pytest.raises(ConfigError, match="lacks coverage"):
        ConformalSets.from_dict({name: value for name, value in good.items() if name != "coverage"})
    with pytest.raises(ConfigError, match="must be a dictionary"):
        ConformalSets.from_dict([1])
    with pytest.raises(DataError, match=r"\(N, 4\)"):
        fit_lac(probs, labels).sets(probs[:, :3])
