"""Simple ViT: ViT-S/16 on ImageNet-1k in 90 epochs, as arXiv 2205.01580 and big_vision's configs/vit_s16_i1k.py.

Command:  vitreous train imagenet --recipe simple-vit --data-dir /data/imagenet
Cost:     not measured here; its authors: 6 to 7 hours
Hardware: not measured here; its authors: one TPUv3-8
Score:    not measured here; its authors: 76.5 % top-1 (80.0 % with --epochs 300 --optim.warmup 0.027)
"""

from vitreous.data.config import AugmentConfig, DataConfig, PreprocessConfig
from vitreous.model.sizes import config_of
from vitreous.train.config import OptimConfig, RunConfig

_STEPS = 90 * 1_268_355 / 1024  # 99 % of the training images; 1 % is held out


def simple_vit() -> RunConfig:
    """Fixed sin-cos positions, mean pooling, tanh head; RandAugment (2, 10), mixup 0.2, batch 1024, Adam at 1e-3.

    Their weight decay 1e-4 is applied as it is, PyTorch's is multiplied by the learning rate: 0.1 here is the same.
    """
    return RunConfig(
        recipe="simple-vit",
        data=DataConfig(source="imagenet"),
        model=config_of(
            "S/16",
            num_classes=1000,
            position="sincos-2d",
            pool="mean",
            head="mlp",
            zero_head=True,
            activation="gelu-tanh",
        ),
        preprocess=PreprocessConfig(
            fit="crop", crop_ratio=0.875, interpolation="bilinear", mean=(0.5, 0.5, 0.5), std=(0.5, 0.5, 0.5)
        ),
        augment=AugmentConfig(flip=0.5, resized_crop=0.05, policy="rand", policy_ops=2, policy_magnitude=10, mixup=0.2),
        optim=OptimConfig(
            name="adamw", lr=1e-3, betas=(0.9, 0.999), weight_decay=0.1, warmup=10_000 / _STEPS, clip=1.0
        ),
        batch_size=1024,
        epochs=90,
    )
