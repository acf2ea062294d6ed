"""Fine-tuning as arXiv 2010.11929 (table 4 and appendix B.1.1), with the settings for CIFAR-10.

Command:   vitreous finetune cifar10 --from B_16.npz --protocol paper --image-size 384 --data.val_fraction 0.02
Data:      cifar10, 2 % of train held out, preprocessing of the source
Model:     the source's, head.zero true
Augment:   flip 0.5, resized_crop 0.05
Optimiser: sgd, lr 0.01, momentum 0.9, weight_decay 0, cosine, warm-up 5 %, clip 1
Training:  10,000 steps, batch 512
Cost:      not measured
Hardware:  not measured; the paper's models were fine-tuned on TPUv3
Score:     not measured; the paper reports 98.95 % for B/16 from ImageNet-21k weights (table 5)
"""

from vitreous.data.config import AugmentConfig, DataConfig, PreprocessConfig
from vitreous.model.heads import LinearHead
from vitreous.model.sizes import config_of
from vitreous.train.config import OptimConfig, RunConfig


def paper_finetune() -> RunConfig:
    """SGD with momentum and without weight decay. The last layer starts at zero (section 3.2)."""
    return RunConfig(
        data=DataConfig(source="cifar10", val_fraction=0.02),
        model=config_of("B/16", num_classes=10, image_size=384, head=LinearHead(zero=True)),
        preprocess=PreprocessConfig(fit="squash", interpolation="bilinear", mean=(0.5, 0.5, 0.5), std=(0.5, 0.5, 0.5)),
        augment=AugmentConfig(flip=0.5, resized_crop=0.05),
        optim=OptimConfig(
            name="sgd",
            lr=0.01,  # the paper chooses it on held-out images: 0.001 to 0.03 for CIFAR, 0.003 to 0.06 for ImageNet
            momentum=0.9,
            weight_decay=0.0,
            warmup=0.05,  # 500 steps, as in the authors' code
            clip=1.0,
        ),
        batch_size=512,
        steps=10_000,  # the paper uses 20,000 for ImageNet and 500 for Pets and Flowers
    )
