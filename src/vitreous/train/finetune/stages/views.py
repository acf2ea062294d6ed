"""The views of an image whose features are computed: the evaluation pipeline's, then random crops and flips.

The random numbers of a view are a function of the seed, the view and the image's content, so that they do not change
with the other images of a folder.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from vitreous.data.augment.geometry import pad_crop
from vitreous.data.augment.resized_crop import CROP_COLUMNS, RandomResizedCrop
from vitreous.data.config import AugmentConfig
from vitreous.data.preprocess import EvalPipeline
from vitreous.data.sources.opening import Split

__all__ = ["Views"]

_COLUMNS = CROP_COLUMNS + 3  # random numbers of a view: of its crop, then its flip and its shift


@dataclass(frozen=True)
class Views:
    """The views of a run's images: view 0 is the evaluation pipeline, the others follow the training augmentation.

    Args:
        pipeline: The evaluation pipeline.
        augment: Of which the crop, the shift and the flip are used.
        seed: Seed of the random numbers.
    """

    pipeline: EvalPipeline
    augment: AugmentConfig
    seed: int

    @property
    def vary(self) -> bool:
        """Whether views other than the first differ from it."""
        return self.augment.resized_crop < 1 or self.augment.pad_crop > 0 or self.augment.flip > 0

    def to_dict(self, view: int) -> dict[str, Any]:
        """Return what the pixels of a view depend on besides the image, as JSON values."""
        if view == 0:
            return {"pipeline": self.pipeline.to_dict(), "view": 0}
        names = ("resized_crop", "resized_crop_ratio", "pad_crop", "flip")
        changed = {name: getattr(self.augment, name) for name in names}
        return {"pipeline": self.pipeline.to_dict(), "view": view, "seed": self.seed, **changed}

    def pixels(self, split: Split, index: int, view: int) -> npt.NDArray[np.uint8]:
        """Return a view of an image of a split, uint8 (H, W, C) of the pipeline's size."""
        if view == 0:
            return self.pipeline.pixels(split.image(index))
        content = split.digests[index] if split.digests else split.name_of(index).encode().hex()
        draws = np.random.default_rng([self.seed % 2**64, view, int(content, 16)]).random(_COLUMNS, dtype=np.float32)
        pixels = self._cropped(split, index, draws)
        is_mirrored = bool(draws[CROP_COLUMNS] < self.augment.flip)
        if self.augment.pad_crop:
            return self._shifted(pixels, draws[-2:], is_mirrored)
        return np.ascontiguousarray(pixels[:, ::-1]) if is_mirrored else pixels

    def _cropped(self, split: Split, index: int, draws: npt.NDArray[np.float32]) -> npt.NDArray[np.uint8]:
        if self.augment.resized_crop == 1:
            return self.pipeline.pixels(split.image(index))
        crop = RandomResizedCrop(self.pipeline, self.augment, self.seed)
        image, aspect = split.reduced_image(index, crop.min_side)
        box = crop.boxes(draws[None, :CROP_COLUMNS], np.array([aspect], np.float32))[0]
        return crop.cut(image, box.tolist())

    def _shifted(
        self, pixels: npt.NDArray[np.uint8], draws: npt.NDArray[np.float32], is_mirrored: bool
    ) -> npt.NDArray[np.uint8]:
        pad = self.augment.pad_crop
        corner = torch.from_numpy((draws * (2 * pad + 1)).astype(np.int64))[None]  # (1, 2)
        images = torch.from_numpy(np.array(pixels)).permute(2, 0, 1)[None]  # (1, C, H, W)
        shifted = pad_crop(images, corner, pad, torch.tensor([is_mirrored]))
        return shifted[0].permute(1, 2, 0).contiguous().numpy()
