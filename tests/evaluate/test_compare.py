"""Paired comparisons: p-values by enumeration and by scipy, and false alarms among pairs of equally good models."""

from __future__ import annotations

from math import comb

import numpy as np
import pytest
import torch
from scipy.stats import permutation_test
from sklearn import metrics as sk

from vitreous.errors import DataError
from vitreous.evaluate.scoring.compare import compare, mcnemar
from vitreous.evaluate.scoring.intervals import bootstrap


def pair(
    generator: torch.Generator, n: int, gain: float = 0.0, own: float = 1.0, strength: float = 2.0
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Logits of two models with common and own noise, the first stronger by `gain`, and labels of four classes."""
    labels = torch.randint(0, 4, (n,), generator=generator)
    common, a, b = torch.randn(3, n, 4, generator=generator, dtype=torch.float64)
    truth = torch.nn.functional.one_hot(labels, 4)
    return common + own * a + (strength + gain) * truth, common + own * b + strength * truth, labels


@pytest.mark.parametrize(("only_a", "only_b"), [(0, 0), (1, 0), (3, 9), (10, 10), (40, 70)])
def test_mcnemar_by_enumeration(only_a: int, only_b: int) -> None:
    a = np.array([True] * only_a + [False] * only_b + [True, False])
    b = np.array([False] * only_a + [True] * only_b + [True, False])
    n, observed = only_a + only_b, comb(only_a + only_b, only_a)
    ways = [comb(n, k) for k in range(n + 1)]
    expected = (sum(way for way in ways if way < observed) + sum(way for way in ways if way == observed) / 2) / 2**n
    if only_a == only_b:  # the single most likely split: the tails overlap, and the doubled tail is 1
        expected = 1.0
    result = mcnemar(a, b)
    assert (result.only_a, result.only_b) == (only_a, only_b)
    assert result.p_value == pytest.approx(expected, abs=1e-12)


@pytest.mark.parametrize("discordant", [0.02, 0.12])
def test_mcnemar_gives_5_percent_false_alarms(discordant: float) -> None:
    """20,000 pairs, so that chance moves the rate by 0.3 % at most; 2,000 images each."""
    random = np.random.default_rng(0)
    cells = random.multinomial(2000, [discordant / 2, discordant / 2, 0.8, 0.2 - discordant], 20_000)
    splits, counts = np.unique(cells[:, :2], axis=0, return_counts=True)
    alarms = 0
    for (only_a, only_b), count in zip(splits, counts, strict=True):
        a = np.arange(only_a + only_b) < only_a
        alarms += count * (mcnemar(a, ~a).p_value <= 0.05)
    assert 0.04 <= alarms / 20_000 <= 0.06


def test_p_values_are_those_of_every_swap() -> None:
    """scipy enumerates the 2^8 swaps of the two models' predictions, of scores by scikit-learn."""
    generator = torch.Generator().manual_seed(3)
    labels = torch.arange(8) % 3
    a, b = torch.randn(2, 8, 3, generator=generator, dtype=torch.float64)
    a = a + 2 * torch.nn.functional.one_hot(labels, 3)
    true, classes = labels.numpy(), [each.argmax(dim=1).numpy() for each in (a, b)]
    losses = [torch.nn.functional.cross_entropy(each, labels, reduction="none").numpy() for each in (a, b)]
    ours = compare(a, b, labels, resamples=20_000)
    for name, given, score in (
        ("top1", classes, lambda each: sk.accuracy_score(true, each)),
        ("macro_f1", classes, lambda each: sk.f1_score(true, each, average="macro")),
        ("mcc", classes, lambda each: sk.matthews_corrcoef(true, each)),
        ("log_loss", losses, np.mean),
    ):
        everything = permutation_test(
            given, lambda x, y, score=score: score(x) - score(y), permutation_type="samples", n_resamples=5000
        )
        null, observed = everything.null_distribution, everything.statistic
        assert len(null) == 2**8
        equal = np.isclose(null, observed, atol=1e-12).mean()
        beyond = min(each + equal / 2 for each in ((null > observed + 1e-12).mean(), (null < observed - 1e-12).mean()))
        assert 0.01 < 2 * beyond < 0.9, "the case decides nothing"
        assert ours[name].p_value == pytest.approx(2 * beyond, abs=0.015), name  # 4 standard errors of 20,000 swaps


def test_differences_give_5_percent_false_alarms() -> None:
    generator = torch.Generator().manual_seed(1)
    names = ("top1", "log_loss", "macro_f1", "mcc", "ece")
    alarms = dict.fromkeys(names, 0)
    for _ in range(1000):
        result = compare(*pair(generator, 100), resamples=200)
        for name in names:
            alarms[name] += result[name].p_value <= 0.05
    assert {name: count for name, count in alarms.items() if not 40 <= count <= 60} == {}


@pytest.mark.parametrize(("only_a", "only_b"), [(4, 0), (5, 1), (6, 0), (9, 3)])
def test_few_images_decide_as_in_mcnemars_test(only_a: int, only_b: int) -> None:
    """Of 100 images, the models differ on a few; a bootstrap gives 4 to 0 a p-value of 0.02."""
    labels = torch.arange(100) % 2
    truth = torch.nn.functional.one_hot(labels, 2).double()
    a, b = truth.clone(), truth.clone()
    b[:only_a], a[only_a : only_a + only_b] = 1 - b[:only_a], 1 - a[only_a : only_a + only_b]
    expected = mcnemar((a.argmax(1) == labels).numpy(), (b.argmax(1) == labels).numpy()).p_value
    assert compare(a, b, labels, resamples=20_000)["top1"].p_value == pytest.approx(expected, abs=0.01)


def test_intervals_of_few_images_leave_out_0_in_5_percent() -> None:
    """Ten images per class: without the weights n / (n - 1) the intervals of the loss miss 0 in 7 % or more."""
    generator, missed = torch.Generator().manual_seed(2), 0
    for _ in range(1000):
        found = compare(*pair(generator, 40), resamples=200)["log_loss"].difference
        missed += not found.low <= 0 <= found.high
    assert 35 <= missed <= 65


def test_a_better_model_is_found_and_the_sign_is_right() -> None:
    a, b, labels = pair(torch.Generator().manual_seed(0), 2000, gain=0.5)
    result = compare(a, b, labels, resamples=500)
    assert result["top1"].p_value < 0.01
    assert result["top1"].difference.low > 0
    assert result["log_loss"].difference.high < 0
    back = compare(b, a, labels, resamples=500)["top1"]
    assert back.difference.value == -result["top1"].difference.value
    assert result["top1"].difference.value == pytest.approx(
        bootstrap(a, labels, 1).values["top1"] - bootstrap(b, labels, 1).values["top1"], abs=1e-12
    )


def test_equal_models_do_not_differ() -> None:
    a, _, labels = pair(torch.Generator().manual_seed(0), 100)
    for each in compare(a, a, labels, resamples=50).values():
        assert (each.difference.value, each.difference.low, each.difference.high, each.p_value) == (0, 0, 0, 1)


def test_the_order_of_images_does_not_matter() -> None:
    a, b, labels = pair(torch.Generator().manual_seed(2), 150)
    order = torch.randperm(150, generator=torch.Generator().manual_seed(0))
    once, again = compare(a, b, labels, resamples=99), compare(a[order], b[order], labels[order], resamples=99)
    for name, each in once.items():
        assert each.p_value == again[name].p_value
        assert each.difference.low == pytest.approx(again[name].difference.low, abs=1e-12)


def test_what_cannot_be_compared_is_refused() -> None:
    with pytest.raises(DataError, match="same images"):
        mcnemar(np.ones(3, bool), np.ones(4, bool))
    with pytest.raises(DataError, match="same images"):
        compare(torch.zeros(3, 2), torch.zeros(3, 4), torch.zeros(3, dtype=torch.int64))
