"""The small backbone that the package contains: what it learns on images of many kinds helps with yours.

Command:   vitreous train tiny/ --recipe backbone --budget 80m
Data:      tiny, 20 % of train held out, mean and std of train
Model:     192x6/8 at 64 px, 6 heads, MLP 768, stem conv, stem.downsample stride, attention.qk_norm true, pool mean
Augment:   flip 0.5, resized_crop 0.3, color_jitter 0.3, cutmix 1, mix_chance 0.3, off_last 0.15, small_first 0.5,0.75,
           small_until 0.6
Optimiser: muon, lr 0.003, muon_lr 0.016, momentum 0.95, weight_decay 0.05, linear, warm-up 5 %, clip 1, muon_stem true
Training:  40 epochs, batch 256, label_smoothing 0.1, select last
Cost:      80 minutes for the whole command, with 129,000 training images
Hardware:  two cores of an Intel Xeon with AMX, torch 2.14.1
Score:     51.8 % of 3,000 validation images in 210 classes (n = 1), after 13 epochs beside other work on the machine;
           56.6, 59.0 and 60.5 % after three further trainings from these weights (docs/explanation/start.md)
"""

from vitreous.data.config import AugmentConfig, DataConfig, PreprocessConfig
from vitreous.model.attention import AttentionConfig
from vitreous.model.config import ViTConfig
from vitreous.model.pools import Mean
from vitreous.model.stems import ConvStem
from vitreous.train.config import OptimConfig, RunConfig


def backbone() -> RunConfig:
    """Muon, images that grow from half to full size, and crops of all sizes, at 64 px."""
    return RunConfig(
        data=DataConfig(source="tiny"),
        model=ViTConfig(
            image_size=64,
            num_classes=210,
            patch_size=8,
            width=192,
            depth=6,
            heads=6,
            mlp_dim=768,
            stem=ConvStem(downsample="stride"),
            pool=Mean(),
            attention=AttentionConfig(qk_norm=True),
        ),
        preprocess=PreprocessConfig(fit="crop"),
        augment=AugmentConfig(
            flip=0.5,
            resized_crop=0.3,
            color_jitter=0.3,
            cutmix=1.0,
            mix_chance=0.3,
            off_last=0.15,
            small_first=(0.5, 0.75),
            small_until=0.6,
        ),
        optim=OptimConfig(
            name="muon", lr=3e-3, muon_lr=0.016, muon_stem=True, weight_decay=0.05, schedule="linear", warmup=0.05
        ),
        batch_size=256,
        epochs=40,
        label_smoothing=0.1,
        select="last",
    )
