"""Batches of tiles cut from the photographs that come with scikit-learn, so that tests need no download."""

from __future__ import annotations

from functools import lru_cache

import numpy as np
import torch
from sklearn.datasets import load_digits, load_sample_image
from torch import Tensor

from vitreous.data.config import PreprocessConfig
from vitreous.data.preprocess import EvalPipeline

MEAN, STD = (0.45, 0.5, 0.4), (0.25, 0.2, 0.3)


@lru_cache
def tiles(count: int, height: int, width: int) -> Tensor:
    """Return uint8 tiles (count, 3, height, width), spread evenly over two photographs."""
    photos = [load_sample_image(name) for name in ("china.jpg", "flower.jpg")]
    pieces = []
    for number in range(count):
        photo = photos[number % 2]
        top = number * 37 % (photo.shape[0] - height)
        left = number * 53 % (photo.shape[1] - width)
        pieces.append(photo[top : top + height, left : left + width])
    return torch.from_numpy(np.stack(pieces)).permute(0, 3, 1, 2).contiguous()


@lru_cache
def digits() -> tuple[np.ndarray, np.ndarray]:
    """Return scikit-learn's digits as uint8 (1797, 8, 8, 1), and their labels."""
    bunch = load_digits()
    return np.rint(bunch.images * (255 / 16)).astype(np.uint8)[..., None], bunch.target.astype(np.int64)


def pipeline(height: int, width: int, **fields: object) -> EvalPipeline:
    """Return an RGB pipeline for an image size."""
    return EvalPipeline((height, width), 3, PreprocessConfig(mean=MEAN, std=STD, **fields))
