"""Losses of several labels against torchvision, the formula written out, and the targets that training makes."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.distributions import Bernoulli, kl_divergence
from torchvision.ops import sigmoid_focal_loss

from vitreous.data.augment.mixing import mixup, smooth_targets
from vitreous.errors import ConfigError
from vitreous.train.distil.losses import label_logit_loss
from vitreous.train.finetune.trainable import class_weights
from vitreous.train.multilabel.config import LabelsConfig
from vitreous.train.multilabel.losses import asymmetric_loss, label_loss


def batch() -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    logits = 4 * torch.randn(6, 5, generator=generator, dtype=torch.float64)
    return logits, (torch.rand(6, 5, generator=generator) < 0.4).double()


@pytest.mark.parametrize("gamma", [0.0, 1.0, 2.0])
def test_equal_exponents_without_a_margin_are_the_focal_loss(gamma):
    logits, targets = batch()
    logits.requires_grad_(True)
    ours = asymmetric_loss(logits, targets, LabelsConfig("asymmetric", gamma, gamma, 0.0))
    theirs = sigmoid_focal_loss(logits, targets, alpha=-1, gamma=gamma, reduction="mean")
    torch.testing.assert_close(ours, theirs, rtol=1e-9, atol=0)
    gradients = [torch.autograd.grad(loss, logits)[0] for loss in (ours, theirs)]
    torch.testing.assert_close(*gradients, rtol=1e-7, atol=1e-12)


def test_the_asymmetric_loss_is_the_formula_of_the_paper():
    logits, targets = batch()
    total = 0.0
    for z, y in zip(logits.flatten().tolist(), targets.flatten().tolist(), strict=True):
        p = 1 / (1 + 2.718281828459045**-z)
        q = max(p - 0.05, 0.0)
        positive = -((1 - p) ** 0.5) * torch.tensor(p, dtype=torch.float64).log()
        negative = -(q**4) * torch.tensor(1 - q, dtype=torch.float64).log()
        total += float(positive if y else negative)
    config = LabelsConfig(loss="asymmetric", gamma_positive=0.5)
    assert float(label_loss(config, logits, targets)) == pytest.approx(total / 30, rel=1e-9)


def test_the_loss_is_finite_where_probabilities_round_to_0_and_1():
    logits = torch.tensor([[200.0, -200.0, 200.0, -200.0]], requires_grad=True)
    targets = torch.tensor([[1.0, 0.0, 0.0, 1.0]])
    for config in (LabelsConfig(), LabelsConfig(loss="asymmetric")):
        loss = label_loss(config, logits, targets)
        (gradient,) = torch.autograd.grad(loss, logits)
        assert loss.isfinite()
        assert gradient.isfinite().all()


def test_targets_are_smoothed_towards_a_half_and_mixed_label_by_label():
    labels = torch.tensor([[1, 0, 1], [0, 0, 0]])
    torch.testing.assert_close(smooth_targets(labels, 3, 0.2), torch.tensor([[0.9, 0.1, 0.9], [0.1, 0.1, 0.1]]))
    _, mixed = mixup(torch.zeros(2, 1, 2, 2), smooth_targets(labels, 3, 0.0), 0.75)
    torch.testing.assert_close(mixed, torch.tensor([[0.75, 0.0, 0.75], [0.25, 0.0, 0.25]]))
    assert labels.tolist() == [[1, 0, 1], [0, 0, 0]]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"loss": "focal"}, "loss is 'focal'"),
        ({"gamma_negative": -1.0}, "gamma_negative is -1.0, it cannot be negative"),
        ({"margin": 1.0}, r"margin is 1.0, it is a probability and must be in \[0, 1\)"),
    ],
)
def test_options_are_checked(options, message):
    with pytest.raises(ConfigError, match=message):
        LabelsConfig(**options)


@pytest.mark.parametrize("loss", ["bce", "asymmetric"])
def test_a_weight_counts_the_positives_of_its_label(loss):
    logits, targets = batch()
    config, weight = LabelsConfig(loss=loss), torch.tensor([1.0, 2.0, 1.0, 0.5, 3.0], dtype=torch.float64)
    negatives = -(1 - targets) * torch.log(1 - (p := logits.sigmoid())) if loss == "bce" else None
    if negatives is not None:
        expected = (negatives - targets * weight * p.log()).mean()
        assert float(label_loss(config, logits, targets, weight)) == pytest.approx(float(expected))
    doubled = label_loss(config, logits, targets, 2 * weight) - label_loss(config, logits, targets, weight)
    none = label_loss(config, logits, targets, 0 * weight)
    assert float(doubled) == pytest.approx(float(label_loss(config, logits, targets, weight) - none))


def test_images_with_a_label_weigh_as_much_as_those_without():
    labels = np.zeros((100, 4), dtype=np.int64)
    labels[:20, 0], labels[:50, 1], labels[:, 2] = 1, 1, 1
    weights = class_weights(labels, 4, "inverse")
    assert weights.tolist() == [4, 1, 1, 1]  # of a label that none or all have, nothing can be balanced
    effective = class_weights(labels, 4, "effective")
    assert float(effective[0]) == pytest.approx((1 - 0.999**80) / (1 - 0.999**20))
    assert class_weights(labels, 4, "none") is None


def test_the_loss_of_a_teacher_is_the_divergence_of_two_coins():
    logits, _ = batch()
    teacher = 2 * torch.randn(6, 5, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    for temperature in (1.0, 3.0):
        ours, theirs = (Bernoulli(logits=each.float() / temperature) for each in (teacher, logits))
        expected = kl_divergence(ours, theirs).mean() * temperature**2
        torch.testing.assert_close(label_logit_loss(logits, teacher, temperature), expected)
    assert float(label_logit_loss(logits, logits, 2.0)) == pytest.approx(0, abs=1e-6)
