"""The loaders of labelled images for Lightning and any LightningModule."""

from __future__ import annotations

from typing import Any

from lightning.pytorch import LightningDataModule

from vitreous.data.batches.loaders import ImageLoaders
from vitreous.data.config import AugmentConfig
from vitreous.data.preprocess import EvalPipeline
from vitreous.data.sources.image_data import ImageData

__all__ = ["ImageDataModule"]


class ImageDataModule(ImageLoaders, LightningDataModule):
    """Training, validation and test loaders of labelled images, for any LightningModule.

    With ``ready=True``, a LightningModule receives augmented images and targets on the device::

        data = open_source(DataConfig("digits"))
        pipeline = EvalPipeline((8, 8), 1, PreprocessConfig(mean=(0.3,), std=(0.4,)))
        Trainer(max_epochs=5).fit(my_module, ImageDataModule(data, pipeline, ready=True))

    Args:
        data: The splits `train`, `val` and optionally `test`.
        pipeline: The evaluation pipeline; provides size and channels.
        augment: Augmentation of training batches.
        ready: Yield (images float32, targets float32 (B, K)) for training and (images float32, labels) for evaluation,
            instead of the dicts described in :mod:`vitreous.data.batches.dataset`.
        options: As :class:`~vitreous.data.batches.loaders.ImageLoaders`.
    """

    def __init__(
        self,
        data: ImageData,
        pipeline: EvalPipeline,
        augment: AugmentConfig | None = None,
        *,
        ready: bool = False,
        **options: Any,
    ) -> None:
        LightningDataModule.__init__(self)
        ImageLoaders.__init__(self, data, pipeline, augment, **options)
        self.ready = ready

    def on_after_batch_transfer(self, batch: Any, dataloader_idx: int) -> Any:
        """Augment or normalise on the device, with `ready`; called by Lightning."""
        if not self.ready or not isinstance(batch, dict):
            return batch
        if (trainer := self.trainer) is None or not trainer.training:
            return self.pipeline.normalise(batch["images"]), batch["labels"]
        progress = min(trainer.global_step / max(trainer.estimated_stepping_batches, 1), 1.0)
        return self.batch_augment.augment_batch(batch, progress)
