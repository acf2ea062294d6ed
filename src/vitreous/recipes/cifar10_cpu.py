"""CIFAR-10 on two CPU cores in half an hour, by a plain ViT; docs/records.md tells what was tried.

Command:  vitreous train cifar10 --recipe cifar10-cpu --budget 28m
          with a convolutional stem: add --model.stem conv
          cifar100 in place of cifar10 is taken too, but was not measured; flowers were (docs/records.md)
Cost:     28 minutes, all included; a first download counts too
Hardware: two CPU cores of an AMD EPYC (Zen 4, AVX-512 with bf16), torch 2.15.0
Score:    90.1 % (n = 3, median) top-1 on test with linear patches; with the convolutional stem 91.3 % (n = 3, median,
          one of them on a Zen 5) and with --budget 60m 92.3 % there and 92.8 % on a Zen 5, where linear patches have
          91.8 % with --budget 60m (n = 1) and 88.4 % with --budget 12m (n = 3, median). Without bf16, on a Zen 3:
          85.5 % with linear patches, 80.2 % with --budget 12m (n = 1 each; docs/records.md)
"""

from vitreous.data.config import AugmentConfig, DataConfig
from vitreous.model.config import ViTConfig
from vitreous.train.config import OptimConfig, RunConfig


def cifar10_cpu() -> RunConfig:
    """Linear patches, 128 wide, 6 deep, Muon; pictures of 16, 24, then 32 px; half of the steps mixed for a while."""
    return RunConfig(
        recipe="cifar10-cpu",
        data=DataConfig(source="cifar10", val_fraction=0.05),
        model=ViTConfig(
            image_size=32,
            patch_size=4,
            num_classes=10,
            width=128,
            depth=6,
            heads=4,
            mlp_dim=256,
            stem="linear",
            conv_stem="max-pool",  # with --model.stem conv
            conv_width=64,
            pool="seq",
            init="mimetic",
            qk_norm=True,
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
