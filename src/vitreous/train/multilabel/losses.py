"""Losses of several labels. B images, K labels; logits and targets are (B, K), targets in [0, 1]."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

from vitreous.train.multilabel.config import LabelsConfig

__all__ = ["asymmetric_loss", "label_loss"]

_LEAST = 1e-8  # probability whose logarithm is taken, as in the paper's code


def label_loss(config: LabelsConfig, logits: Tensor, targets: Tensor) -> Tensor:
    """Return the loss that is configured, the mean over images and labels, in nats."""
    if config.loss == "bce":
        return F.binary_cross_entropy_with_logits(logits, targets)
    return asymmetric_loss(logits, targets, config.gamma_negative, config.gamma_positive, config.margin)


def asymmetric_loss(
    logits: Tensor, targets: Tensor, gamma_negative: float, gamma_positive: float, margin: float
) -> Tensor:
    """Return the asymmetric loss (arXiv 2009.14119, equations 4 to 7), the mean over images and labels.

    A positive has ``(1 - p)^gamma_positive * -log p``, and a negative ``q^gamma_negative * -log(1 - q)`` with
    ``q = max(p - margin, 0)``. A target between 0 and 1, as mixing makes it, weights the two.
    """
    positive = -F.logsigmoid(logits) * torch.sigmoid(-logits).pow(gamma_positive)
    shifted = (torch.sigmoid(logits) - margin).clamp_min(0)
    negative = -torch.log((1 - shifted).clamp_min(_LEAST)) * shifted.pow(gamma_negative)
    return (targets * positive + (1 - targets) * negative).mean()
