"""The promised precision holds on new images, and what cannot be promised is said."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch

from vitreous.errors import ConfigError
from vitreous.evaluate.trust.abstention import AbstentionRule, Unreachable, choose_threshold
from vitreous.evaluate.trust.selective import SelectionScore

SCORE = SelectionScore("max_probability")


def predictions(n: int, seed: int, strength: float = 2.5) -> tuple[torch.Tensor, np.ndarray]:
    """Logits (N, 5) and which predictions are correct."""
    generator = torch.Generator().manual_seed(seed)
    labels = torch.randint(0, 5, (n,), generator=generator)
    logits = torch.randn(n, 5, generator=generator, dtype=torch.float64)
    logits += strength * torch.nn.functional.one_hot(labels, 5)
    return logits, (logits.argmax(dim=1) == labels).numpy()


@pytest.mark.parametrize(
    ("required", "given", "mean_coverage"), [(0.95, 295, 0.7), (0.98, 270, 0.45), (0.99, 150, 0.15)]
)
def test_the_promise_holds_on_independent_images(required: float, given: int, mean_coverage: float) -> None:
    """300 validation sets, judged by 50,000 other images. At most 5 % may break the promise; chance adds up to 2 %."""
    judge, right = predictions(50_000, 10_000)
    broken, coverage = 0, []
    for seed in range(300):
        rule = choose_threshold(SCORE, *predictions(2000, seed), required)
        if isinstance(rule, AbstentionRule):
            accepted = rule.accepts(judge)
            broken += right[accepted].mean() < required
            coverage.append(accepted.mean())
    assert broken <= 21
    assert len(coverage) >= given
    assert sum(coverage) / 300 >= mean_coverage


def test_a_wrong_label_among_the_highest_scores_is_borne() -> None:
    logits, right = predictions(5000, 8)
    right[SCORE(logits).argmax()] = False
    assert isinstance(choose_threshold(SCORE, logits, right, 0.95), AbstentionRule)


def test_the_promise_holds_over_100_resplits() -> None:
    """100 random halves of one set, judged by the other half, where chance adds errors on both sides."""
    logits, right = predictions(10_000, 1)
    kept = 0
    for seed in range(100):
        order = np.random.default_rng(seed).permutation(10_000)
        first, rest = order[:5000], order[5000:]
        rule = choose_threshold(SCORE, logits[first], right[first], 0.97)
        assert isinstance(rule, AbstentionRule)
        kept += right[rest][rule.accepts(logits[rest])].mean() >= 0.97
    assert kept >= 93


def test_equal_scores_are_accepted_together_or_not_at_all() -> None:
    logits, right = predictions(3000, 2)
    logits = logits.round()
    rule = choose_threshold(SCORE, logits, right, 0.9)
    assert isinstance(rule, AbstentionRule)
    accepted = rule.accepts(logits)
    assert accepted.mean() == rule.coverage
    assert right[accepted].mean() == rule.precision


def test_the_order_of_images_does_not_matter() -> None:
    logits, right = predictions(1000, 3)
    order = np.random.default_rng(0).permutation(1000)
    assert choose_threshold(SCORE, logits, right, 0.95) == choose_threshold(SCORE, logits[order], right[order], 0.95)


def test_what_is_out_of_reach_is_said() -> None:
    few = choose_threshold(SCORE, *predictions(100, 4), 0.99)
    assert isinstance(few, Unreachable)
    assert "100 images are too few to show a precision of 99.00%" in few.reason
    weak = choose_threshold(SCORE, *predictions(2000, 5, strength=0.3), 0.99)
    assert isinstance(weak, Unreachable)
    assert "no threshold is shown to reach" in weak.reason
    assert 0 < weak.best_precision < 0.99
    one = choose_threshold(SCORE, *predictions(1, 6), 0.9)
    assert isinstance(one, Unreachable)
    with pytest.raises(ConfigError, match=r"required_precision is 1\.0"):
        choose_threshold(SCORE, *predictions(10, 6), 1.0)


def test_round_trip_and_strict_reading() -> None:
    rule = choose_threshold(SelectionScore("max_logit_p_norm", 3.0), *predictions(1000, 7), 0.9)
    assert isinstance(rule, AbstentionRule)
    stored = json.loads(json.dumps(rule.to_dict(), allow_nan=False))
    assert AbstentionRule.from_dict(stored) == rule
    for change, message in (
        ({"threshold": float("nan")}, "threshold is nan"),
        ({"required_precision": 1.0}, "required_precision"),
        ({"confidence": 0.0}, "confidence"),
        ({"coverage": 0.0}, "coverage"),
        ({"precision": 1.1}, "precision is"),
        ({"score": {"name": "luck", "norm_order": 0.0}}, "name is 'luck'"),
        ({"score": "margin"}, "SelectionScore is stored as str"),
    ):
        with pytest.raises(ConfigError, match=message):
            AbstentionRule.from_dict(stored | change)
    with pytest.raises(ConfigError, match="score"):
        AbstentionRule("margin", 0.5, 0.9, 0.95, 0.5, 0.9)  # type: ignore[arg-type]
