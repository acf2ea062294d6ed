"""Fine-tuning as arXiv 2010.11929 (table 4 and appendix B.1.1), set for CIFAR-10.

Command:  vitreous finetune cifar10 --from B_16.npz --protocol paper --image-size 384
Cost:     not measured yet
Hardware: not measured here; the paper's models were fine-tuned on TPUv3
Score:    not measured here; from ImageNet-21k weights the paper reports 98.95 % for B/16 on CIFAR-10 (table 5)
"""

from vitreous.data.config import AugmentConfig, DataConfig, PreprocessConfig
from vitreous.model.sizes import config_of
from vitreous.train.config import OptimConfig, RunConfig


def paper_finetune() -> RunConfig:
    """10,000 steps of SGD with momentum 0.9, batch 512, no weight decay, cosine, 384 pixels, clipped at norm 1.

    The paper picks the rate per set on a part of the training images: CIFAR from 0.001, 0.003, 0.01, 0.03 (10,000
    steps); ImageNet from 0.003, 0.01, 0.03, 0.06 (20,000); Pets and Flowers as CIFAR (500). The 500 steps of warm-up
    are those of the authors' code. The last layer starts at zero (section 3.2).
    """
    return RunConfig(
        recipe="paper-finetune",
        data=DataConfig(source="cifar10", val_fraction=0.02),
        model=config_of("B/16", num_classes=10, image_size=384, zero_head=True),
        preprocess=PreprocessConfig(fit="squash", interpolation="bilinear", mean=(0.5, 0.5, 0.5), std=(0.5, 0.5, 0.5)),
        augment=AugmentConfig(flip=0.5, resized_crop=0.05),
        optim=OptimConfig(name="sgd", lr=0.01, momentum=0.9, weight_decay=0.0, warmup=0.05, clip=1.0),
        batch_size=512,
        steps=10_000,
    )
