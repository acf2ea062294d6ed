"""Augmentation of training batches on the device, with random numbers drawn on the CPU.

In reading order:

- pipeline.py: :class:`BatchAugment`, the sequence of all steps and the random numbers that each consumes.
- resized_crop.py: random resized crops, from files and from memory.
- geometry.py: flips, padded crops and affine maps; boxes to erase.
- policies.py: RandAugment, TrivialAugment and 3-Augment.
- color.py: brightness, contrast, saturation and other colour operations.
- mixing.py: label smoothing, mixup, CutMix and random erasing.

To add a policy, write a function like those in policies.py, in a new file, and add one line to :data:`POLICIES`.
"""

__all__ = ["POLICIES"]

POLICIES = {
    "rand": "vitreous.data.augment.policies:rand_augment",
    "trivial": "vitreous.data.augment.policies:trivial_augment",
    "three": "vitreous.data.augment.policies:three_augment",
}
"""Values of the option `augment.policy`, besides `none`. Import paths, because config.py must not load torch."""
