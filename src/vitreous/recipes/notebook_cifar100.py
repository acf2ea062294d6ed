"""The setting of the public notebook tutorials on CIFAR-100: a plain ViT of 24 layers and 12.9 million parameters.

Command:  vitreous train cifar100 --recipe notebook-cifar100
Cost:     not measured here yet; the tutorial reports 1 hour 41 minutes on a GPU
Hardware: not measured here yet
Score:    not measured here yet; the tutorial reports 49.8 %
"""

from vitreous.data.config import AugmentConfig, DataConfig, PreprocessConfig
from vitreous.model.sizes import config_of
from vitreous.train.config import OptimConfig, RunConfig


def notebook_cifar100() -> RunConfig:
    """Width 256, 24 layers, 8 heads, MLP 512, patch 4, dropout 0.1; AdamW, one cycle to 1e-3, batch 256, 180 epochs.

    Three things differ by design: weight decay leaves biases, norms and embeddings alone, the one-cycle schedule moves
    the learning rate only, not AdamW's first beta, and the projections of attention begin as `nn.Linear` does, not as
    `nn.MultiheadAttention`, whose biases are zero and whose range is 1.2 times as wide.
    """
    return RunConfig(
        recipe="notebook-cifar100",
        data=DataConfig(source="cifar100", val_fraction=0.02),
        model=config_of(
            "256x24/4",
            num_classes=100,
            patch_activation="relu",
            head="mlp",
            head_hidden=512,
            head_activation="relu",
            final_norm="none",
            norm_eps=1e-5,
            dropout=0.1,
            proj_dropout=0.0,
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
