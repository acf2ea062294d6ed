"""Masked autoencoder on 32-pixel images, on two CPU cores.

Command:   vitreous pretrain cifar10 --method mae
Data:      cifar10, 5 % of train held out, mean and std of train
Model:     128x6/4 at 32 px, 4 heads, MLP 256, stem linear, pool mean
Augment:   flip 0.5, resized_crop 0.5
Optimiser: adamw, lr 0.001, weight_decay 0.05, cosine, warm-up 10 %, clip 1, betas 0.9,0.95
Training:  100 epochs, batch 256
Method:    mask 0.75, decoder 64x2
Cost:      66 s for an epoch of 47,500 images, at 725 images a second
Hardware:  two cores of an AMD EPYC (AVX2, no bf16), torch 2.14.1
Score:     not measured
"""

from vitreous.data.config import AugmentConfig, DataConfig
from vitreous.model.pools import Mean
from vitreous.model.sizes import config_of
from vitreous.model.stems import LinearStem
from vitreous.train.config import OptimConfig
from vitreous.train.pretrain.config import PretrainConfig
from vitreous.train.pretrain.objectives.mae import MaeConfig


def mae() -> PretrainConfig:
    """The encoder runs on a quarter of the patches, so that an epoch is cheap; the decoder is half as wide."""
    return PretrainConfig(
        method="mae",
        data=DataConfig(source="cifar10", val_fraction=0.05),
        model=config_of("128x6/4", num_classes=0, heads=4, stem=LinearStem(), pool=Mean()),
        augment=AugmentConfig(flip=0.5, resized_crop=0.5),
        optim=OptimConfig(lr=1e-3, betas=(0.9, 0.95), weight_decay=0.05),
        batch_size=256,
        epochs=100,
        mae=MaeConfig(decoder_depth=2),
    )
