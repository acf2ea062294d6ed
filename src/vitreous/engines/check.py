"""Whether an engine agrees with PyTorch in float32: images to check it on, and the tolerances.

Shapes: B batch, C channels, H x W pixels, K classes, F features.
"""

from __future__ import annotations

import secrets
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from vitreous.engines.base import Engine
from vitreous.engines.names import Precision

__all__ = ["CHECKED", "TOLERANCE", "Agreement", "agreement", "check_images"]


Pixels = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Agreement:
    """How far an engine is from the reference, or may be, on the image where it is farthest.

    Args:
        logits: The largest difference of two logits, less the image's mean, as a share of the image's largest.
        features: The same of features, as they are.
        probabilities: The largest difference of two calibrated probabilities.
    """

    logits: float
    features: float
    probabilities: float

    def within(self, bound: Agreement) -> bool:
        """Whether no difference is above its bound; one that is no number is."""
        return all(getattr(self, name) <= getattr(bound, name) for name in ("logits", "features", "probabilities"))

    def __str__(self) -> str:
        return f"logits {self.logits:.1e}, features {self.features:.1e}, probabilities {self.probabilities:.1e}"


TOLERANCE: dict[Precision, Agreement] = {
    "float32": Agreement(1e-4, 1e-4, 1e-4),
    "bf16": Agreement(1e-1, 1e-1, 5e-2),
}
"""How far two answers for one image may be apart on one machine, whichever engine and batch size computed them: in
float32 any two, in bf16 each from float32. On 736 photographs, by three small models, engines in float32 were up to
8e-7 and 1.5e-6 apart in probabilities and features, and bf16 up to 0.027 and 0.064 from them."""

CHECKED: dict[Precision, Agreement] = {
    "float32": Agreement(3e-5, 3e-5, 3e-5),
    "bf16": Agreement(5e-2, 5e-2, 2e-2),
}
"""What an engine is held to on the check images. In float32 two engines that meet it are 6e-5 apart, which leaves room
for other images. Several times what sound engines showed on every variant of the model: 2e-6 in float32, and 1e-2 in
bf16, which rounds each number to 8 bits, 4e-3 of its value (docs/benchmarks.md)."""


def check_images(channels: int, size: tuple[int, int]) -> Tensor:
    """Return three images to compare engines on, 3 x C x H x W of uint8, others each time.

    They are drawn from the system's randomness, so that no file can be made to fit them: a scene of waves, edges and
    grain; colours whose spectrum falls with the frequency as that of photographs does; and noise.
    """
    random = np.random.default_rng(secrets.randbits(128))
    made = [
        _scene(random, channels, size),
        _photographic(random, channels, size),
        random.uniform(0, 255, (channels, *size)),
    ]
    return torch.from_numpy(np.clip(np.stack(made), 0, 255).astype(np.uint8))


def _scene(random: np.random.Generator, channels: int, size: tuple[int, int]) -> Pixels:
    """Waves of several lengths and directions, a rectangle, and grain (C, H, W)."""
    y, x = np.meshgrid(*(np.linspace(0, 1, side) for side in size), indexing="ij")
    planes = []
    top, left = random.uniform(0.1, 0.6, 2)
    for _ in range(channels):
        waves = sum(
            np.sin(2 * np.pi * (random.normal(0, n) * x + random.normal(0, n) * y + random.uniform())) / n
            for n in (1, 3, 8)
        )
        inside = (abs(y - top) < 0.15) & (abs(x - left) < 0.2)
        planes.append(127 + 50 * waves + random.normal(0, 60) * inside + random.normal(0, 8, size))
    return np.stack(planes)


def _photographic(random: np.random.Generator, channels: int, size: tuple[int, int]) -> Pixels:
    """Brightness and, weaker, colours whose amplitude falls as 1 / frequency (D. J. Field, 1987) (C, H, W)."""
    frequency = np.hypot(*np.meshgrid(np.fft.fftfreq(size[0]), np.fft.fftfreq(size[1]), indexing="ij"))
    falling = 1 / np.maximum(frequency, 1 / max(size))
    planes = []
    for _ in range(1 + channels):  # brightness, then what each channel adds
        plane = np.fft.ifft2(np.fft.fft2(random.normal(size=size)) * falling).real
        planes.append((plane - plane.mean()) / max(plane.std(), 1e-6))
    contrast, brightness = random.uniform(30, 60), random.uniform(90, 160, (channels, 1, 1))
    return brightness + contrast * (planes[0] + 0.3 * np.stack(planes[1:]))


def agreement(engine: Engine, images: Tensor, reference: tuple[Tensor, Tensor], temperature: float) -> Agreement:
    """Have an engine compute the images as one batch and the first alone, and compare each with the reference.

    Args:
        engine: What is checked.
        images: The check images, normalised, B x C x H x W.
        reference: Their logits B x K and features B x F by PyTorch in float32.
        temperature: Of the model's probabilities.
    """
    logits, features = (torch.cat(parts) for parts in zip(engine(images), engine(images[:1]), strict=True))
    right_logits, right_features = (torch.cat((each, each[:1])) for each in reference)
    if logits.shape != right_logits.shape or features.shape != right_features.shape:
        return Agreement(torch.inf, torch.inf, torch.inf)
    own, right = (each - each.mean(1, keepdim=True) * (each.shape[1] > 1) for each in (logits, right_logits))
    chances = [(each / temperature).softmax(1) for each in (own, right)]
    apart = float((chances[0] - chances[1]).abs().max())
    return Agreement(_share(own, right), _share(features, right_features), apart)


def _share(own: Tensor, right: Tensor) -> float:
    """The largest difference in a row as a share of the row's largest value, in the row where it is largest."""
    return float(((own - right).abs().amax(1) / right.abs().amax(1).clamp_min(1e-6)).max())
