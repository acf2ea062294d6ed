"""The setting of the annotated ViT on CIFAR-10: the original Transformer's base size on patches of 4 pixels.

Command:  vitreous train cifar10 --recipe annotated-cifar10
Cost:     not measured yet
Hardware: not measured yet
Score:    not measured yet
"""

from vitreous.data.config import AugmentConfig, DataConfig, PreprocessConfig
from vitreous.model.config import ViTConfig
from vitreous.train.config import OptimConfig, RunConfig


def annotated_cifar10() -> RunConfig:
    """Width 512, 6 layers, 8 heads, ReLU MLP 2048, ReLU head of 2048, patch 4; Adam at 2.5e-4, batch 64, 32 epochs.

    Two things differ by design: positions begin from N(0, 1) as the class token does, not at zero, and are dropped out;
    and what a crop shows from beside the picture is reflected, not black.
    """
    return RunConfig(
        recipe="annotated-cifar10",
        data=DataConfig(source="cifar10", val_fraction=0.02),
        model=ViTConfig(
            image_size=32,
            patch_size=4,
            num_classes=10,
            width=512,
            depth=6,
            heads=8,
            mlp_dim=2048,
            activation="relu",
            head="mlp",
            head_hidden=2048,
            head_activation="relu",
            norm_eps=1e-5,
            dropout=0.1,
            attention_dropout=0.1,
            init="torch",
        ),
        preprocess=PreprocessConfig(mean=(0.5, 0.5, 0.5), std=(0.5, 0.5, 0.5)),
        augment=AugmentConfig(flip=0.5, pad_crop=4),
        optim=OptimConfig(name="adam", lr=2.5e-4, weight_decay=0.0, schedule="constant", warmup=0.0, clip=None),
        batch_size=64,
        epochs=32,
        precision="float32",
    )
