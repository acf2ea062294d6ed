"""The setting of the public notebook tutorials on CIFAR-10: a plain ViT of 6 layers and 3.3 million parameters.

Command:  vitreous train cifar10 --recipe notebook-cifar10
Cost:     not measured here yet; the tutorial reports 28 minutes on a GPU
Hardware: not measured here yet
Score:    not measured here yet; the tutorial reports 78.8 %
"""

from vitreous.data.config import AugmentConfig, DataConfig, PreprocessConfig
from vitreous.model.sizes import config_of
from vitreous.train.config import OptimConfig, RunConfig


def notebook_cifar10() -> RunConfig:
    """Width 256, 6 layers, 8 heads, MLP 512, patch 4, dropout 0.2; AdamW, one cycle to 3e-4, batch 256, 180 epochs.

    Three things differ by design: weight decay leaves biases, norms and embeddings alone, the one-cycle schedule moves
    the learning rate only, not AdamW's first beta, and the projections of attention begin as `nn.Linear` does, not as
    `nn.MultiheadAttention`, whose biases are zero and whose range is 1.2 times as wide.
    """
    return RunConfig(
        recipe="notebook-cifar10",
        data=DataConfig(source="cifar10", val_fraction=0.02),
        model=config_of(
            "256x6/4",
            num_classes=10,
            patch_activation="relu",
            head="mlp",
            head_hidden=512,
            head_activation="relu",
            final_norm="none",
            norm_eps=1e-5,
            dropout=0.2,
            proj_dropout=0.0,
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
