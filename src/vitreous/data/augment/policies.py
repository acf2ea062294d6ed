"""Augmentation policies: each image draws the operations that are applied to it.

A policy is a function of this signature, listed in :data:`vitreous.data.augment.POLICIES`::

    policy(images, draw, fill, config) -> images

    images: uint8 (B, C, H, W), not modified; the result has the same shape and dtype.
    draw: draw(n) returns (B, n) random numbers in [0, 1), on the CPU; to be called once.
    fill: (C,) colour in [0, 255] of pixels that come from outside the image.
    config: AugmentConfig, for options of the policy.

Shapes: B images of a batch, M images of a group, C channels, H x W pixels.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from vitreous.data.augment import color
from vitreous.data.augment.geometry import Floats, affine
from vitreous.data.config import AugmentConfig

__all__ = [
    "COLUMNS",
    "OPERATIONS",
    "Operation",
    "Policy",
    "rand_augment",
    "three_augment",
    "to_device",
    "trivial_augment",
]

COLUMNS = 3
"""Random numbers per operation: which one, how strong, which sign."""

Draw = Callable[[int], Floats]
Policy = Callable[[Tensor, Draw, Tensor, AugmentConfig], Tensor]
"""Takes images, operations, random numbers and the configuration; returns the images."""


def rand_augment(images: Tensor, draw: Draw, fill: Tensor, config: AugmentConfig) -> Tensor:
    """RandAugment (arXiv 1909.13719): `policy_ops` operations in sequence, drawn uniformly, all with the same strength.

    At magnitude 0 the geometric and the blending operations change nothing.
    """
    strength = np.full(len(images), config.policy_magnitude / 10, dtype=np.float32)
    uniform = draw(COLUMNS * config.policy_ops)
    for start in range(0, COLUMNS * config.policy_ops, COLUMNS):
        one = uniform[:, start : start + COLUMNS]
        images = _apply_drawn(images, one, strength, fill, lambda operation: operation.rand_limit)
    return images


def trivial_augment(images: Tensor, draw: Draw, fill: Tensor, config: AugmentConfig) -> Tensor:
    """TrivialAugment (arXiv 2103.10158): one operation, its strength drawn from 31 levels of a wide range."""
    uniform = draw(COLUMNS)
    strength = (np.floor(uniform[:, 1] * 31) / 30).astype(np.float32)
    return _apply_drawn(images, uniform, strength, fill, lambda operation: operation.wide_limit)


def three_augment(images: Tensor, draw: Draw, fill: Tensor, config: AugmentConfig) -> Tensor:
    """3-Augment (DeiT III, arXiv 2204.07118): greyscale, solarize at 128, or blur with a sigma of 0.1 to 2 pixels.

    The paper adds colour jitter of 0.3 and a flip; these are the options `color_jitter` and `flip`.
    """
    uniform = draw(COLUMNS)
    drawn = (uniform[:, 0] * 3).astype(np.int64)
    sigma = to_device(0.1 + np.float32(1.9) * uniform[:, 1], images.device)  # B
    threshold = torch.full_like(sigma, 128)
    operations: tuple[Callable[[Tensor, Tensor], Tensor], ...] = (
        lambda group, index: color.grayscale(group),
        lambda group, index: color.solarize(group, threshold[index]),
        lambda group, index: color.blur(group, sigma[index]),
    )
    result = images.clone()
    for number, operation in enumerate(operations):
        if len(members := np.flatnonzero(drawn == number)):
            index = to_device(members, images.device)
            result.index_copy_(0, index, operation(images[index], index))
    return result


@dataclass(frozen=True)
class Operation:
    """One of the 14 operations that RandAugment and TrivialAugment draw from.

    Args:
        amount: Maps strengths in [0, 1] (M,), signs -1 or 1 (M,), the limit and the size (H, W) to amounts (M,).
        rand_limit: Amount at full strength in RandAugment (arXiv 1909.13719; ranges of torchvision's RandAugment).
        wide_limit: The same in TrivialAugment (arXiv 2103.10158, the "wide" search space).
        apply: Maps images and amounts to images; None for the geometric operations, which share one affine map.
    """

    amount: Callable[[Floats, Floats, float, tuple[int, int]], Floats]
    rand_limit: float = 0.0
    wide_limit: float = 0.0
    apply: Callable[[Tensor, Tensor], Tensor] | None = None


def _signed(strength: Floats, sign: Floats, limit: float, size: tuple[int, int]) -> Floats:
    return strength * sign * np.float32(limit)


def _factor(strength: Floats, sign: Floats, limit: float, size: tuple[int, int]) -> Floats:
    return 1 + _signed(strength, sign, limit, size)


def _bits(strength: Floats, sign: Floats, limit: float, size: tuple[int, int]) -> Floats:
    return 8 - np.rint(strength * np.float32(limit))


def _threshold(strength: Floats, sign: Floats, limit: float, size: tuple[int, int]) -> Floats:
    return np.float32(limit) * (1 - strength)


def _translate(axis: int) -> Callable[[Floats, Floats, float, tuple[int, int]], Floats]:
    """Whole pixels. A limit up to 1 is a fraction of the side, a larger one pixels, at most the side."""

    def amount(strength: Floats, sign: Floats, limit: float, size: tuple[int, int]) -> Floats:
        reach = limit * size[axis] if limit <= 1 else min(limit, size[axis])
        return np.rint(strength * np.float32(reach)) * sign

    return amount


OPERATIONS: dict[str, Operation] = {
    "identity": Operation(_signed, apply=lambda images, _: images),
    "shear_x": Operation(_signed, 0.3, 0.99),
    "shear_y": Operation(_signed, 0.3, 0.99),
    "translate_x": Operation(_translate(1), 150 / 331, 32),
    "translate_y": Operation(_translate(0), 150 / 331, 32),
    "rotate": Operation(_signed, 30, 135),  # degrees, anticlockwise
    "brightness": Operation(_factor, 0.9, 0.99, color.brightness),
    "color": Operation(_factor, 0.9, 0.99, color.saturation),
    "contrast": Operation(_factor, 0.9, 0.99, color.contrast),
    "sharpness": Operation(_factor, 0.9, 0.99, color.sharpness),
    "posterize": Operation(_bits, 4, 6, color.posterize),
    "solarize": Operation(_threshold, 255, 255, color.solarize),
    "autocontrast": Operation(_signed, apply=lambda images, _: color.autocontrast(images)),
    "equalize": Operation(_signed, apply=lambda images, _: color.equalize(images)),
}
"""The operations of RandAugment and TrivialAugment by name."""


def _apply_drawn(
    images: Tensor, uniform: Floats, strength: Floats, fill: Tensor, limit: Callable[[Operation], float]
) -> Tensor:
    """Apply one randomly drawn operation to each image; images that drew the same operation go through it together.

    Of the random numbers ``uniform`` (B, COLUMNS), the first chooses the operation and the third the sign. ``strength``
    (B,) is in [0, 1], and ``limit`` returns an operation's amount at full strength.
    """
    size = (images.shape[2], images.shape[3])
    drawn = (uniform[:, 0] * len(OPERATIONS)).astype(np.int64)
    sign = np.where(uniform[:, 2] < 0.5, np.float32(-1), np.float32(1))
    result = images.clone()
    moved: list[npt.NDArray[np.int64]] = []
    matrices: list[Floats] = []
    for number, (name, operation) in enumerate(OPERATIONS.items()):
        members = np.flatnonzero(drawn == number)  # (M,)
        if name == "identity" or not len(members):
            continue
        amount = operation.amount(strength[members], sign[members], limit(operation), size).astype(np.float32)
        if operation.apply is None:
            moved.append(members)
            matrices.append(_affine_matrices(name, amount, size))
        else:
            index = to_device(members, images.device)
            result.index_copy_(0, index, operation.apply(images[index], to_device(amount, images.device)))
    if moved:
        index = to_device(np.concatenate(moved), images.device)
        result.index_copy_(0, index, affine(images[index], to_device(np.concatenate(matrices), images.device), fill))
    return result


def _affine_matrices(name: str, amount: Floats, size: tuple[int, int]) -> Floats:
    """Return (M, 2, 3) maps from output to input pixels, origin at the centre; shears fix the top or left edge."""
    matrix = np.tile(np.eye(2, 3, dtype=np.float32), (len(amount), 1, 1))
    if name == "shear_x":
        matrix[:, 0, 1], matrix[:, 0, 2] = amount, amount * size[0] / 2
    elif name == "shear_y":
        matrix[:, 1, 0], matrix[:, 1, 2] = amount, amount * size[1] / 2
    elif name == "translate_x":
        matrix[:, 0, 2] = -amount
    elif name == "translate_y":
        matrix[:, 1, 2] = -amount
    else:
        cosine, sine = np.cos(np.radians(amount)), np.sin(np.radians(amount))
        matrix[:, 0, 0], matrix[:, 0, 1], matrix[:, 1, 0], matrix[:, 1, 1] = cosine, -sine, sine, cosine
    return matrix


def to_device(array: npt.NDArray[np.generic], device: torch.device) -> Tensor:
    """Copy an array to the device without waiting for it."""
    return torch.from_numpy(array).to(device, non_blocking=True)
