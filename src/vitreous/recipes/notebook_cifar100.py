"""The public notebook tutorials on CIFAR-100: a plain ViT of 24 layers and 12.9 million parameters.

Command:   vitreous train cifar100 --recipe notebook-cifar100
Data:      cifar100, 2 % of train held out, fixed mean and std
Model:     256x24/4 at 32 px, 8 heads, MLP 512, dropout 0.1, norm_eps 1e-05, stem.activation relu,
           attention.proj_dropout 0, head mlp, head.hidden 512, head.activation relu, final_norm none, init torch
Augment:   flip 0.5, pad_crop 4
Optimiser: adamw, lr 0.001, weight_decay 0.03, one-cycle, warm-up 30 %, no clipping
Training:  180 epochs, batch 256, precision float32
Cost:      not measured; the tutorial reports 1 hour 41 minutes on a GPU
Hardware:  not measured
Score:     not measured; the tutorial reports 49.8 %
"""

from vitreous.data.config import AugmentConfig, DataConfig, PreprocessConfig
from vitreous.model.attention import AttentionConfig
from vitreous.model.heads import MlpHead
from vitreous.model.sizes import config_of
from vitreous.model.stems import PatchStem
from vitreous.train.config import OptimConfig, RunConfig


def notebook_cifar100() -> RunConfig:
    """The model and training of the tutorials, with the same three differences as in `notebook-cifar10`."""
    return RunConfig(
        data=DataConfig(source="cifar100", val_fraction=0.02),
        model=config_of(
            "256x24/4",
            num_classes=100,
            stem=PatchStem(activation="relu"),
            head=MlpHead(hidden=512, activation="relu"),
            final_norm="none",
            norm_eps=1e-5,
            dropout=0.1,
            attention=AttentionConfig(proj_dropout=0.0),
            init="torch",
        ),
        preprocess=PreprocessConfig(mean=(0.5071, 0.4866, 0.4409), std=(0.2673, 0.2564, 0.2762)),
        augment=AugmentConfig(flip=0.5, pad_crop=4),
        optim=OptimConfig(
            name="adamw", lr=1e-3, betas=(0.9, 0.999), weight_decay=0.03, schedule="one-cycle", warmup=0.3, clip=None
        ),
        batch_size=256,
        epochs=180,
        precision="float32",
    )
