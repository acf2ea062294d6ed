"""The public notebook tutorials on CIFAR-10: a plain ViT of 6 layers and 3.3 million parameters.

Command:   vitreous train cifar10 --recipe notebook-cifar10
Data:      cifar10, 2 % of train held out, fixed mean and std
Model:     256x6/4 at 32 px, 8 heads, MLP 512, dropout 0.2, norm_eps 1e-05, stem.activation relu, attention.proj_dropout
           0, head mlp, head.hidden 512, head.activation relu, final_norm none, init torch
Augment:   flip 0.5, pad_crop 4
Optimiser: adamw, lr 0.0003, weight_decay 0.03, one-cycle, warm-up 30 %, no clipping
Training:  180 epochs, batch 256, precision float32
Cost:      not measured; the tutorial reports 28 minutes on a GPU
Hardware:  not measured
Score:     not measured; the tutorial reports 78.8 %
"""

from vitreous.data.config import AugmentConfig, DataConfig, PreprocessConfig
from vitreous.model.attention import AttentionConfig
from vitreous.model.heads import MlpHead
from vitreous.model.sizes import config_of
from vitreous.model.stems import PatchStem
from vitreous.train.config import OptimConfig, RunConfig


def notebook_cifar10() -> RunConfig:
    """The model and training of the tutorials, with three deliberate differences.

    Biases, norms and embeddings do not decay. The one-cycle schedule changes only the learning rate, not AdamW's first
    beta. The attention projections are initialised like `nn.Linear`, not like `nn.MultiheadAttention`, which has zero
    biases and a wider range.
    """
    return RunConfig(
        data=DataConfig(source="cifar10", val_fraction=0.02),
        model=config_of(
            "256x6/4",
            num_classes=10,
            stem=PatchStem(activation="relu"),
            head=MlpHead(hidden=512, activation="relu"),
            final_norm="none",
            norm_eps=1e-5,
            dropout=0.2,
            attention=AttentionConfig(proj_dropout=0.0),
            init="torch",
        ),
        preprocess=PreprocessConfig(mean=(0.4914, 0.4822, 0.4465), std=(0.2470, 0.2435, 0.2616)),
        augment=AugmentConfig(flip=0.5, pad_crop=4),
        optim=OptimConfig(
            name="adamw", lr=3e-4, betas=(0.9, 0.999), weight_decay=0.03, schedule="one-cycle", warmup=0.3, clip=None
        ),
        batch_size=256,
        epochs=180,
        precision="float32",
    )
