"""CIFAR-10 with modern training: a ViT of 2.9 million parameters with a convolutional stem.

Command:   vitreous train cifar10
Data:      cifar10, 5 % of train held out, fixed mean and std
Model:     192x9/4 at 32 px, 6 heads, MLP 384, stem conv, stem.downsample stride, block.drop_path 0.1, pool mean
Augment:   flip 0.5, pad_crop 4, policy trivial, erasing 0.25, mixup 0.2, cutmix 1, mix_chance 0.5, off_last 0.1
Optimiser: muon, lr 0.001, muon_lr 0.01, momentum 0.95, weight_decay 0.05, cosine, warm-up 10 %, clip 1
Training:  100 epochs, batch 256, label_smoothing 0.1, ema 0.999
Cost:      with --epochs 5, 18 minutes of training at 230 to 260 images a second; all 100 epochs: not measured
Hardware:  two cores of an AMD EPYC (AVX-512 with bf16), torch 2.15.0
Score:     with --epochs 5, 66.0 % of the test set (n = 1); all 100 epochs: not measured
"""

from vitreous.data.config import AugmentConfig, DataConfig, PreprocessConfig
from vitreous.model.block import BlockConfig
from vitreous.model.pools import Mean
from vitreous.model.sizes import config_of
from vitreous.model.stems import ConvStem
from vitreous.train.config import OptimConfig, RunConfig


def cifar10() -> RunConfig:
    """The ViT of arXiv 2112.13492, with a convolutional stem, Muon, mixup, CutMix and TrivialAugment."""
    return RunConfig(
        data=DataConfig(source="cifar10", val_fraction=0.05),
        model=config_of(
            "192x9/4",
            num_classes=10,
            heads=6,
            stem=ConvStem(downsample="stride"),
            pool=Mean(),
            block=BlockConfig(drop_path=0.1),
        ),
        preprocess=PreprocessConfig(mean=(0.4914, 0.4822, 0.4465), std=(0.2470, 0.2435, 0.2616)),
        augment=AugmentConfig(
            flip=0.5, pad_crop=4, policy="trivial", erasing=0.25, mixup=0.2, cutmix=1.0, mix_chance=0.5, off_last=0.1
        ),
        optim=OptimConfig(name="muon", lr=1e-3, muon_lr=0.01, weight_decay=0.05),
        batch_size=256,
        epochs=100,
        label_smoothing=0.1,
        ema=0.999,
    )
