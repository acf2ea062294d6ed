"""The annotated ViT on CIFAR-10: the base size of the original Transformer on small patches.

Command:   vitreous train cifar10 --recipe annotated-cifar10
Data:      cifar10, 2 % of train held out, mean 0.5, std 0.5
Model:     512x6/4 at 32 px, 8 heads, MLP 2048, dropout 0.1, norm_eps 1e-05, attention.dropout 0.1, mlp.activation relu,
           head mlp, head.hidden 2048, head.activation relu, init torch
Augment:   flip 0.5, pad_crop 4
Optimiser: adam, lr 0.00025, weight_decay 0, constant, warm-up 0 %, no clipping
Training:  32 epochs, batch 64, precision float32
Cost:      not measured
Hardware:  not measured
Score:     not measured
"""

from vitreous.data.config import AugmentConfig, DataConfig, PreprocessConfig
from vitreous.model.attention import AttentionConfig
from vitreous.model.config import ViTConfig
from vitreous.model.heads import MlpHead
from vitreous.model.mlp import MlpConfig
from vitreous.train.config import OptimConfig, RunConfig


def annotated_cifar10() -> RunConfig:
    """The model and training of the annotated ViT, with two deliberate differences.

    Position embeddings start from a standard normal distribution instead of zero, like the class token, and dropout
    follows them. Before a crop, the image is padded with its reflection instead of black.
    """
    return RunConfig(
        data=DataConfig(source="cifar10", val_fraction=0.02),
        model=ViTConfig(
            image_size=32,
            patch_size=4,
            num_classes=10,
            width=512,
            depth=6,
            heads=8,
            mlp_dim=2048,
            mlp=MlpConfig(activation="relu"),
            head=MlpHead(hidden=2048, activation="relu"),
            norm_eps=1e-5,
            dropout=0.1,
            attention=AttentionConfig(dropout=0.1),
            init="torch",
        ),
        preprocess=PreprocessConfig(mean=(0.5, 0.5, 0.5), std=(0.5, 0.5, 0.5)),
        augment=AugmentConfig(flip=0.5, pad_crop=4),
        optim=OptimConfig(name="adam", lr=2.5e-4, weight_decay=0.0, schedule="constant", warmup=0.0, clip=None),
        batch_size=64,
        epochs=32,
        precision="float32",
    )
