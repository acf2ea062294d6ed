"""ViT-B/16 on ImageNet-1k from scratch, as arXiv 2010.11929 (table 3 and appendix B.1).

Command:  vitreous train imagenet --recipe paper-imagenet --data-dir /data/imagenet
Cost:     not measured yet
Hardware: not measured here; the paper's models trained on TPUv3
Score:    not measured here; the paper reports 77.91 % top-1 after fine-tuning at 384 pixels (table 5)
"""

from vitreous.data.config import AugmentConfig, DataConfig, PreprocessConfig
from vitreous.model.sizes import config_of
from vitreous.train.config import OptimConfig, RunConfig

_STEPS = 300 * 1_281_167 / 4096


def paper_imagenet() -> RunConfig:
    """300 epochs, batch 4096, Adam with decoupled decay 0.3, peak 3e-3, 10,000 steps of warm-up, cosine, dropout 0.1.

    The head while pre-training has one hidden layer with tanh (section 3.1); pictures are cut by random area and
    flipped as in the authors' code, pixels scaled to [-1, 1].
    """
    return RunConfig(
        recipe="paper-imagenet",
        data=DataConfig(source="imagenet"),
        model=config_of("B/16", num_classes=1000, head="mlp", dropout=0.1, zero_head=True),
        preprocess=PreprocessConfig(fit="squash", interpolation="bilinear", mean=(0.5, 0.5, 0.5), std=(0.5, 0.5, 0.5)),
        augment=AugmentConfig(flip=0.5, resized_crop=0.05),
        optim=OptimConfig(
            name="adamw", lr=3e-3, betas=(0.9, 0.999), weight_decay=0.3, warmup=10_000 / _STEPS, clip=1.0
        ),
        batch_size=4096,
        epochs=300,
    )
