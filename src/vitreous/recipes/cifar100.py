"""CIFAR-100 with modern training: a ViT of 2.9 million parameters with a convolutional stem.

Command:   vitreous train cifar100
Data:      cifar100, 5 % of train held out, fixed mean and std
Model:     192x9/4 at 32 px, 6 heads, MLP 384, stem conv, stem.downsample stride, block.drop_path 0.1, pool mean
Augment:   flip 0.5, pad_crop 4, policy trivial, erasing 0.25, mixup 0.2, cutmix 1, mix_chance 0.5, off_last 0.1
Optimiser: muon, lr 0.001, muon_lr 0.01, momentum 0.95, weight_decay 0.05, cosine, warm-up 10 %, clip 1
Training:  100 epochs, batch 256, label_smoothing 0.1, ema 0.999
Cost:      not measured
Hardware:  not measured
Score:     not measured
"""

from dataclasses import replace

from vitreous.data.config import PreprocessConfig
from vitreous.recipes.cifar10 import cifar10
from vitreous.train.config import RunConfig


def cifar100() -> RunConfig:
    """The settings of `cifar10`, unchanged. They are not tuned to either dataset."""
    same = cifar10()
    return replace(
        same,
        data=replace(same.data, source="cifar100"),
        model=replace(same.model, num_classes=100),
        preprocess=PreprocessConfig(mean=(0.5071, 0.4866, 0.4409), std=(0.2673, 0.2564, 0.2762)),
    )
