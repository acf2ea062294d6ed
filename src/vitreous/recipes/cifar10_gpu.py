"""CIFAR-10 on one GPU in ten minutes: a first draft.

Command:  vitreous train cifar10 --recipe cifar10-gpu --budget 10m
          with linear patches instead of the convolutional stem: add --model.stem linear
Cost:     10 minutes, all included; a first download counts too
Hardware: meant for one card of the H100's or H200's class; none was at hand
Score:    not measured
"""

from vitreous.data.config import AugmentConfig, DataConfig, PreprocessConfig
from vitreous.model.config import ViTConfig
from vitreous.train.config import OptimConfig, RunConfig


def cifar10_gpu() -> RunConfig:
    """Patches of 2 pixels, 384 wide and 8 deep, Muon; half of the patches are left out for the first half."""
    return RunConfig(
        recipe="cifar10-gpu",
        data=DataConfig(source="cifar10", val_fraction=0.05),
        model=ViTConfig(
            image_size=32,
            patch_size=2,
            num_classes=10,
            width=384,
            depth=8,
            heads=6,
            mlp_dim=768,
            stem="conv",
            conv_stem="max-pool",
            conv_width=64,
            pool="seq",
            zero_residual=True,
            patch_dropout=0.5,
            drop_path=0.1,
        ),
        preprocess=PreprocessConfig(mean=(0.4914, 0.4822, 0.4465), std=(0.2470, 0.2435, 0.2616)),
        augment=AugmentConfig(
            flip=0.5, pad_crop=4, policy="trivial", erasing=0.25, cutmix=1.0, mix_chance=0.5, off_last=0.1
        ),
        optim=OptimConfig(
            name="muon", lr=2e-3, muon_lr=0.02, betas=(0.9, 0.98), weight_decay=0.05, schedule="linear", clip=None
        ),
        batch_size=512,
        epochs=150,
        label_smoothing=0.1,
        ema=0.999,
        patches_last=0.5,
        select="last",
        compile=True,
    )
