"""Selection scores and areas against closed forms, loops and TorchUncertainty."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest
import torch
from scipy.special import softmax
from scipy.stats import entropy
from sklearn.metrics import roc_auc_score

from vitreous.errors import ConfigError, DataError, NonFiniteError
from vitreous.evaluate.trust.selective import RiskCoverage, SelectionScore, choose_score, risk_coverage


def predictions(n: int, seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    labels = torch.randint(0, 6, (n,), generator=generator)
    logits = torch.randn(n, 6, generator=generator, dtype=torch.float64)
    return logits + 2 * torch.nn.functional.one_hot(labels, 6), labels


def test_scores_by_their_formulas() -> None:
    logits, _ = predictions(50, 0)
    rows = logits.numpy()
    q = softmax(rows, axis=1)
    by_hand = {
        "max_probability": q.max(axis=1),
        "margin": np.sort(q, axis=1)[:, -1] - np.sort(q, axis=1)[:, -2],
        "negative_entropy": -entropy(q, axis=1),
        "max_logit": rows.max(axis=1),
    }
    for name, expected in by_hand.items():
        np.testing.assert_allclose(SelectionScore(name)(logits), expected, atol=1e-12, err_msg=name)
    for order in (1.0, 2.0, 5.5):
        centred = rows - rows.mean(axis=1, keepdims=True)
        expected = centred.max(axis=1) / np.linalg.norm(centred, order, axis=1)
        np.testing.assert_allclose(SelectionScore("max_logit_p_norm", order)(logits), expected, atol=1e-12)


def test_the_normalised_logit_ignores_shift_and_scale() -> None:
    logits, _ = predictions(20, 1)
    score = SelectionScore("max_logit_p_norm", 4.0)
    np.testing.assert_allclose(score(logits), score(logits * 1e100 - 3), atol=1e-9)
    assert score(torch.full((2, 3), 7.0)).tolist() == [0, 0]


def test_areas_in_closed_form() -> None:
    # Falling scores with errors at ranks 2 and 4: risks 0, 1/2, 1/3, 2/4.
    curve = risk_coverage([0.9, 0.8, 0.7, 0.6], [True, False, True, False])
    assert curve.risk.tolist() == pytest.approx([0, 1 / 2, 1 / 3, 1 / 2])
    assert curve.aurc == pytest.approx((0 + 1 / 2 + 1 / 3 + 1 / 2) / 4)
    # Joint risks 0, 0, 1/4, 1/4, 1/2 at coverages 0 to 1.
    assert curve.augrc == pytest.approx((0 + 1 / 8 + 1 / 4 + 3 / 8) / 4)


def test_augrc_is_the_papers_function_of_the_failure_auroc() -> None:
    """Equation 5 of arXiv 2407.01032: (1 - AUROC_f) * acc * (1 - acc) + (1 - acc)^2 / 2, with equal scores too."""
    random = np.random.default_rng(0)
    scores, correct = random.integers(0, 20, 500) / 20, random.random(500) < 0.8
    accuracy = correct.mean()
    expected = (1 - roc_auc_score(correct, scores)) * accuracy * (1 - accuracy) + (1 - accuracy) ** 2 / 2
    assert risk_coverage(scores, correct).augrc == pytest.approx(expected, abs=1e-12)


def test_aurc_of_equal_scores_is_the_mean_over_their_orders() -> None:
    random = np.random.default_rng(1)
    scores, correct = random.integers(0, 5, 40) / 5, random.random(40) < 0.7
    orders = [risk_coverage(scores + 1e-6 * random.random(40), correct).aurc for _ in range(4000)]
    assert risk_coverage(scores, correct).aurc == pytest.approx(np.mean(orders), abs=5 * np.std(orders) / 4000**0.5)


def test_curve_agrees_with_torch_uncertainty() -> None:
    tu = pytest.importorskip("torch_uncertainty.metrics.classification.risk_coverage", exc_type=ImportError)
    logits, labels = predictions(400, 2)
    probs = torch.softmax(logits, dim=1)
    curve = risk_coverage(probs.amax(dim=1).numpy(), (probs.argmax(dim=1) == labels).numpy())
    for kind, ours in ((tu.AURC, curve.risk), (tu.AUGRC, curve.risk * curve.coverage)):
        metric = kind()
        metric.update(probs, labels)
        # Theirs is the trapezoid rule from coverage 1 / N, divided by its width; ours starts at 0.
        assert float(metric.compute()) == pytest.approx((ours[1:] + ours[:-1]).mean() / 2, abs=1e-6)


def test_the_choice_is_the_lowest_aurc_and_survives_storage() -> None:
    logits, labels = predictions(2000, 3)
    # Images of very different scale: their logits' size says nothing, and the norm removes it.
    scale = torch.exp(torch.randn(2000, 1, generator=torch.Generator().manual_seed(0), dtype=torch.float64))
    chosen = choose_score(logits * scale, labels)
    assert chosen.score.name == "max_logit_p_norm"
    assert chosen.aurc == min(aurc for _, aurc, _ in chosen.tried)
    assert len(chosen.tried) == 14
    again = SelectionScore.from_dict(json.loads(json.dumps(chosen.score.to_dict())))
    assert again == chosen.score
    order = torch.randperm(2000, generator=torch.Generator().manual_seed(1))
    assert choose_score((logits * scale)[order], labels[order]).score == chosen.score


def test_the_highest_probability_stays_where_another_score_is_better_by_chance_only() -> None:
    """Where logits come from their probabilities alone, no score is better than the highest probability."""
    chosen, lowest = [], []
    for seed in range(20):
        generator = torch.Generator().manual_seed(seed)
        logits = torch.randn(400, 6, generator=generator, dtype=torch.float64)
        logits += (
            torch.randn(400, 1, generator=generator, dtype=torch.float64).exp() * torch.eye(6)[torch.arange(400) % 6]
        )
        labels = torch.multinomial(torch.softmax(logits, dim=1), 1, generator=generator)[:, 0]
        found = choose_score(logits, labels)
        chosen.append(found.score.name)
        lowest.append(min(found.tried, key=lambda each: each[1])[0].name)
    assert chosen.count("max_probability") > 14 > lowest.count("max_probability")


def test_equal_areas_choose_the_highest_probability() -> None:
    chosen = choose_score(torch.eye(3) * 4, torch.arange(3))
    assert (chosen.score, chosen.aurc) == (SelectionScore("max_probability"), 0)


@pytest.mark.parametrize(
    ("stored", "message"),
    [
        ({"name": "max_prob", "norm_order": 0.0}, "Did you mean 'max_probability'"),
        ({"name": "max_logit_p_norm", "norm_order": 0.5}, "at least 1"),
        ({"name": "max_logit_p_norm", "norm_order": math.nan}, "norm_order is nan"),
        ({"name": "margin", "norm_order": 2.0}, "must be 0 for margin"),
        ({"name": "margin"}, "lacks norm_order"),
        ({"name": ["margin"], "norm_order": 0.0}, "name is"),
        ("margin", "must be a dictionary"),
    ],
)
def test_bad_storage_is_refused(stored: object, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        SelectionScore.from_dict(stored)


def test_bad_scores_are_refused() -> None:
    with pytest.raises(DataError, match="do not match"):
        risk_coverage([0.1, 0.2], [True])
    with pytest.raises(NonFiniteError, match="1 of 2 scores"):
        risk_coverage([0.1, math.inf], [True, True])
    assert isinstance(risk_coverage([0.1], [True]), RiskCoverage)
