"""CIFAR-100 in ten minutes on one GPU: a draft that has not been measured.

Command:   vitreous train cifar100 --recipe cifar100-gpu --budget 10m
Variant:   --model.stem linear for linear patches
Data:      cifar100, 5 % of train held out, fixed mean and std
Model:     384x8/2 at 32 px, 6 heads, MLP 768, stem conv, stem.width 64, block.drop_path 0.1, block.zero_residual true,
           pool seq, patch_dropout 0.5
Augment:   flip 0.5, pad_crop 4, policy trivial, erasing 0.25, cutmix 1, mix_chance 0.5, off_last 0.1
Optimiser: muon, lr 0.002, muon_lr 0.02, momentum 0.95, weight_decay 0.05, linear, warm-up 10 %, no clipping, betas
           0.9,0.98
Training:  150 epochs, batch 512, label_smoothing 0.1, ema 0.999, patches_last 0.5, select last, compile true
Cost:      10 minutes for the whole command, a first download included
Hardware:  intended for one H100 or H200
Score:     not measured
"""

from dataclasses import replace

from vitreous.data.config import PreprocessConfig
from vitreous.recipes.cifar10_gpu import cifar10_gpu
from vitreous.train.config import RunConfig


def cifar100_gpu() -> RunConfig:
    """The settings of `cifar10-gpu`, unchanged. They are not tuned to either dataset."""
    same = cifar10_gpu()
    return replace(
        same,
        data=replace(same.data, source="cifar100"),
        model=replace(same.model, num_classes=100),
        preprocess=PreprocessConfig(mean=(0.5071, 0.4866, 0.4409), std=(0.2673, 0.2564, 0.2762)),
    )
