"""Slices and comparisons of several labels: against the scores of the parts, and resamples one by one."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor

from vitreous.evaluate.multilabel.intervals import compare_labels
from vitreous.evaluate.multilabel.metrics import evaluate_labels
from vitreous.evaluate.multilabel.slices import score_label_slices
from vitreous.evaluate.scoring.intervals import wilson


def model(noise: float, seed: int) -> tuple[Tensor, Tensor, Tensor]:
    """Return logits, labels given and true labels of 80 images; models of less noise are better."""
    truth, own = torch.Generator().manual_seed(0), torch.Generator().manual_seed(seed)
    labels = torch.rand(80, 4, generator=truth) < 0.4
    logits = labels.double() * 2 - 1 + noise * torch.randn(80, 4, generator=own).double()
    return logits, logits > 0, labels


def test_slices_are_the_scores_of_their_images():
    logits, present, labels = model(1.0, 1)
    cells = ["a" if n < 20 else "b" if n < 70 else None for n in range(80)]
    found = {each.value: each for each in score_label_slices(logits, labels, present, {"site": cells})}
    assert {name: (each.n, each.small) for name, each in found.items()} == {
        "a": (20, True),
        "b": (50, False),
        "(missing)": (10, True),
    }
    scores = evaluate_labels(logits[20:70], labels[20:70], present[20:70])
    assert found["b"].mean_ap == scores.mean_ap
    assert found["b"].micro_f1 == scores.micro_f1
    assert found["b"].subset_accuracy == wilson(round(scores.subset_accuracy * 50), 50)
    assert [each.mean_ap for each in found.values()] == sorted(each.mean_ap for each in found.values())


def test_the_interval_is_that_of_the_same_resamples():
    (a, given_a, labels), (b, given_b, _) = model(0.8, 1), model(1.5, 2)
    found = compare_labels((a, given_a), (b, given_b), labels, resamples=50)
    rng, gaps = np.random.default_rng(0), []
    for counts in rng.multinomial(80, np.full(80, 1 / 80), size=50):
        rows = torch.from_numpy(np.repeat(np.arange(80), counts))
        gaps.append(evaluate_labels(a[rows], labels[rows]).mean_ap - evaluate_labels(b[rows], labels[rows]).mean_ap)
    low, high = np.percentile(gaps, (2.5, 97.5))
    difference = found["mean_ap"].difference
    assert (difference.low, difference.high) == pytest.approx((low, high), abs=0.01)  # order of equal logits
    scores = evaluate_labels(a, labels, given_a), evaluate_labels(b, labels, given_b)
    assert difference.value == pytest.approx(scores[0].mean_ap - scores[1].mean_ap)
    assert found["micro_f1"].difference.value == pytest.approx(scores[0].micro_f1 - scores[1].micro_f1)
    assert found["mean_ap"].p_value < 0.1


def test_a_model_does_not_differ_from_itself():
    logits, present, labels = model(1.0, 1)
    for each in compare_labels((logits, present), (logits, present), labels).values():
        assert (each.difference.value, each.difference.low, each.difference.high, each.p_value) == (0, 0, 0, 1)
