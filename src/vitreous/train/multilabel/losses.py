"""Losses of several labels. B images, K labels; logits and targets are (B, K), targets in [0, 1].

:func:`choose_loss` also gives the loss of one class, so that the training step does not depend on the kind of data.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor
from torch.nn import functional as F

from vitreous.train.multilabel.config import LabelsConfig

__all__ = ["TargetLoss", "asymmetric_loss", "choose_loss", "label_loss"]

TargetLoss = Callable[..., Tensor]
"""The mean loss of logits and targets, (B, K) each, with `weight=` (K,) or None for the classes or labels."""

_LEAST = 1e-8  # probability whose logarithm is taken, as in the paper's code


def choose_loss(config: LabelsConfig, several: bool) -> TargetLoss:
    """Return the loss of data in which an image has one class, or may have several labels."""
    return partial(label_loss, config) if several else F.cross_entropy


def label_loss(config: LabelsConfig, logits: Tensor, targets: Tensor, weight: Tensor | None = None) -> Tensor:
    """Return the loss that is configured, the mean over images and labels, in nats.

    ``weight``, (K,), is that of the positives of each label, as torch's `pos_weight`; negatives have 1.
    """
    if config.loss == "bce":
        return F.binary_cross_entropy_with_logits(logits, targets, pos_weight=weight)
    return asymmetric_loss(logits, targets, config, weight)


def asymmetric_loss(logits: Tensor, targets: Tensor, config: LabelsConfig, weight: Tensor | None = None) -> Tensor:
    """Return the asymmetric loss (arXiv 2009.14119, equations 4 to 7), the mean over images and labels.

    A positive has ``(1 - p)^gamma_positive * -log p``, and a negative ``q^gamma_negative * -log(1 - q)`` with
    ``q = max(p - margin, 0)``. A target between 0 and 1, as mixing makes it, weights the two. ``weight``, (K,),
    multiplies the positives of each label.
    """
    positive = -F.logsigmoid(logits) * torch.sigmoid(-logits).pow(config.gamma_positive)
    if weight is not None:
        positive = positive * weight
    shifted = (torch.sigmoid(logits) - config.margin).clamp_min(0)
    negative = -torch.log((1 - shifted).clamp_min(_LEAST)) * shifted.pow(config.gamma_negative)
    return (targets * positive + (1 - targets) * negative).mean()
