"""ViT-B/16 on ImageNet-1k from scratch, as arXiv 2010.11929 (table 3 and appendix B.1).

Command:   vitreous train imagenet --recipe paper-imagenet --data-dir /data/imagenet
Data:      imagenet, 1 % of train held out, fit squash, interpolation bilinear, mean 0.5, std 0.5
Model:     768x12/16 at 224 px, 12 heads, MLP 3072, dropout 0.1, head mlp, head.zero true
Augment:   flip 0.5, resized_crop 0.05
Optimiser: adamw, lr 0.003, weight_decay 0.3, cosine, warm-up 10.8 %, clip 1
Training:  300 epochs, batch 4096
Cost:      not measured
Hardware:  not measured; the paper's models trained on TPUv3
Score:     not measured; the paper reports 77.91 % top-1 after fine-tuning at 384 pixels (table 5)
"""

from vitreous.data.config import AugmentConfig, DataConfig, PreprocessConfig
from vitreous.model.heads import MlpHead
from vitreous.model.sizes import config_of
from vitreous.train.config import OptimConfig, RunConfig

_STEPS = 300 * 1_268_355 / 4096  # 99 % of the 1,281,167 training images


def paper_imagenet() -> RunConfig:
    """Adam with decoupled weight decay, and a head with one hidden layer (section 3.1).

    Random crops, flips and pixels in [-1, 1] follow the authors' code.
    """
    return RunConfig(
        data=DataConfig(source="imagenet", val_fraction=0.01),
        model=config_of("B/16", num_classes=1000, head=MlpHead(zero=True), dropout=0.1),
        preprocess=PreprocessConfig(fit="squash", interpolation="bilinear", mean=(0.5, 0.5, 0.5), std=(0.5, 0.5, 0.5)),
        augment=AugmentConfig(flip=0.5, resized_crop=0.05),
        optim=OptimConfig(
            name="adamw", lr=3e-3, betas=(0.9, 0.999), weight_decay=0.3, warmup=10_000 / _STEPS, clip=1.0
        ),
        batch_size=4096,
        epochs=300,
    )
