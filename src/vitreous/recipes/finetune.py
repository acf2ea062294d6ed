"""Fine-tuning a trained model on other images with layer-wise learning rates, drop path and no mixing.

Command:   vitreous finetune photos/ --from runs/digits-1
Data:      photos, 20 % of train held out, preprocessing of the source
Model:     the source's, block.drop_path 0.1, head.zero true
Augment:   flip 0.5, resized_crop 0.5
Optimiser: adamw, lr 0.001, weight_decay 0.05, cosine, warm-up 10 %, clip 1, layer_decay 0.75
Training:  20 epochs, batch 64, label_smoothing 0.1
Cost:      8 s an epoch for 1,200 images of 48 pixels, from a 128x6/4
Hardware:  one core of an AMD EPYC (Zen 5)
Score:     79.9 ± 0.9 % on three classes of CIFAR-10 that the source never saw (n = 3, docs/explanation/benchmarks.md)
"""

from vitreous.data.config import AugmentConfig, DataConfig
from vitreous.model.block import BlockConfig
from vitreous.model.config import ViTConfig
from vitreous.model.heads import LinearHead
from vitreous.train.config import OptimConfig, RunConfig


def finetune(mode: str = "full") -> RunConfig:
    """AdamW for a few hundred images and more, with a rate that falls by 0.75 from layer to layer (arXiv 2106.08254).

    Mixup and CutMix are off, because with them small datasets need more epochs than fine-tuning takes. The size, the
    architecture and the evaluation pipeline are those of the source model. Modes other than `full` train fewer weights,
    at a higher rate that is the same in every layer.

    Args:
        mode: What to train, as in `TuneConfig.mode`.
    """
    rates = {"linear": OptimConfig(lr=2e-2, weight_decay=0.0), "lora": OptimConfig(lr=2e-3, weight_decay=0.0)}
    if mode.startswith("last-"):
        rates[mode] = OptimConfig(lr=2e-3)
    return RunConfig(
        data=DataConfig(source="photos"),
        model=ViTConfig(head=LinearHead(zero=True), block=BlockConfig(drop_path=0.1)),
        augment=AugmentConfig(flip=0.5, resized_crop=0.5),
        optim=rates.get(mode, OptimConfig(lr=1e-3, layer_decay=0.75)),
        batch_size=64,
        epochs=20,
        label_smoothing=0.1,
    )
