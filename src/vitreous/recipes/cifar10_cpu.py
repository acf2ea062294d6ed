"""CIFAR-10 in half an hour on two CPU cores, with a plain ViT.

Command:   vitreous train cifar10 --recipe cifar10-cpu --budget 28m
Variant:   --model.stem conv for a convolutional stem
Data:      cifar10, 5 % of train held out, mean and std of train
Model:     128x6/4 at 32 px, 4 heads, MLP 256, stem linear, attention.qk_norm true, pool seq, init mimetic
Augment:   flip 0.5, pad_crop 4, mixup 0.8, cutmix 1, mix_chance 0.5, mix_after 8, off_last 0.2, small_first 0.5,0.75,
           small_until 0.7
Optimiser: muon, lr 0.003, muon_lr 0.016, momentum 0.9, weight_decay 0.05, linear, warm-up 10 %, no clipping, muon_stem
           true, betas 0.9,0.98
Training:  32 epochs, batch 256, label_smoothing 0.1, select last
Cost:      28 minutes for the whole command, a first download included
Hardware:  two cores of an AMD EPYC (Zen 4, AVX-512 with bf16), torch 2.15.0
Score:     90.1 % of the test set (median of 3 seeds, 88.4 to 90.2); with --model.stem conv 91.3 % (median of 3 seeds,
           one of them on a Zen 5); other budgets and machines in docs/explanation/records.md
"""

from vitreous.data.config import AugmentConfig, DataConfig
from vitreous.model.attention import AttentionConfig
from vitreous.model.pools import SequencePool
from vitreous.model.sizes import config_of
from vitreous.model.stems import LinearStem
from vitreous.train.config import OptimConfig, RunConfig


def cifar10_cpu() -> RunConfig:
    """Linear patches, Muon, images that grow from half to full size, and mixing that starts late.

    Small images make the early epochs cheap. docs/explanation/log/cifar10.md lists the settings that were tried, with
    results.
    """
    return RunConfig(
        data=DataConfig(source="cifar10", val_fraction=0.05),
        model=config_of(
            "128x6/4",
            num_classes=10,
            heads=4,  # the size has 2
            stem=LinearStem(),
            pool=SequencePool(),
            init="mimetic",
            attention=AttentionConfig(qk_norm=True),
        ),
        augment=AugmentConfig(
            flip=0.5,
            pad_crop=4,
            mixup=0.8,
            cutmix=1.0,
            mix_chance=0.5,
            mix_after=8,
            off_last=0.2,
            small_first=(0.5, 0.75),
            small_until=0.7,
        ),
        optim=OptimConfig(
            name="muon",
            lr=3e-3,
            muon_lr=0.016,
            muon_stem=True,
            momentum=0.9,
            betas=(0.9, 0.98),
            weight_decay=0.05,
            schedule="linear",
            clip=None,
        ),
        batch_size=256,
        epochs=32,
        label_smoothing=0.1,
        select="last",
    )
