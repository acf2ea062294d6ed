"""Whether an engine agrees with PyTorch in float32: the images to check it with, and the tolerances.

Shapes: B batch, C channels, H x W pixels, K classes, F features.
"""

from __future__ import annotations

import secrets
from dataclasses import astuple, dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from vitreous.engines.base import Engine
from vitreous.engines.names import Precision
from vitreous.evaluate.multilabel.rule import LabelRule

__all__ = ["CHECKED", "TOLERANCE", "Agreement", "agreement", "check_images"]

Pixels = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Agreement:
    """Largest differences from the reference over all images; also the bounds on them."""

    logits: float  # relative to the image's largest logit, after subtracting its mean logit
    features: float  # relative to the image's largest feature
    probabilities: float  # absolute, after calibration

    def within(self, bound: Agreement) -> bool:
        """Return whether every difference is within its bound; a NaN is not."""
        return all(difference <= limit for difference, limit in zip(astuple(self), astuple(bound), strict=True))

    def __str__(self) -> str:
        return f"logits {self.logits:.1e}, features {self.features:.1e}, probabilities {self.probabilities:.1e}"


TOLERANCE: dict[Precision, Agreement] = {
    "float32": Agreement(1e-4, 1e-4, 1e-4),
    "bf16": Agreement(1e-1, 1e-1, 5e-2),
}
"""Promised bounds on the difference between two answers for one image on one machine, for any engine and batch size: in
float32 between any two answers, in bf16 from an answer in float32. What was measured is in
docs/explanation/benchmarks.md."""

CHECKED: dict[Precision, Agreement] = {
    "float32": Agreement(3e-5, 3e-5, 3e-5),
    "bf16": Agreement(5e-2, 5e-2, 2e-2),
}
"""Bounds on the check images. Two engines that meet the float32 bound differ by at most 6e-5, which leaves a margin to
`TOLERANCE` for other images. Correct engines differ several times less on every variant of the model."""


def check_images(channels: int, size: tuple[int, int]) -> Tensor:
    """Return three random images to compare engines on, 3 x C x H x W, uint8.

    One shows waves, edges and grain, one has the spectrum of photographs, and one is noise. The seed comes from the
    system, so no graph can be made to fit them.
    """
    rng = np.random.default_rng(secrets.randbits(128))
    images = [_scene(rng, channels, size), _photographic(rng, channels, size), rng.uniform(0, 255, (channels, *size))]
    return torch.from_numpy(np.clip(np.stack(images), 0, 255).astype(np.uint8))


def _scene(rng: np.random.Generator, channels: int, size: tuple[int, int]) -> Pixels:
    """Draw waves of several lengths and directions, a rectangle, and grain: C x H x W."""
    y, x = np.meshgrid(*(np.linspace(0, 1, side) for side in size), indexing="ij")
    planes = []
    top, left = rng.uniform(0.1, 0.6, 2)
    for _ in range(channels):
        waves = sum(
            np.sin(2 * np.pi * (rng.normal(0, n) * x + rng.normal(0, n) * y + rng.uniform())) / n for n in (1, 3, 8)
        )
        inside = (abs(y - top) < 0.15) & (abs(x - left) < 0.2)
        planes.append(127 + 50 * waves + rng.normal(0, 60) * inside + rng.normal(0, 8, size))
    return np.stack(planes)


def _photographic(rng: np.random.Generator, channels: int, size: tuple[int, int]) -> Pixels:
    """Draw brightness and weaker colours whose amplitude falls as 1 / frequency (D. J. Field, 1987): C x H x W."""
    frequency = np.hypot(*np.meshgrid(np.fft.fftfreq(size[0]), np.fft.fftfreq(size[1]), indexing="ij"))
    amplitude = 1 / np.maximum(frequency, 1 / max(size))
    planes = []
    for _ in range(1 + channels):  # brightness, then the colour of each channel
        plane = np.fft.ifft2(np.fft.fft2(rng.normal(size=size)) * amplitude).real
        planes.append((plane - plane.mean()) / max(plane.std(), 1e-6))
    contrast, brightness = rng.uniform(30, 60), rng.uniform(90, 160, (channels, 1, 1))
    return brightness + contrast * (planes[0] + 0.3 * np.stack(planes[1:]))


def agreement(
    engine: Engine,
    images: Tensor,
    reference: tuple[Tensor, Tensor],
    temperature: float,
    rule: LabelRule | None = None,
) -> Agreement:
    """Compare an engine with PyTorch's logits (B, K) and features (B, F) in float32, the reference.

    Probabilities are those of a softmax at the temperature, or of the rule for several labels, to which the mean of the
    logits matters. The normalised check images (B, C, H, W) are computed as one batch, and the first alone.
    """
    joined = (torch.cat(parts) for parts in zip(engine(images), engine(images[:1]), strict=True))
    logits, features = (each.flatten(1) for each in joined)  # features may be tokens, (B, T, D)
    expected_logits, expected_features = (torch.cat((each, each[:1])).flatten(1) for each in reference)
    if logits.shape != expected_logits.shape or features.shape != expected_features.shape:
        return Agreement(torch.inf, torch.inf, torch.inf)
    if rule is not None:
        probabilities, expected = (rule.probabilities(each) for each in (logits, expected_logits))
    else:
        if logits.shape[1] > 1:
            logits, expected_logits = (each - each.mean(1, keepdim=True) for each in (logits, expected_logits))
        probabilities, expected = ((each / temperature).softmax(1) for each in (logits, expected_logits))
    return Agreement(
        logits=_relative_difference(logits, expected_logits),
        features=_relative_difference(features, expected_features),
        probabilities=float((probabilities - expected).abs().max()),
    )


def _relative_difference(values: Tensor, expected: Tensor) -> float:
    """Return the largest difference in any row, relative to the row's largest value."""
    return float(((values - expected).abs().amax(1) / expected.abs().amax(1).clamp_min(1e-6)).max())
