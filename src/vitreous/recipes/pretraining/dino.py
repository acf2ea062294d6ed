"""DINO on 32-pixel images, for a GPU.

Command:   vitreous pretrain cifar10 --method dino
Data:      cifar10, 5 % of train held out, mean and std of train
Model:     128x6/4 at 32 px, 4 heads, MLP 256, stem linear, pool mean
Augment:   flip 0.5, resized_crop 0.3, color_jitter 0.4
Optimiser: adamw, lr 0.001, weight_decay 0.05, cosine, warm-up 10 %, clip 1, betas 0.9,0.95
Training:  100 epochs, batch 256
Method:    2 large and 4 small views
Cost:      not measured
Hardware:  one GPU
Score:     not measured
"""

from vitreous.data.config import AugmentConfig, DataConfig
from vitreous.model.pools import Mean
from vitreous.model.sizes import config_of
from vitreous.model.stems import LinearStem
from vitreous.train.config import OptimConfig
from vitreous.train.pretrain.config import PretrainConfig
from vitreous.train.pretrain.objectives.views import ViewsConfig


def dino() -> PretrainConfig:
    """A teacher, the moving average of the student, sees the large crops alone."""
    return PretrainConfig(
        method="dino",
        data=DataConfig(source="cifar10", val_fraction=0.05),
        model=config_of("128x6/4", num_classes=0, heads=4, stem=LinearStem(), pool=Mean()),
        augment=AugmentConfig(flip=0.5, resized_crop=0.3, color_jitter=0.4),
        optim=OptimConfig(lr=1e-3, betas=(0.9, 0.95), weight_decay=0.05),
        batch_size=256,
        epochs=100,
        views=ViewsConfig(local=4),
    )
