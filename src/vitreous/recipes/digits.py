"""Handwritten digits: the first thing to try, offline.

Command:  vitreous train digits
Cost:     not measured yet
Hardware: two CPU cores
Score:    not measured yet
"""

from vitreous.data.config import AugmentConfig, DataConfig, PreprocessConfig
from vitreous.model.config import ViTConfig
from vitreous.train.config import OptimConfig, RunConfig


def digits() -> RunConfig:
    """A tiny ViT on 8x8 grey pictures: shifts only, since a mirrored or turned digit is another one."""
    return RunConfig(
        recipe="digits",
        data=DataConfig(source="digits"),
        model=ViTConfig(
            image_size=8,
            patch_size=2,
            in_channels=1,
            num_classes=10,
            width=64,
            depth=4,
            heads=4,
            mlp_dim=128,
            pool="mean",
        ),
        preprocess=PreprocessConfig(),
        augment=AugmentConfig(flip=0.0, pad_crop=1),
        optim=OptimConfig(name="adamw", lr=3e-3, weight_decay=0.05),
        batch_size=64,
        epochs=60,
        label_smoothing=0.1,
        precision="float32",
    )
