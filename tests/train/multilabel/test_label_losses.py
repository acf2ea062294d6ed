"""Losses of several labels against torchvision, the formula written out, and the targets that training makes."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor
from torchvision.ops import sigmoid_focal_loss

from vitreous.data.augment.mixing import mixup, smooth_targets
from vitreous.errors import ConfigError
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
    ours = asymmetric_loss(logits, targets, gamma, gamma, 0.0)
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
