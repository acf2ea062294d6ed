"""RandAugment, TrivialAugment and 3-Augment on whole batches.

Each image draws its operations, and the images that drew the same one go through it together.

Shapes: images uint8 (B, C, H, W) in RGB order or one channel; draws are (B, ...) arrays on the CPU.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from vitreous.data.augment import color
from vitreous.data.augment.geometry import affine

__all__ = ["OPERATIONS", "POLICY_COLUMNS", "Operation", "rand_augment", "three_augment", "trivial_augment"]

POLICY_COLUMNS = 3  # uniform numbers that one operation uses up: which one, how strong, which sign
Floats = npt.NDArray[np.float32]


@dataclass(frozen=True)
class Operation:
    """One operation of the policies' list.

    Args:
        amount: From strengths in [0, 1], signs (-1 or 1), the policy's limit and the extent in pixels to the amounts.
        rand_limit: Amount at full strength in RandAugment (arXiv 1909.13719; ranges of torchvision's RandAugment).
        wide_limit: The same in TrivialAugment (arXiv 2103.10158, the "wide" space).
        apply: From images and amounts to images; None for the geometric operations, which share one affine map.
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
    """Whole pixels: limits up to 1 are shares of the extent, larger ones pixels (but no more than the extent)."""

    def amount(strength: Floats, sign: Floats, limit: float, size: tuple[int, int]) -> Floats:
        reach = limit * size[axis] if limit <= 1 else min(limit, size[axis])
        return np.rint(strength * np.float32(reach)) * sign

    return amount


_GEOMETRIC = {
    "shear_x": Operation(_signed, 0.3, 0.99),
    "shear_y": Operation(_signed, 0.3, 0.99),
    "translate_x": Operation(_translate(1), 150 / 331, 32),
    "translate_y": Operation(_translate(0), 150 / 331, 32),
    "rotate": Operation(_signed, 30, 135),  # degrees, anticlockwise
}

# The 14 operations of RandAugment and TrivialAugment.
OPERATIONS: dict[str, Operation] = {
    "identity": Operation(_signed, apply=lambda images, _: images),
    **_GEOMETRIC,
    "brightness": Operation(_factor, 0.9, 0.99, color.brightness),
    "color": Operation(_factor, 0.9, 0.99, color.saturation),
    "contrast": Operation(_factor, 0.9, 0.99, color.contrast),
    "sharpness": Operation(_factor, 0.9, 0.99, color.sharpness),
    "posterize": Operation(_bits, 4, 6, color.posterize),
    "solarize": Operation(_threshold, 255, 255, color.solarize),
    "autocontrast": Operation(_signed, apply=lambda images, _: color.autocontrast(images)),
    "equalize": Operation(_signed, apply=lambda images, _: color.equalize(images)),
}


def _matrices(name: str, amount: Floats, size: tuple[int, int]) -> Floats:
    """(M, 2, 3) maps from output to input pixels, origin in the middle; shears keep the top or left edge in place."""
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


def _to(array: npt.NDArray[np.generic], device: torch.device) -> Tensor:
    return torch.from_numpy(array).to(device, non_blocking=True)


def _apply(
    images: Tensor, uniform: Floats, strength: Floats, fill: Tensor, limit: Callable[[Operation], float]
) -> Tensor:
    """One operation for each image; (B, POLICY_COLUMNS) uniform numbers say which and with which sign."""
    names = list(OPERATIONS)
    size = (images.shape[2], images.shape[3])
    drawn = (uniform[:, 0] * len(names)).astype(np.int64)
    sign = np.where(uniform[:, 2] < 0.5, np.float32(-1), np.float32(1))
    result = images.clone()
    moved: list[npt.NDArray[np.int64]] = []
    maps: list[Floats] = []
    for number, name in enumerate(names):
        mine = np.flatnonzero(drawn == number)
        if name == "identity" or not len(mine):
            continue
        operation = OPERATIONS[name]
        amount = operation.amount(strength[mine], sign[mine], limit(operation), size).astype(np.float32)
        if operation.apply is None:
            moved.append(mine)
            maps.append(_matrices(name, amount, size))
        else:
            where = _to(mine, images.device)
            result.index_copy_(0, where, operation.apply(images[where], _to(amount, images.device)))
    if moved:
        where = _to(np.concatenate(moved), images.device)
        result.index_copy_(0, where, affine(images[where], _to(np.concatenate(maps), images.device), fill))
    return result


def rand_augment(images: Tensor, uniform: Floats, magnitude: float, fill: Tensor) -> Tensor:
    """RandAugment (arXiv 1909.13719): operations drawn uniformly, one after the other, all at one strength.

    Args:
        images: uint8 (B, C, H, W).
        uniform: (B, POLICY_COLUMNS x operations) in [0, 1).
        magnitude: 0 to 10; at 0 the geometric and the blending operations change nothing.
        fill: (C,) colour in 0..255 that comes in from outside.
    """
    strength = np.full(len(images), magnitude / 10, dtype=np.float32)
    for start in range(0, uniform.shape[1], POLICY_COLUMNS):
        part = uniform[:, start : start + POLICY_COLUMNS]
        images = _apply(images, part, strength, fill, lambda operation: operation.rand_limit)
    return images


def trivial_augment(images: Tensor, uniform: Floats, fill: Tensor) -> Tensor:
    """TrivialAugment (arXiv 2103.10158): one operation each, its strength drawn from 31 steps of a wide range.

    Args:
        images: uint8 (B, C, H, W).
        uniform: (B, POLICY_COLUMNS) in [0, 1).
        fill: (C,) colour in 0..255 that comes in from outside.
    """
    strength = (np.floor(uniform[:, 1] * 31) / 30).astype(np.float32)
    return _apply(images, uniform, strength, fill, lambda operation: operation.wide_limit)


def three_augment(images: Tensor, uniform: Floats) -> Tensor:
    """3-Augment (DeiT III, arXiv 2204.07118): grey, solarised at 128, or blurred with sigma 0.1 to 2 pixels.

    The paper adds colour jitter of 0.3 and a flip; here these are options of their own.

    Args:
        images: uint8 (B, C, H, W).
        uniform: (B, POLICY_COLUMNS) in [0, 1).
    """
    drawn = (uniform[:, 0] * 3).astype(np.int64)
    sigma = 0.1 + np.float32(1.9) * uniform[:, 1]
    result = images.clone()
    for number in range(3):
        mine = np.flatnonzero(drawn == number)
        if not len(mine):
            continue
        where = _to(mine, images.device)
        chosen = images[where]
        if number == 0:
            changed = color.grayscale(chosen)
        elif number == 1:
            changed = color.solarize(chosen, _to(np.full(len(mine), 128, np.float32), images.device))
        else:
            changed = color.blur(chosen, _to(sigma[mine], images.device))
        result.index_copy_(0, where, changed)
    return result
