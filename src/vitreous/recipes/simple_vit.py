"""Simple ViT: ViT-S/16 on ImageNet-1k in 90 epochs, as arXiv 2205.01580 and big_vision's configs/vit_s16_i1k.py.

Command:   vitreous train imagenet --recipe simple-vit --data-dir /data/imagenet
Data:      imagenet, 1 % of train held out, crop_ratio 0.875, interpolation bilinear, mean 0.5, std 0.5
Model:     384x12/16 at 224 px, 6 heads, MLP 1536, position sincos-2d, mlp.activation gelu-tanh, pool mean, head mlp,
           head.zero true
Augment:   flip 0.5, resized_crop 0.05, policy rand, policy_magnitude 10, mixup 0.2
Optimiser: adamw, lr 0.001, weight_decay 0.1, cosine, warm-up 8.97 %, clip 1
Training:  90 epochs, batch 1024
Cost:      not measured; the authors report 6 to 7 hours
Hardware:  not measured; the authors used one TPUv3-8
Score:     not measured; the authors report 76.5 % top-1 (80.0 % with --epochs 300 --optim.warmup 0.027)
"""

from vitreous.data.config import AugmentConfig, DataConfig, PreprocessConfig
from vitreous.model.heads import MlpHead
from vitreous.model.mlp import MlpConfig
from vitreous.model.pools import Mean
from vitreous.model.positions import SinCos2d
from vitreous.model.sizes import config_of
from vitreous.train.config import OptimConfig, RunConfig

_STEPS = 90 * 1_268_355 / 1024  # 99 % of the 1,281,167 training images


def simple_vit() -> RunConfig:
    """Fixed sine-cosine positions, mean pooling, an MLP head with tanh, RandAugment and mixup."""
    return RunConfig(
        data=DataConfig(source="imagenet", val_fraction=0.01),
        model=config_of(
            "S/16",
            num_classes=1000,
            position=SinCos2d(),
            pool=Mean(),
            head=MlpHead(zero=True),
            mlp=MlpConfig(activation="gelu-tanh"),
        ),
        preprocess=PreprocessConfig(
            fit="crop", crop_ratio=0.875, interpolation="bilinear", mean=(0.5, 0.5, 0.5), std=(0.5, 0.5, 0.5)
        ),
        augment=AugmentConfig(flip=0.5, resized_crop=0.05, policy="rand", policy_ops=2, policy_magnitude=10, mixup=0.2),
        optim=OptimConfig(
            name="adamw",
            lr=1e-3,
            betas=(0.9, 0.999),
            weight_decay=0.1,  # big_vision's 1e-4 divided by lr, because PyTorch multiplies the two
            warmup=10_000 / _STEPS,
            clip=1.0,
        ),
        batch_size=1024,
        epochs=90,
    )
