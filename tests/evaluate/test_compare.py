"""Paired comparisons: p-values by enumeration, and false alarms among simulated pairs of equally good models."""

from __future__ import annotations

from math import comb

import numpy as np
import pytest
import torch

from vitreous.errors import DataError
from vitreous.evaluate.compare import compare, mcnemar
from vitreous.evaluate.intervals import bootstrap


def pair(generator: torch.Generator, n: int, gain: float = 0.0) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Logits of two models with common and own noise, the first stronger by `gain`, and labels of four classes."""
    labels = torch.randint(0, 4, (n,), generator=generator)
    common, a, b = torch.randn(3, n, 4, generator=generator, dtype=torch.float64)
    truth = torch.nn.functional.one_hot(labels, 4)
    return common + a + (2 + gain) * truth, common + b + 2 * truth, labels


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


def test_bootstrap_gives_5_percent_false_alarms() -> None:
    generator = torch.Generator().manual_seed(1)
    names = ("top1", "log_loss", "macro_f1", "mcc")
    alarms, outside = dict.fromkeys(names, 0), dict.fromkeys(names, 0)
    for _ in range(1000):
        result = compare(*pair(generator, 400), resamples=400)
        for name in names:
            alarms[name] += result[name].p_value <= 0.05
            outside[name] += not result[name].difference.low <= 0 <= result[name].difference.high
    assert {name: count for name, count in alarms.items() if not 40 <= count <= 60} == {}
    assert {name: count for name, count in outside.items() if not 35 <= count <= 65} == {}


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
