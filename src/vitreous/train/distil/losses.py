"""What a model learns from its teacher: the losses of logits and of features, as pure functions.

Shapes: B images, K classes, (h, w) patches down and across, N = h w patches, D width.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

__all__ = ["feature_loss", "label_logit_loss", "logit_loss", "match_grid", "standardise"]

_EPSILON = 1e-6


def logit_loss(logits: Tensor, teacher: Tensor, temperature: float) -> Tensor:
    """Return T² KL(softmax(t / T) || softmax(s / T)), the mean over images (arXiv 1503.02531, section 2).

    The factor T² keeps the size of the gradients the same at all temperatures.

    Args:
        logits: Of the model, s, (B, K).
        teacher: Of the teacher, t, (B, K).
        temperature: T.
    """
    log_p = F.log_softmax(teacher.float() / temperature, dim=1)
    log_q = F.log_softmax(logits.float() / temperature, dim=1)
    return F.kl_div(log_q, log_p, reduction="batchmean", log_target=True) * temperature**2


def label_logit_loss(logits: Tensor, teacher: Tensor, temperature: float) -> Tensor:
    """Return T² KL(sigmoid(t / T) || sigmoid(s / T)) of each label, the mean over images and labels.

    As :func:`logit_loss`, where an image may have several labels, each of which is present or not.
    """
    t, s = teacher.float() / temperature, logits.float() / temperature
    p = torch.sigmoid(t)
    present = p * (F.logsigmoid(t) - F.logsigmoid(s))
    absent = (1 - p) * (F.logsigmoid(-t) - F.logsigmoid(-s))
    return (present + absent).mean() * temperature**2


def feature_loss(features: Tensor, teacher: Tensor) -> Tensor:
    """Return the mean squared error to the teacher's standardised features; both are (B, D) or (B, N, D).

    A model that knows nothing reaches 1, the variance of the target.
    """
    return F.mse_loss(features.float(), teacher.float())


def standardise(features: Tensor) -> Tensor:
    """Return features (..., D) with mean 0 and variance 1 over the last dimension: a norm without weights.

    The features of large models have a few channels of large values, which would decide the squared error alone
    (arXiv 2205.14141, section 3.2).
    """
    return F.layer_norm(features.float(), features.shape[-1:], eps=_EPSILON)


def match_grid(features: Tensor, grid: tuple[int, int], target: tuple[int, int]) -> Tensor:
    """Interpolate the features of a grid of patches, (B, h w, D), to those of another grid of the same image.

    Bilinear; a coarser grid averages all patches that it covers.
    """
    if grid == target:
        return features
    maps = features.float().transpose(1, 2).unflatten(2, grid)  # (B, D, h, w)
    with torch.autocast(features.device.type, enabled=False):
        maps = F.interpolate(maps, target, mode="bilinear", antialias=True)
    return maps.flatten(2).transpose(1, 2)  # (B, h' w', D)
