"""Your own pictures, from scratch: any folder with one folder per class.

Command:  vitreous train photos/
Cost:     not measured yet
Hardware: two CPU cores
Score:    not measured yet
"""

from vitreous.data.config import AugmentConfig, DataConfig, PreprocessConfig
from vitreous.model.config import ViTConfig
from vitreous.train.config import OptimConfig, RunConfig


def folder() -> RunConfig:
    """A small ViT with a convolutional stem on 64 pixels, for some hundred to some ten thousand pictures."""
    return RunConfig(
        recipe="folder",
        data=DataConfig(source="photos"),
        model=ViTConfig(
            image_size=64,
            patch_size=8,
            width=128,
            depth=6,
            heads=4,
            mlp_dim=256,
            stem="conv",
            pool="mean",
            drop_path=0.1,
        ),
        preprocess=PreprocessConfig(fit="crop"),
        augment=AugmentConfig(flip=0.5, resized_crop=0.35, policy="three", color_jitter=0.3, off_last=0.1),
        optim=OptimConfig(name="muon", lr=1e-3, muon_lr=0.01, weight_decay=0.02),
        batch_size=64,
        epochs=60,
        label_smoothing=0.1,
        ema=0.995,
    )
