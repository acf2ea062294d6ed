"""The decisions of :mod:`vitreous.evaluate` in operators that a graph can hold: unsure predictions and sets of classes.

They compute in float64, as the originals do. A runtime that has float32 only, such as OpenVINO, can decide otherwise
where a score is within about 1e-6 of its threshold. So can any runtime in the sets of RAPS where two classes are
equally probable: which of them comes first is then the runtime's choice. Shapes: B images, K classes.
"""

from __future__ import annotations

import torch
from torch import Tensor

from vitreous.errors import ConfigError
from vitreous.evaluate.trust.abstention import AbstentionRule
from vitreous.evaluate.trust.conformal import ConformalSets
from vitreous.evaluate.trust.selective import SelectionScore

__all__ = ["holds", "is_unsure"]


def is_unsure(rule: AbstentionRule, calibrated: Tensor) -> Tensor:
    """Return which predictions are unsure, (B,), from logits divided by the temperature, (B, K) in float64."""
    return ~(_score(rule.score, calibrated) > rule.threshold)


def _score(score: SelectionScore, logits: Tensor) -> Tensor:
    """Return the scores (B,) of :class:`~vitreous.evaluate.trust.selective.SelectionScore` for logits (B, K)."""
    if score.name == "max_logit":
        return logits.amax(1)
    if score.name == "max_logit_p_norm":
        centred = logits - logits.mean(1, keepdim=True)
        largest = centred.abs().amax(1, keepdim=True)
        scaled = centred / torch.where(largest > 0, largest, torch.ones_like(largest))
        norm = scaled.abs().pow(score.norm_order).sum(1).pow(1 / score.norm_order)
        return scaled.amax(1) / torch.where(norm > 0, norm, torch.ones_like(norm))
    probs = logits.softmax(1)
    if score.name == "margin":
        if probs.shape[1] == 1:
            return probs[:, 0]
        top = probs.topk(2, 1).values
        return top[:, 0] - top[:, 1]
    if score.name == "negative_entropy":
        return (probs * logits.log_softmax(1)).sum(1)
    return probs.amax(1)


def holds(rule: ConformalSets, probs: Tensor) -> Tensor:
    """Return which classes the sets hold, (B, K), for probabilities (B, K) in float64.

    Raises:
        ConfigError: If the rule is randomised; a graph gives each image one answer.
    """
    if rule.randomised:
        raise ConfigError(
            "the sets of this model are randomised, and a graph gives each image one answer: "
            "calibrate again, or export with --ignore-thresholds"
        )
    scores = 1 - probs if rule.method == "lac" else _summed(rule, probs)
    held = scores <= torch.tensor(rule.thresholds, dtype=probs.dtype)
    if rule.include_top:
        first = probs.argmax(1, keepdim=True) == torch.arange(rule.classes)
        held = held | first
    return held


def _summed(rule: ConformalSets, probs: Tensor) -> Tensor:
    """Return the scores (B, K) of RAPS."""
    falling, order = probs.topk(rule.classes, 1)  # of equal probabilities, runtimes take the first class first
    ranks = torch.arange(1, rule.classes + 1)
    down_to = falling.cumsum(1) + rule.penalty * (ranks - rule.free_ranks).clamp_min(0)
    return torch.zeros_like(probs).scatter(1, order, down_to)
