"""Slices against scores of the images picked by hand."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from sklearn.metrics import accuracy_score, balanced_accuracy_score, log_loss

from vitreous.errors import DataError
from vitreous.evaluate.scoring.intervals import wilson
from vitreous.evaluate.scoring.slices import MISSING, score_slices


def test_slices_agree_with_scikit_learn() -> None:
    generator = torch.Generator().manual_seed(0)
    labels = torch.randint(0, 3, (300,), generator=generator)
    logits = torch.randn(300, 3, generator=generator, dtype=torch.float64) + torch.nn.functional.one_hot(labels, 3)
    sites = np.random.default_rng(0).choice(["east", "west", ""], 300, p=[0.6, 0.3, 0.1])
    found = score_slices(logits, labels, {"site": list(sites), "camera": [None] * 299 + ["old"]}, minimum=50)
    assert [one.column for one in found] == ["site"] * 3 + ["camera"] * 2
    assert {(one.value, one.n) for one in found[3:]} == {("old", 1), (MISSING, 299)}
    probs = torch.softmax(logits, dim=1).numpy()
    for one in found[:3]:
        held = sites == ("" if one.value == MISSING else one.value)
        true, predicted = labels.numpy()[held], logits.argmax(dim=1).numpy()[held]
        assert one.n == held.sum()
        assert one.accuracy == wilson(int((true == predicted).sum()), one.n)
        assert one.accuracy.value == accuracy_score(true, predicted)
        assert one.macro_recall == pytest.approx(balanced_accuracy_score(true, predicted), abs=1e-12)
        assert one.log_loss == pytest.approx(log_loss(true, probs[held], labels=range(3)), abs=1e-9)
        assert one.small is (one.n < 50)
    values = [one.accuracy.value for one in found[:3]]
    assert values == sorted(values)
    assert any(one.small for one in found)


def test_bad_columns_are_refused() -> None:
    with pytest.raises(DataError, match="column 'site' has 1 values for 2 images"):
        score_slices(torch.eye(2), torch.arange(2), {"site": ["a"]})
    with pytest.raises(DataError, match="minimum is 0"):
        score_slices(torch.eye(2), torch.arange(2), {}, minimum=0)
