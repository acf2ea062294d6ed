"""CIFAR-100, strong: a 2.7-million-parameter ViT with modern training.

Command:  vitreous train cifar100
Cost:     not measured yet
Hardware: not measured yet
Score:    not measured yet
"""

from dataclasses import replace

from vitreous.data.config import PreprocessConfig
from vitreous.recipes.cifar10 import cifar10
from vitreous.train.config import RunConfig


def cifar100() -> RunConfig:
    """The recipe of CIFAR-10 as it is: no setting is tuned to one of the two sets."""
    same = cifar10()
    return replace(
        same,
        recipe="cifar100",
        data=replace(same.data, source="cifar100"),
        model=replace(same.model, num_classes=100),
        preprocess=PreprocessConfig(mean=(0.5071, 0.4866, 0.4409), std=(0.2673, 0.2564, 0.2762)),
    )
