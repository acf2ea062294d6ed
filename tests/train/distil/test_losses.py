"""The losses of distillation against the same sums written out in float64."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from vitreous.train.distil.losses import feature_loss, logit_loss, match_grid, standardise


def softmax(values):
    powers = np.exp(values - values.max(1, keepdims=True))
    return powers / powers.sum(1, keepdims=True)


def rows(*shape, seed=0, scale=3.0):
    return scale * np.random.default_rng(seed).standard_normal(shape)


@pytest.mark.parametrize("temperature", [0.5, 1.0, 4.0])
def test_logit_loss_and_its_gradient(temperature):
    student, teacher = rows(6, 5), rows(6, 5, seed=1)
    p, q = softmax(teacher / temperature), softmax(student / temperature)
    expected = temperature**2 * (p * (np.log(p) - np.log(q))).sum(1).mean()
    logits = torch.tensor(student, dtype=torch.float32, requires_grad=True)
    loss = logit_loss(logits, torch.tensor(teacher, dtype=torch.float32), temperature)
    loss.backward()
    assert loss.item() == pytest.approx(expected, rel=1e-5)
    np.testing.assert_allclose(logits.grad, temperature * (q - p) / 6, atol=1e-6)


def test_a_model_that_agrees_has_no_logit_loss():
    logits = torch.tensor(rows(3, 4), dtype=torch.float32)
    assert logit_loss(logits + 2, logits, 2.0).abs() < 1e-6  # softmax does not change with a constant


@pytest.mark.parametrize("shape", [(4, 8), (2, 3, 8)])
def test_features_are_standardised_before_the_squared_error(shape):
    student, teacher = rows(*shape), rows(*shape, seed=1, scale=50.0) + 7
    mean, variance = teacher.mean(-1, keepdims=True), teacher.var(-1, keepdims=True)
    target = (teacher - mean) / np.sqrt(variance + 1e-6)
    learnt = standardise(torch.tensor(teacher, dtype=torch.float32))
    np.testing.assert_allclose(learnt, target, atol=1e-5)
    loss = feature_loss(torch.tensor(student, dtype=torch.float32), learnt)
    assert loss.item() == pytest.approx(((student - target) ** 2).mean(), rel=1e-5)


def resize(values, count):
    """Linear interpolation along the first axis, whose triangle widens to cover all values when shrinking."""
    scale = len(values) / count
    reach = max(scale, 1.0)
    out = []
    for place in range(count):
        centre = (place + 0.5) * scale
        weights = np.maximum(1 - np.abs(np.arange(len(values)) + 0.5 - centre) / reach, 0)
        out.append((weights[:, None] * values.reshape(len(values), -1)).sum(0) / weights.sum())
    return np.stack(out).reshape(count, *values.shape[1:])


@pytest.mark.parametrize("target", [(2, 3), (4, 4), (7, 5), (1, 1)])
def test_patches_of_another_grid_are_interpolated(target):
    features = rows(2, 4 * 4, 3)
    expected = [
        resize(resize(one.reshape(4, 4, 3), target[0]).swapaxes(0, 1), target[1]).swapaxes(0, 1) for one in features
    ]
    matched = match_grid(torch.tensor(features, dtype=torch.float32), (4, 4), target)
    np.testing.assert_allclose(matched, np.stack(expected).reshape(2, -1, 3), atol=1e-5)
