"""LeJEPA on 32-pixel images, on two CPU cores.

Command:   vitreous pretrain cifar10 --method lejepa
Data:      cifar10, 5 % of train held out, mean and std of train
Model:     128x6/4 at 32 px, 4 heads, MLP 256, stem linear, pool mean
Augment:   flip 0.5, resized_crop 0.3, color_jitter 0.4
Optimiser: adamw, lr 0.001, weight_decay 0.05, cosine, warm-up 10 %, clip 1, betas 0.9,0.95
Training:  50 epochs, batch 256
Method:    weight 0.05, 512 slices, 2 views
Cost:      not measured
Hardware:  two CPU cores with bf16
Score:     not measured
"""

from dataclasses import replace

from vitreous.recipes.pretraining.visreg import visreg
from vitreous.train.pretrain.config import PretrainConfig


def lejepa() -> PretrainConfig:
    """The settings of `visreg`, with the other measure of how the features are spread."""
    return replace(visreg(), method="lejepa")
